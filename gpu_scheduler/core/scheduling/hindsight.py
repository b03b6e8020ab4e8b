"""Judges forecasts by what happened afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpu_scheduler.core.scheduling.actions import JobTimes


@dataclass(frozen=True)
class Hindsight:
    """By how many seconds forecasts were off, in either direction, in the median.

    jobs: the number of completed jobs with a forecast; the errors are None if there are none.
    """

    jobs: int = 0
    start_error_s: float | None = None
    end_error_s: float | None = None

    @classmethod
    def of(cls, judged: Sequence[tuple[JobTimes, JobTimes]]) -> Hindsight:
        """Returns the errors. judged: the forecast of each job, and its real times."""
        if not judged:
            return cls()
        return cls(
            len(judged),
            median(abs(real.start_at - expected.start_at) for expected, real in judged),
            median(abs(real.end_at - expected.end_at) for expected, real in judged),
        )
