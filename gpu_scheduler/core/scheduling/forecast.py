"""Forecasts when the running jobs end, and when the waiting jobs start and end.

The queue is played forward twice (`playback`): once with the median of each run time, once with the upper
estimate, within which nine of ten runs end. So the upper times are those of a queue in which every job takes
long. A job without an estimate counts with a guess. Its times, and those of every job that starts on a GPU
which it or a job after it has used, rest on that guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import SetWaitReason
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.departure import departure_s
from gpu_scheduler.core.scheduling.effective_need import allowed_gpus
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.playback import Playback, Run
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.queue_reservation import ExpectedEnd, expected_ends
from gpu_scheduler.core.scheduling.run_times import Estimate

#: The upper time of a run, as a multiple of the guessed one, if there is no upper estimate. Nothing shows it.
_GUESSED_SPREAD = 2.0


@dataclass(frozen=True)
class WaitingJob:
    """A job that will start without the help of a user.

    parents: the unfinished jobs for which it waits. not_before: the earliest start in wall seconds, after a
    failed launch; 0 if there is no delay.
    """

    job: QueuedJob
    resources: ResourceSpec
    parents: tuple[int, ...] = ()
    not_before: float = 0.0


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


@dataclass(frozen=True)
class _Time:
    """A run time in seconds. is_guess: whether nothing is known about it."""

    seconds: float
    is_guess: bool


@dataclass(frozen=True)
class _Played:
    """The first start and the last end of each job, and the jobs whose starts rest on a guess."""

    runs: Mapping[int, Run]
    resting: frozenset[int]
    reasons: Mapping[str, WaitReason]


def forecast(facts: Facts, waiting: Sequence[WaitingJob], ending: Iterable[int] = ()) -> Forecast:
    """Returns the forecast of the running jobs and of these waiting ones.

    facts: pending groups do not count. ending: the ids of attempts whose commands have ended already.
    """
    unwatched = unwatched_attempts(facts)
    facts = replace(facts, attempts=(*facts.attempts, *unwatched), adopted_jobs=(), pending_groups=())
    estimates = {one.job.job_id: facts.run_times.estimate(one.job.run_time) for one in waiting}
    ended = frozenset(ending)
    ends = expected_ends(facts)
    left = {
        one.attempt_id: (_Time(0.0, is_guess=False),) * 2
        if one.attempt_id in ended
        else _times_left(one, ends[one.attempt_id], facts)
        for one in facts.attempts
    }
    usual, upper = (
        _play(
            facts,
            waiting,
            {job_id: _times(estimate)[which] for job_id, estimate in estimates.items()},
            {attempt_id: times[which] for attempt_id, times in left.items()},
        )
        for which in (0, 1)
    )
    attempts = {one.job_id: one.attempt_id for one in facts.attempts if one.state.is_open}
    found = {}
    for job_id, run in usual.runs.items():
        own = _times(estimates[job_id]) if job_id in estimates else left[attempts[job_id]]
        found[job_id] = _job_forecast(run, job_id in usual.resting, upper, own)
    starts = [found[one.job.job_id].start_at for one in waiting if one.job.job_id in found]
    until = max(starts, default=facts.now.wall)
    return Forecast(
        found,
        usual.reasons,
        _idle_share(usual.runs.values(), facts, until) if until > facts.now.wall else None,
        until if until > facts.now.wall else None,
    )


def _job_forecast(run: Run, rests_on_guess: bool, upper: _Played, own: tuple[_Time, _Time]) -> JobForecast:
    late = upper.runs.get(run.job_id)
    is_start_known = late is not None and run.job_id not in upper.resting
    start_upper = max(run.started_at, late.started_at) if late is not None and is_start_known else None
    end_upper = max(run.ended_at, late.ended_at) if late is not None and start_upper is not None else None
    return JobForecast(
        run.started_at,
        run.ended_at,
        start_upper,
        None if own[1].is_guess else end_upper,
        run.gpus,
        not own[0].is_guess,
        rests_on_guess,
    )


def _times(estimate: Estimate) -> tuple[_Time, _Time]:
    """Returns the median and the upper run time of a job that has not started."""
    usual = _Time(estimate.remaining_s(0.0), estimate.predicted_s is None)
    return usual, _upper(usual, estimate.upper_s)


def _upper(usual: _Time, upper_s: float) -> _Time:
    """Returns the upper time for a median. upper_s: the upper estimate, infinite if there is none."""
    if upper_s < math.inf:
        return _Time(max(usual.seconds, upper_s), is_guess=False)
    return _Time(_GUESSED_SPREAD * usual.seconds, is_guess=True)


def _times_left(attempt: Attempt, end: ExpectedEnd, facts: Facts) -> tuple[_Time, _Time]:
    """Returns the median and the upper time for which an attempt will still hold its GPUs.

    The estimate from its progress counts as both.
    """
    usual = _Time(end.in_s, not end.is_known)
    leaves = departure_s(attempt, facts.now, facts.settings) is not None
    if leaves or attempt.remaining_s is not None:
        return usual, usual
    age_s = 0.0 if attempt.started_at is None else max(0.0, facts.now.wall - attempt.started_at)
    upper_s = facts.run_times.estimate(attempt.run_time).remaining_upper_s(age_s)
    return usual, _upper(usual, upper_s)


def _play(
    facts: Facts, waiting: Sequence[WaitingJob], times: Mapping[int, _Time], left: Mapping[int, _Time]
) -> _Played:
    """Plays the queue until nothing is left that ends. times: by job; left: by attempt."""
    now = facts.now.wall
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    missing = {one.job.job_id: set(one.parents) for one in waiting if one.parents}
    children: dict[int, list[WaitingJob]] = {}
    ready: dict[ResourceSpec, list[QueuedJob]] = {}
    for one in waiting:
        for parent in set(one.parents):
            children.setdefault(parent, []).append(one)
        if not one.parents and one.not_before <= now and one.job.job_id not in reserved:
            ready.setdefault(one.resources, []).append(one.job)
    groups = tuple(PendingGroup(resources, tuple(jobs)) for resources, jobs in ready.items())
    box = Playback(
        replace(facts, pending_groups=groups),
        lambda job: times[job.job_id].seconds if job.job_id in times else 0.0,
        {attempt_id: now + one.seconds for attempt_id, one in left.items()},
    )
    for one in waiting:
        if not one.parents and one.not_before > now:
            box.submit(one.job, one.resources, one.not_before)
    active = {one.attempt_id for one in facts.attempts if one.state.is_open}
    known = {one.attempt_id for one in facts.attempts}
    runs: dict[int, Run] = {}
    for run in box.play():
        if run.attempt_id in known and run.attempt_id not in active:
            continue  # its job has ended already, or waits again
        first = runs.get(run.job_id)
        runs[run.job_id] = run if first is None else replace(run, started_at=first.started_at)
        for child in () if run.is_preempted else children.get(run.job_id, ()):
            at, of = max(run.ended_at, child.not_before), missing[child.job.job_id]
            of.discard(run.job_id)
            if not of:
                box.submit(replace(child.job, waiting_since=at), child.resources, at)
    guesses = {
        one.job_id for one in facts.attempts if one.attempt_id in active and left[one.attempt_id].is_guess
    }
    guesses |= {job_id for job_id, one in times.items() if one.is_guess}
    reasons = _final_reasons(box)
    return _Played(runs, _resting_on_guesses(runs.values(), guesses, waiting, facts), reasons)


def _final_reasons(box: Playback) -> dict[str, WaitReason]:
    """Returns why the jobs wait that have not started, by the key of their resources."""
    if not box.waiting:
        return {}
    return {one.spec_key: one.reason for one in place_jobs(box.facts) if isinstance(one, SetWaitReason)}


def _resting_on_guesses(
    runs: Iterable[Run], guesses: set[int], waiting: Sequence[WaitingJob], facts: Facts
) -> frozenset[int]:
    """Returns the jobs whose starts rest on a guess.

    That is a job that starts later than now if a run whose length or start rests on a guess has begun before
    on a GPU that the job may use, or if one of its parents is such a job.
    """
    by_id = {one.job.job_id: one for one in waiting}
    usable = {
        one.resources: frozenset(gpu.uuid for gpu in allowed_gpus(one.resources, facts)) for one in waiting
    }
    now = facts.now.wall
    resting: set[int] = set()
    guessed_gpus: set[str] = set()
    for at, group in groupby(sorted(runs, key=_start), key=_start):
        together = list(group)
        for run in together:
            one = by_id.get(run.job_id)
            if one is None or at <= now:
                continue
            uncertain = guesses | resting
            if guessed_gpus & usable[one.resources] or any(parent in uncertain for parent in one.parents):
                resting.add(run.job_id)
        for run in together:
            if run.job_id in guesses or run.job_id in resting:
                guessed_gpus.update(run.gpus)
    return frozenset(resting)


def _start(run: Run) -> float:
    return run.started_at


def _idle_share(runs: Iterable[Run], facts: Facts, until: float) -> float | None:
    """Returns the part of the time until then in which no job runs on a GPU that accepts jobs."""
    now = facts.now.wall
    gpus = [
        gpu.uuid for gpu in facts.gpus if not gpu.paused and (gpu.sample is None or gpu.sample.fault is None)
    ]
    busy_until, busy_s = dict.fromkeys(gpus, now), 0.0
    for run in sorted(runs, key=_start):
        for uuid in run.gpus:
            if uuid in busy_until:
                begin, end = max(run.started_at, busy_until[uuid]), min(run.ended_at, until)
                busy_s += max(0.0, end - begin)
                busy_until[uuid] = max(busy_until[uuid], end)
    return 1.0 - busy_s / (len(gpus) * (until - now)) if gpus else None
