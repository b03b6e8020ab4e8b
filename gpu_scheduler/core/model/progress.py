"""How far a job is, as one piece of evidence shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProgressUnit(Enum):
    """The unit in which the evidence counts. CHECKPOINT: steps, known from the newest checkpoint."""

    STEP = "step"
    EPOCH = "epoch"
    PERCENT = "percent"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    current: the number of units that are done; total: the number of all units, None if unknown. at: when the
    job had come that far, in wall seconds; None if unknown, which counts as now. elapsed_s: the seconds that
    the job itself reports for the work done since it started or resumed; None if it reports none.
    """

    current: float
    total: float | None
    unit: ProgressUnit
    at: float | None = None
    elapsed_s: float | None = None

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None if the total is unknown."""
        return None if not self.total else min(1.0, self.current / self.total)

    @property
    def is_complete(self) -> bool:
        """Whether everything is done (N of N)."""
        return self.total is not None and self.current >= self.total
