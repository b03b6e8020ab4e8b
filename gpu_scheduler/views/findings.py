"""Formats the findings of checks as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.core.text.formatting import count_noun, limit_length, safe_text
from gpu_scheduler.views.text_width import wrap_words


def finding_object(finding: Finding) -> dict[str, str]:
    """Returns a finding as the object that docs/json.md describes."""
    return {
        "check": finding.name,
        "grade": finding.grade,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def format_finding(finding: Finding, width: int | None = None) -> str:
    """Formats a finding and its remedy as lines. width: the maximum line width, None = unlimited."""
    head = f"{finding.grade:<4}  {finding.name:<20}  "
    texts = [
        safe_text(limit_length(finding.message)),
        *([safe_text(finding.remedy)] if finding.remedy else []),
    ]
    if width is not None:
        texts = [row for text in texts for row in wrap_words(text, max(20, width - len(head)))]
    return head + f"\n{' ' * len(head)}".join(texts)


def summary_text(findings: Sequence[Finding]) -> str:
    """Formats the numbers of warnings and of bad findings."""
    grades = [finding.grade for finding in findings]
    return f"{count_noun(grades.count('warn'), 'warning')}, {grades.count('bad')} bad"


def findings_to_json(findings: Sequence[Finding]) -> str:
    """Formats the findings of `doctor` as JSON, as docs/json.md describes."""
    is_ok = all(finding.grade != "bad" for finding in findings)
    value = {"ok": is_ok, "checks": [finding_object(one) for one in findings]}
    return json.dumps(value, indent=2)
