"""Estimates when a job will finish: elapsed time x remaining work / work done in that time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from gpu_scheduler.core.model.job import Checkpoint, Progress

#: A longer estimate, of more than ten years, says only that the job has hardly begun.
_MAX_LEFT_S = 10 * 365 * 86400.0
#: Number of first readings of a log that show how much was done before it.
FIRST_READINGS = 5
#: A lone reading shows that an attempt began with nothing if it is at most this part of the total.
_NEAR_BEGINNING = 0.05
#: Factor by which the first reading may exceed the greatest step between the next ones.
_UNEVEN = 1.5


class JobProgress(Struct, frozen=True):
    """The progress of a job at one moment, as far as it is known.

    progress: None if nothing shows it. checkpoint: the newest complete checkpoint, None if there is none.
    remaining_s, finish_at: the estimated seconds until the job finishes, and when that is in wall seconds;
    None if the evidence does not carry an estimate.
    """

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    remaining_s: float | None = None
    finish_at: float | None = None

    @property
    def percent(self) -> float | None:
        """The part that is done in percent, at most 100; None if unknown."""
        fraction = None if self.progress is None else self.progress.fraction
        return None if fraction is None else 100 * fraction


def remaining_s(
    progress: Progress, first: Progress | None = None, *, started_at: float | None, now: float
) -> float | None:
    """Returns the estimated seconds until a job finishes; None if the evidence does not carry an estimate.

    first: the first known reading of the attempt, which may be `progress` itself; only the work after it
    counts, unless it is near the beginning. If its moment is unknown, it is what was done at the start; a job
    that counts less than that counts only its own work. None if there is none. started_at, now: in wall
    seconds. Evidence from an earlier moment is extrapolated from that moment, so that the estimate decreases
    until the next evidence; once it is used up, there is none.
    """
    before = 0.0 if first is None else first.current
    if first is not None and first.at is not None:
        if work_before([before], first.total or 0.0) == 0:
            before = 0.0
        else:
            started_at = first.at
    if progress.total is None or progress.is_complete:
        return None
    at = now if progress.at is None else min(progress.at, now)
    elapsed = progress.elapsed_s
    if elapsed is None:
        elapsed = None if started_at is None else at - started_at
    done = progress.current - (before if before <= progress.current else 0.0)
    if elapsed is None or elapsed <= 0 or done <= 0:
        return None
    left = elapsed * (progress.total - progress.current) / done - (now - at)
    return left if 0 < left <= _MAX_LEFT_S else None


def work_before(readings: Sequence[float], total: float) -> float | None:
    """Returns how many units were done when an attempt started; None if its readings do not show it.

    readings: the first values above 0 of its counter, which grow. If the program has resumed by itself, the
    first one is farther from 0 than from the next one.
    """
    if not readings:
        return 0.0
    steps = [after - before for before, after in pairwise(readings)]
    if not steps:
        return 0.0 if readings[0] <= max(1.0, _NEAR_BEGINNING * total) else None
    return 0.0 if readings[0] <= _UNEVEN * max(steps) else readings[0] - max(steps)
