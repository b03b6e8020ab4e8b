"""One part of the torture: what it is given, what it found, and when it counts as passed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

#: So many faults are told in words; all of them are counted.
TOLD = 30


@dataclass(frozen=True)
class Order:
    """How to torture. factor: 1.0 is the full size; folder: an empty one; naive: the twin that is wrong on
    purpose takes the place of ours."""

    seed: int
    factor: float
    folder: Path
    naive: bool = False

    def of(self, full: int, least: int = 1) -> int:
        """So many at this size."""
        return max(least, round(full * self.factor))

    def dice(self, salt: str = "") -> random.Random:
        """A source of random numbers that the seed repeats."""
        return random.Random(f"{self.seed} {salt}")

    @property
    def long(self) -> bool:
        """Whether single jobs may take the seconds that the full size gives them."""
        return self.factor >= 0.2


@dataclass
class Found:
    """What a part found. figures: counts and measurements by name, for people; faults: what went wrong, by
    kind; skipped: why it could not be tried here."""

    figures: dict[str, int | float | str] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    skipped: str | None = None

    def count(self, name: str, by: int = 1) -> None:
        """Add to a figure."""
        self.figures[name] = int(self.figures.get(name, 0)) + by

    def fault(self, kind: str, text: str) -> None:
        """Something that must not be: its kind is counted, and the first ones are told."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if len(self.told) < TOLD:
            self.told.append(f"{kind}: {text}")

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not self.faults

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"not tried: {self.skipped}"
        figures = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "0 faults"
        return f"{faults} ({figures})"
