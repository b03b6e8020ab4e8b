"""Functions that build waiting jobs, run times and starts, for tests of the order of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.history import MIN_RUNS, Estimate, Overtakes, QueueStart, RunTimeKey
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from tests.core.gpu_world import NOW, running

HOUR = 3600.0
HALF, WHOLE, PAIR = ResourceSpec(share=500), ResourceSpec(share=1000), ResourceSpec(share=1000, gpus=2)


@dataclass(frozen=True)
class GivenTimes:
    """Estimates by identity; of all other jobs, nothing is known."""

    of: Mapping[str, Estimate] = field(default_factory=dict)

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for the job with this key."""
        return self.of.get(key.identity, Estimate()) if key else Estimate()


def exactly(seconds: float) -> Estimate:
    """Returns the estimate of a job that always runs for this time."""
    return Estimate(seconds, (1.0,) * MIN_RUNS)


def key_of(identity: str) -> RunTimeKey:
    """Returns the key of a command with this identity."""
    return RunTimeKey(identity, JobSpec("command", identity, "/", command=identity).to_json())


def waiting(
    job_id: int,
    priority: int = 200,
    *,
    ago_s: float = 24 * HOUR,
    since_s: float | None = None,
    runs: str = "unknown",
) -> QueuedJob:
    """Returns a job that was submitted `ago_s` seconds ago and has waited since then, or for `since_s`."""
    began = NOW.wall - (ago_s if since_s is None else since_s)
    return QueuedJob(job_id, priority, job_id, NOW.wall - ago_s, began, key_of(runs))


def jobs_of(resources: ResourceSpec, *jobs: QueuedJob) -> PendingGroup:
    """Returns the group of these waiting jobs."""
    return PendingGroup(resources, jobs)


def holder(
    attempt_id: int, *uuids: str, runs: str = "unknown", age_s: float = 0.0, **values: object
) -> ActiveAttempt:
    """Returns an attempt that has run for `age_s` on these GPUs; all of each by default."""
    started = NOW.wall - age_s
    given = {"share": 1000} if "vram" not in values else {}
    return running(attempt_id, *uuids, **{**given, "started_at": started, "run_time": key_of(runs), **values})


def overtaken(times: int, *, ago_s: float = HOUR, submitted_ago_s: float = 2 * HOUR) -> Overtakes:
    """Returns starts that overtook all jobs submitted an hour or more before these starting jobs."""
    starts = [QueueStart(200, 1000 + n, NOW.wall - submitted_ago_s, NOW.wall - ago_s) for n in range(times)]
    return Overtakes(starts)


def starts(actions: list[act.Action]) -> dict[int, tuple[str, ...]]:
    """Returns the GPUs of each started job."""
    return {one.job_id: one.gpus for one in actions if isinstance(one, act.Start)}


def reservations(actions: list[act.Action]) -> list[act.SetQueueReservation]:
    """Returns the changes of the reservation by queue order; there is at most one."""
    return [one for one in actions if isinstance(one, act.SetQueueReservation)]


def stored(
    job: QueuedJob, resources: ResourceSpec, *uuids: str, in_s: float = HOUR, overtakes: int = 9
) -> QueueReservation:
    """Returns a stored reservation, whose job was expected to start in `in_s` seconds."""
    return QueueReservation(job, resources, uuids, NOW.wall + in_s, overtakes)
