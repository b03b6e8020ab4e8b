"""A health issue: a problem with a location that we write to, and its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthIssue:
    """A problem with one location.

    subject: its name ("log folder"); problem: a predicate ("is on a full disk"); blocks_starts: no job starts
    while the problem lasts. Running jobs continue in any case.
    """

    subject: str
    path: str
    problem: str
    remedy: str
    blocks_starts: bool

    def __str__(self) -> str:
        return f"{self.subject} {self.path} {self.problem}: {self.remedy}"
