"""Screen windows that were closed under a running job: told once per attempt. The job goes on without one."""

from __future__ import annotations

from gpu_scheduler.core.actions import NoteWindowClosed
from gpu_scheduler.core.facts import Facts


def closed_windows(facts: Facts) -> list[NoteWindowClosed]:
    """Returns the notes about open attempts."""
    return [
        NoteWindowClosed(attempt.job_id, attempt.attempt_id)
        for attempt in facts.attempts
        if attempt.outcome is None and attempt.sighting.window is False and not attempt.window_closed
    ]
