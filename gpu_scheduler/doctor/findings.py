"""Defines the findings of checks and formats them as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.views.widths import rows
from gpu_scheduler.views.words import shortened, visible

Grade = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. remedy: what to do; "" if nothing.

    bad: something will not work; warn: it may go wrong, or does in some cases.
    """

    check: str
    grade: Grade
    says: str
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


def of_trouble(trouble: Trouble) -> Finding:
    """Returns the finding of a health issue; bad if it stops new starts."""
    judge = bad if trouble.stops else warn
    return judge(trouble.what, f"{trouble.path} {trouble.problem}", trouble.remedy)


def finding_object(finding: Finding) -> dict[str, str]:
    """Returns a finding as docs/json.md describes it."""
    return {
        "check": finding.check,
        "grade": finding.grade,
        "message": finding.says,
        "remedy": finding.remedy,
    }


def line(finding: Finding, columns: int | None = None) -> str:
    """Formats a finding and its remedy as lines. width: terminal width to wrap to; None: no wrapping."""
    head = f"{finding.grade:<4}  {finding.check:<20}  "
    texts = [visible(shortened(finding.says)), *([visible(finding.remedy)] if finding.remedy else [])]
    if columns is not None:
        texts = [row for text in texts for row in rows(text, max(20, columns - len(head)))]
    return head + f"\n{' ' * len(head)}".join(texts)
