"""What a check found, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`. remedy: what to do, "" where nothing is to be done.

    bad: something will not work; warn: it may go wrong, or does in some cases.
    """

    check: str
    grade: Grade
    says: str
    remedy: str = ""


def ok(check: str, says: str) -> Finding:
    """Nothing is to be done."""
    return Finding(check, "ok", says)


def warn(check: str, says: str, remedy: str) -> Finding:
    """Something may go wrong."""
    return Finding(check, "warn", says, remedy)


def bad(check: str, says: str, remedy: str) -> Finding:
    """Something will not work."""
    return Finding(check, "bad", says, remedy)
