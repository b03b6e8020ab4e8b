"""A trouble: what is wrong with a place that we write to, and what the user can do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """what: the place in words ("log folder"); problem: a predicate ("is on a full disk"); stops: nothing new
    is started while it lasts. Running jobs go on in any case."""

    what: str
    path: str
    problem: str
    remedy: str
    stops: bool

    def __str__(self) -> str:
        return f"{self.what} {self.path} {self.problem}: {self.remedy}"
