"""Forecasts when the running jobs end, and when the waiting jobs start and end.

The queue is played forward twice (`forecast_play`): once with the median length of each run, once with the
upper estimate, within which nine of ten runs end. So the upper times are those of a queue in which every job
takes long. A job without an estimate counts with a guess. Its times, and those of every job that starts on a
GPU which it or a job after it has used, rest on that guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import JobTimes
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.forecast_lengths import Length, expected_lengths
from gpu_scheduler.core.scheduling.forecast_play import Played, WaitingJob, play
from gpu_scheduler.core.scheduling.playback import Run


@dataclass(frozen=True)
class JobForecast:
    """The expected start and end of a job in wall seconds, and the UUIDs of its GPUs.

    start_upper_at, end_upper_at: the times if every job takes its upper estimate; None if they would rest on
    a guess. has_estimate: whether the run time of the job itself is more than a guess. rests_on_guess:
    whether the start depends on a job whose run time is a guess.
    """

    start_at: float
    end_at: float
    start_upper_at: float | None
    end_upper_at: float | None
    gpus: tuple[str, ...]
    has_estimate: bool
    rests_on_guess: bool


@dataclass(frozen=True)
class Forecast:
    """The forecast of each job that will end, by its id.

    reasons: why the other jobs that wait only for GPUs do not start, by their resources. idle_share: the part
    of the GPU time until idle_until, when the last waiting job starts, in which no job runs on a GPU; None if
    no job has to wait.
    """

    jobs: Mapping[int, JobForecast] = field(default_factory=dict)
    reasons: Mapping[str, WaitReason] = field(default_factory=dict)
    idle_share: float | None = None
    idle_until: float | None = None


def forecast(facts: Facts, waiting: Sequence[WaitingJob], ending: Collection[int] = ()) -> Forecast:
    """Returns the forecast of the running jobs and of these waiting ones.

    facts: pending groups do not count. ending: the ids of attempts whose commands have ended already.
    """
    facts = _with_all_attempts(facts)
    usual_lengths, upper_lengths = expected_lengths(facts, [one.job for one in waiting], ending)
    usual, upper = play(facts, waiting, usual_lengths), play(facts, waiting, upper_lengths)
    attempts = {one.job_id: one.attempt_id for one in facts.attempts if one.state.is_open}
    found = {}
    for job_id, run in usual.runs.items():
        is_new = job_id in usual_lengths.jobs
        key = job_id if is_new else attempts[job_id]
        own, late = ((each.jobs if is_new else each.attempts)[key] for each in (usual_lengths, upper_lengths))
        found[job_id] = _job_forecast(run, usual, upper, own, late)
    until = max((found[one.job.job_id].start_at for one in waiting if one.job.job_id in found), default=0.0)
    if until <= facts.now.wall:
        return Forecast(found, usual.reasons)
    return Forecast(found, usual.reasons, _idle_share(usual.runs.values(), facts, until), until)


def known_times(facts: Facts, waiting: Sequence[WaitingJob]) -> dict[int, JobTimes]:
    """Returns the expected start and end of each of these jobs, by its id.

    Omits the jobs whose times rest on a guess. The times are those of `forecast`, which takes twice as long.
    """
    facts = _with_all_attempts(facts)
    lengths, _ = expected_lengths(facts, [one.job for one in waiting], ())
    played = play(facts, waiting, lengths)
    return {
        job_id: JobTimes(run.started_at, run.ended_at)
        for job_id, run in played.runs.items()
        if job_id in lengths.jobs and not lengths.jobs[job_id].is_guess and job_id not in played.resting
    }


def _with_all_attempts(facts: Facts) -> Facts:
    """Returns the facts with an attempt for each adopted process that no runner watches now."""
    attempts = (*facts.attempts, *unwatched_attempts(facts))
    return replace(facts, attempts=attempts, adopted_jobs=(), pending_groups=())


def _job_forecast(run: Run, usual: Played, upper: Played, own: Length, late: Length) -> JobForecast:
    """Returns the forecast of a job. own, late: the median and the upper length of its run."""
    late_run = None if run.job_id in upper.resting else upper.runs.get(run.job_id)
    start_upper = None if late_run is None else max(run.started_at, late_run.started_at)
    end_upper = None if late_run is None or late.is_guess else max(run.ended_at, late_run.ended_at)
    return JobForecast(
        run.started_at,
        run.ended_at,
        start_upper,
        end_upper,
        run.gpus,
        not own.is_guess,
        run.job_id in usual.resting,
    )


def _idle_share(runs: Iterable[Run], facts: Facts, until: float) -> float | None:
    """Returns the part of the time until then in which no job runs on a GPU that accepts jobs."""
    now = facts.now.wall
    gpus = [gpu.uuid for gpu in facts.gpus if gpu.is_in_service and gpu.suspicion is None]
    busy_until, busy_s = dict.fromkeys(gpus, now), 0.0
    for run in sorted(runs, key=lambda run: run.started_at):
        for uuid in run.gpus:
            if uuid in busy_until:
                begin, end = max(run.started_at, busy_until[uuid]), min(run.ended_at, until)
                busy_s += max(0.0, end - begin)
                busy_until[uuid] = max(busy_until[uuid], end)
    return 1.0 - busy_s / (len(gpus) * (until - now)) if gpus else None
