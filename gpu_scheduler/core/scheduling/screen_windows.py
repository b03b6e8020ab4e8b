"""Detects Screen windows that were closed while their jobs run, once per attempt; the jobs continue."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.actions import RecordWindowClosed
from gpu_scheduler.core.scheduling.facts import Facts


def closed_windows(facts: Facts) -> list[RecordWindowClosed]:
    """Returns the closed windows of open attempts that are not recorded yet."""
    return [
        RecordWindowClosed(attempt.attempt_id)
        for attempt in facts.attempts
        if attempt.state.is_open
        and attempt.status.window_open is False
        and not attempt.window_closed_recorded
    ]
