"""The input and the findings of one part of the stress tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

#: Maximum number of faults that are described. All faults are counted.
MAX_MESSAGES = 30


@dataclass(frozen=True)
class Order:
    """The input of one part.

    factor: the size, where 1.0 is full size; folder: an empty folder; is_control: run the negative control
    instead of the scheduler.
    """

    seed: int
    factor: float
    folder: Path
    is_control: bool = False

    def scaled(self, full: int, least: int = 1) -> int:
        """Scales the number `full` to the size of this run; `least` is the smallest result."""
        return max(least, round(full * self.factor))

    def rng(self, salt: str = "") -> random.Random:
        """Returns a random number generator that gives the same numbers for the same seed."""
        return random.Random(f"{self.seed} {salt}")

    @property
    def full_length(self) -> bool:
        """Whether single jobs may take as long as they do at full size."""
        return self.factor >= 0.2


@dataclass
class Findings:
    """The findings of one part.

    figures: counts and measurements by name, for people; faults: number of faults by kind; skipped: why the
    part could not run on this machine, or None.
    """

    figures: dict[str, int | float | str] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    skipped: str | None = None

    def count(self, name: str, by: int = 1) -> None:
        """Adds `by` to the figure with this name."""
        self.figures[name] = int(self.figures.get(name, 0)) + by

    def fault(self, kind: str, text: str) -> None:
        """Counts a fault of this kind. Keeps the descriptions of the first MAX_MESSAGES faults."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(f"{kind}: {text}")

    @property
    def clean(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"skipped: {self.skipped}"
        figures = ", ".join(f"{name}: {value}" for name, value in self.figures.items())
        faults = ", ".join(f"{kind}: {count}" for kind, count in self.faults.items()) or "no faults"
        return f"{faults} ({figures})"
