"""Estimates how long the jobs of a forecast run: the median, and the upper estimate."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_scheduler.core.scheduling.departure import departure_s
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, QueuedJob
from gpu_scheduler.core.scheduling.queue_reservation import ExpectedEnd, expected_ends
from gpu_scheduler.core.scheduling.run_times import Estimate

#: The upper length of a run, as a multiple of the guessed one, if there is no upper estimate. It only lets
#: the playback go on: what rests on it is not shown.
_GUESSED_SPREAD = 2.0


@dataclass(frozen=True)
class Length:
    """The length of a run, or of its rest, in seconds. is_guess: whether nothing is known about it."""

    seconds: float
    is_guess: bool


@dataclass(frozen=True)
class Lengths:
    """The lengths of the runs that will start, by job, and of the rests of attempts, by attempt."""

    jobs: Mapping[int, Length]
    attempts: Mapping[int, Length]


def expected_lengths(
    facts: Facts, jobs: Iterable[QueuedJob], ending: Collection[int]
) -> tuple[Lengths, Lengths]:
    """Returns the median and the upper lengths.

    ending: the ids of attempts whose commands have ended already.
    """
    ends = expected_ends(facts)
    none = Length(0.0, is_guess=False), Length(0.0, is_guess=False)
    new = {job.job_id: _lengths(facts.run_times.estimate(job.run_time)) for job in jobs}
    left = {
        one.attempt_id: none if one.attempt_id in ending else _lengths_left(one, ends[one.attempt_id], facts)
        for one in facts.attempts
    }
    usual = Lengths({key: each[0] for key, each in new.items()}, {key: each[0] for key, each in left.items()})
    upper = Lengths({key: each[1] for key, each in new.items()}, {key: each[1] for key, each in left.items()})
    return usual, upper


def _lengths(estimate: Estimate) -> tuple[Length, Length]:
    """Returns the median and the upper run time of a job that has not started."""
    usual = Length(estimate.remaining_s(0.0), estimate.predicted_s is None)
    return usual, _upper(usual, estimate.upper_s)


def _upper(usual: Length, upper_s: float) -> Length:
    """Returns the upper time for a median. upper_s: the upper estimate, infinite if there is none."""
    if upper_s < math.inf:
        return Length(max(usual.seconds, upper_s), is_guess=False)
    return Length(_GUESSED_SPREAD * usual.seconds, is_guess=True)


def _lengths_left(attempt: Attempt, end: ExpectedEnd, facts: Facts) -> tuple[Length, Length]:
    """Returns the median and the upper time for which an attempt will still hold its GPUs.

    The estimate from its progress counts as both.
    """
    usual = Length(end.in_s, not end.is_known)
    leaves = departure_s(attempt, facts.now, facts.settings) is not None
    if leaves or attempt.remaining_s is not None:
        return usual, usual
    age_s = 0.0 if attempt.started_at is None else max(0.0, facts.now.wall - attempt.started_at)
    upper_s = facts.run_times.estimate(attempt.run_time).remaining_upper_s(age_s)
    return usual, _upper(usual, upper_s)
