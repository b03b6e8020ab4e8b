"""A small box that plays `place_jobs` forward, for property tests of the order of the queue.

It does not use the scheduler's own playback, and checks every start against both accounts by rules of its
own. All times are multiples of STEP_S, so that the expected start that is shown is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.history import Overtakes, QueueStart, RunTimeEstimates, RunTimes
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of, queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.core.gpu_world import TOTAL, gpu
from tests.core.queue_world import key_of

STEP_S = 300.0
BEGIN = 1_700_000_100.0
MARGIN_MIB = 512


class PlannedJob(Struct, frozen=True):
    """A job that arrives and runs for a number of steps."""

    resources: ResourceSpec
    comes: int
    runs: int
    priority: int = 200


@dataclass
class Promise:
    """A reservation: when its job was expected to start, in steps, and the number of starts before it.

    is_kept: False once the reservation ended before its job started.
    """

    job: QueuedJob
    start: float
    starts_before: int
    is_kept: bool = True


@dataclass
class Player:
    """Plays jobs on a number of GPUs. The job with the index n has the id n + 1 and the identity n + 1.

    closed: the GPUs that are paused, by step. estimates: what is known about the run times.
    """

    gpus: int
    jobs: Sequence[PlannedJob]
    settings: Settings
    estimates: RunTimeEstimates = field(default_factory=RunTimes)
    closed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    step: int = 0
    started: dict[int, int] = field(default_factory=dict)
    reserved: QueueReservation | None = None
    promises: list[Promise] = field(default_factory=list)
    begun: list[QueueStart] = field(default_factory=list)
    _running: dict[int, ActiveAttempt] = field(default_factory=dict)
    _queued: dict[int, QueuedJob] = field(default_factory=dict)

    def play(self) -> None:
        """Plays until all jobs have ended, or nothing can happen any more."""
        last = max((job.comes for job in self.jobs), default=0) + max(self.closed, default=0)
        last += sum(job.runs for job in self.jobs) + 2
        for self.step in range(last):
            ended = [one for one in self._running if self._end(one) <= self.step]
            for job_id in ended:
                del self._running[job_id]
            came = [job_id for job_id, job in enumerate(self.jobs, 1) if job.comes == self.step]
            for job_id in came:
                self._queued[job_id] = self._queued_job(job_id)
            reopened = self.closed.get(self.step) != self.closed.get(self.step - 1)
            if ended or came or reopened or self.reserved is not None:
                self._settle()

    @property
    def now(self) -> Now:
        """The time."""
        return Now(BEGIN + STEP_S * self.step, 1000.0 + STEP_S * self.step, "boot")

    def job_of(self, job_id: int) -> PlannedJob:
        """Returns a job."""
        return self.jobs[job_id - 1]

    def _end(self, job_id: int) -> int:
        return self.started[job_id] + self.job_of(job_id).runs

    def _queued_job(self, job_id: int) -> QueuedJob:
        job, now = self.job_of(job_id), self.now.wall
        return QueuedJob(job_id, job.priority, job_id, now, now, key_of(str(job_id)))

    def _settle(self) -> None:
        for _ in range(200):
            facts = self.facts()
            actions = place_jobs(facts)
            for action in actions:
                self._apply(action, facts)
            if all(isinstance(action, act.SetWaitReason) for action in actions):
                return
        raise AssertionError(f"rounds never settle: {actions}")

    def facts(self) -> Facts:
        """Returns the facts of the next round."""
        groups: dict[ResourceSpec, list[QueuedJob]] = {}
        for job in sorted(self._queued.values(), key=queue_key):
            groups.setdefault(self.job_of(job.job_id).resources, []).append(job)
        closed = self.closed.get(self.step, frozenset())
        gpus = [
            replace(gpu(n, paused=n in closed), sampled_boot=self.now.boot, foreign_load_boot=self.now.boot)
            for n in range(self.gpus)
        ]
        return Facts(
            self.now, self.settings, LlmConfig(), tuple(gpus),
            attempts=tuple(self._running.values()),
            pending_groups=tuple(PendingGroup(ask, tuple(jobs)) for ask, jobs in groups.items()),
            queue_reservation=self.reserved, overtakes=Overtakes(self.begun), run_times=self.estimates,
        )  # fmt: skip

    def _apply(self, action: act.Action, facts: Facts) -> None:
        if isinstance(action, act.Start):
            self._start(action, facts)
        elif isinstance(action, act.SetQueueReservation):
            self._reserve(action)
        else:
            assert isinstance(action, act.SetWaitReason), action

    def _reserve(self, action: act.SetQueueReservation) -> None:
        before = None if self.reserved is None else self.reserved.job.job_id
        if action.job_id != before and before in self._queued:
            self.promises[-1].is_kept = False
        if action.job_id is None:
            self.reserved = None
            return
        job = self._queued[action.job_id]
        if action.job_id != before:
            start = (action.start_at - BEGIN) / STEP_S
            self.promises.append(Promise(job, start, len(self.begun)))
        resources = self.job_of(job.job_id).resources
        self.reserved = QueueReservation(job, resources, action.gpus, action.start_at, action.overtakes)

    def _start(self, action: act.Start, facts: Facts) -> None:
        job = self._queued.pop(action.job_id)
        planned = self.job_of(job.job_id)
        need = need_of(planned.resources, facts)
        assert len(set(action.gpus)) == need.count
        for uuid in action.gpus:
            self._check_fit(int(uuid[1:]), need, planned.resources)
        self.started[job.job_id] = self.step
        self.begun.append(QueueStart(job.priority, job.position, job.submitted_at, self.now.wall))
        self._running[job.job_id] = make_attempt(
            job.job_id, job.job_id, f"t{job.job_id}", "boot", AttemptState.RUNNING, action.gpus,
            action.share, action.vram, action.whole, resources=planned.resources, priority=job.priority,
            status=AttemptStatus(claim="live"), started_at=self.now.wall, run_time=job.run_time,
        )  # fmt: skip
        if self.reserved is not None and self.reserved.job.job_id == job.job_id:
            self.reserved = None

    def _check_fit(self, index: int, need: Need, resources: ResourceSpec) -> None:
        """Checks that one more job fits on a GPU, on both accounts."""
        here = [one for one in self._running.values() if f"U{index}" in one.gpus]
        assert resources.allowed is None or index in resources.allowed
        assert index not in self.closed.get(self.step, frozenset())
        assert not (need.whole and here)
        assert not any(one.whole for one in here)
        if need.share:
            assert sum(one.share or _share_of(one.vram or 0) for one in here) + need.share <= 1000
        if need.vram is not None:
            mib = sum(one.share * TOTAL // 1000 if one.vram is None else one.vram for one in here)
            assert mib + need.vram + MARGIN_MIB <= TOTAL


def _share_of(mib: int) -> int:
    return min(1000, math.ceil(1000 * mib / TOTAL))
