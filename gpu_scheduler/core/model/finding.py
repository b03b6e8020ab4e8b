"""Defines the findings of checks of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.core.model.health_issue import HealthIssue

Grade = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. remedy: what to do; "" if nothing.

    bad: something will not work; warn: it may go wrong, or does in some cases.
    """

    check: str
    grade: Grade
    message: str
    remedy: str = ""


def ok(check: str, says: str) -> Finding:
    """Returns a finding that needs no action."""
    return Finding(check, "ok", says)


def warn(check: str, says: str, remedy: str) -> Finding:
    """Returns a finding of something that may go wrong."""
    return Finding(check, "warn", says, remedy)


def bad(check: str, says: str, remedy: str) -> Finding:
    """Returns a finding of something that will not work."""
    return Finding(check, "bad", says, remedy)


def from_health_issue(issue: HealthIssue) -> Finding:
    """Returns the finding of a health issue; bad if it stops new starts."""
    judge = bad if issue.blocks_starts else warn
    return judge(issue.subject, f"{issue.path} {issue.problem}", issue.remedy)
