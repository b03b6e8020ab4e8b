"""Defines the findings of checks and formats them as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.core.model.health_issue import HealthIssue
from gpu_scheduler.views.formatting import limit_length, safe_text
from gpu_scheduler.views.text_width import wrap_words

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


def finding_object(finding: Finding) -> dict[str, str]:
    """Returns a finding as docs/json.md describes it."""
    return {
        "check": finding.check,
        "grade": finding.grade,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def format_finding(finding: Finding, width: int | None = None) -> str:
    """Formats a finding and its remedy as lines. width: terminal width to wrap to; None: no wrapping."""
    head = f"{finding.grade:<4}  {finding.check:<20}  "
    texts = [
        safe_text(limit_length(finding.message)),
        *([safe_text(finding.remedy)] if finding.remedy else []),
    ]
    if width is not None:
        texts = [row for text in texts for row in wrap_words(text, max(20, width - len(head)))]
    return head + f"\n{' ' * len(head)}".join(texts)
