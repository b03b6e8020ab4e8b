"""What a check found, as a value and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.views.widths import rows
from gpu_scheduler.views.words import shortened, visible

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


def of_trouble(trouble: Trouble) -> Finding:
    """Bad where it stops new starts."""
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
    """A finding as a line, and another for the remedy. columns: of the terminal that they are fitted to."""
    head = f"{finding.grade:<4}  {finding.check:<20}  "
    said = [visible(shortened(finding.says)), *([visible(finding.remedy)] if finding.remedy else [])]
    if columns is not None:
        said = [row for text in said for row in rows(text, max(20, columns - len(head)))]
    return head + f"\n{' ' * len(head)}".join(said)
