"""Builds state reasons with a given text, and formats stored reasons."""

from __future__ import annotations

from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.show.job_text import reason_text


def worded(text: str) -> StateReason:
    """Returns a reason with this text."""
    return StateReason(ReasonKind.RUNNER_REPORT, message=text)


def words(reason: StateReason | str | None) -> str:
    """Returns the text of a reason, which may be in its stored form; "" if the reason is None."""
    if reason is None:
        return ""
    return reason_text(reason if isinstance(reason, StateReason) else StateReason.from_json(reason))
