"""Remembers what was computed from values that never change, as long as they are the same objects.

In a playback, most GPUs and the attempts on them stay as they are for many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, TypeVar

_T = TypeVar("_T")


class Remembered:
    """The newest result of each computation."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], tuple[Sequence[object], Any]] = {}

    def get(self, name: tuple[str, ...], values: Sequence[object], compute: Callable[[], _T]) -> _T:
        """Returns what the computation with this name gives for these values."""
        known = self._found.get(name)
        if known is None or len(known[0]) != len(values) or not all(map(is_, known[0], values)):
            known = self._found[name] = values, compute()
        found: _T = known[1]
        return found
