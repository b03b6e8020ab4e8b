"""Estimates when a job will finish: elapsed time x remaining work / work done in that time."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.core.model.progress import Progress

#: A longer estimate, of more than ten years, says only that the job has hardly begun.
_MAX_LEFT_S = 10 * 365 * 86400.0


@dataclass(frozen=True)
class JobProgress:
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
    progress: Progress, *, started_at: float | None, now: float, resumed_at: float | None = 0.0
) -> float | None:
    """Returns the estimated seconds until a job finishes; None if the evidence does not carry an estimate.

    started_at, now: in wall seconds. resumed_at: the number of units that were done when the attempt started;
    None if unknown. A job that counts less than that counts only its own work. Evidence from an earlier
    moment is extrapolated from that moment, so that the estimate decreases until the next evidence; once it
    is used up, there is none.
    """
    if progress.total is None or resumed_at is None or progress.is_complete:
        return None
    at = now if progress.at is None else min(progress.at, now)
    elapsed = progress.elapsed_s
    if elapsed is None:
        elapsed = None if started_at is None else at - started_at
    done = progress.current - (resumed_at if resumed_at <= progress.current else 0.0)
    if elapsed is None or elapsed <= 0 or done <= 0:
        return None
    left = elapsed * (progress.total - progress.current) / done - (now - at)
    return left if 0 < left <= _MAX_LEFT_S else None
