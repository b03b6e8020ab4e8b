"""Values for what a line of a log says about progress."""

from __future__ import annotations

from typing import NamedTuple


class Counter(NamedTuple):
    """A counter with a total. label: the last words before it, which tell the counters of a log apart.

    elapsed_s: the seconds that a bar shows for its work so far. is_bar: whether it is a bar, which is drawn
    until it is full. is_inner: whether the line shows that the counter starts again with every epoch.
    is_nested: whether another bar encloses it. is_percent: whether it counts percent.
    """

    label: str
    current: float
    total: float
    elapsed_s: float | None = None
    is_bar: bool = False
    is_inner: bool = False
    is_nested: bool = False
    is_percent: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the counter has reached its total."""
        return self.current >= self.total


class Epoch(NamedTuple):
    """An epoch. is_exact: whether `number` is the number of finished epochs, possibly with a fraction.

    is_over: whether the line reports the end of the epoch, not its beginning.
    """

    number: float
    total: float | None = None
    is_exact: bool = False
    is_over: bool = False


class Mark(NamedTuple):
    """The progress that a line shows.

    line: its number; step: a step without a total; percent: 0 to 100; is_from_zero: whether the line shows
    that epochs count from 0.
    """

    line: int
    counter: Counter | None = None
    epoch: Epoch | None = None
    step: float | None = None
    percent: float | None = None
    is_from_zero: bool = False
