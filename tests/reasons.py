"""Builds reasons with given words, and reads the words of stored ones."""

from __future__ import annotations

from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.views.reason_text import reason_text


def worded(text: str) -> StateReason:
    """Returns a reason with these words."""
    return StateReason(ReasonKind.RUNNER_REPORT, message=text)


def words(reason: StateReason | str | None) -> str:
    """Returns the words of a reason, or of one as the store has it; "" without one."""
    if reason is None:
        return ""
    return reason_text(reason if isinstance(reason, StateReason) else StateReason.from_json(reason))
