"""Defines the marks of jobs on the status board and in the lines that `start` prints."""

from __future__ import annotations

from gpu_scheduler.core.model.states import Outcome

RUNNING, WAITING, RETRY, SUCCESS, FAILURE = "▶", "·", "↻", "✓", "✗"
WARNING, NONE = "!", " "


def of_outcome(outcome: str | None) -> str:
    """Returns the mark of a finished job."""
    return SUCCESS if outcome in (Outcome.COMPLETED.value, Outcome.ENDED.value) else FAILURE
