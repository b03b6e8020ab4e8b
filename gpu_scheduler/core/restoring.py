"""Decides what becomes of an attempt that a record takes in from its folder: its end is recorded, its job is
held, or it stays open.

Nothing is launched again: what the folder does not tell, such as a retry that was used up, counts against it.
Pure.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.actions import Action, Close, Cooled, Move, Release
from gpu_scheduler.core.facts import Attempt, Settings
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.settle import settle
from gpu_scheduler.core.states import JobState, Outcome


def take_in(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """The actions for the newest attempt of a job. Without a Close among them it stays open, as one that runs
    or has processes left; the rules for all open attempts settle it then."""
    seen = attempt.sighting
    if seen.result is None and seen.claim == "void":
        reason = f"it had not begun when its record was lost; `retry {attempt.job_id}` runs it"
        return _over(_closed(attempt, Outcome.NOT_STARTED, JobState.HELD, reason))
    if seen.result is None and attempt.survivors and seen.claim != "live":
        return []
    # Without a line it is not run again by its retries.
    judged = replace(attempt, lineless=True, survivors=attempt.survivors or ())
    actions = settle(judged, now, settings)
    ended = next((action for action in actions if isinstance(action, Close)), None)
    if ended is None:
        return [action for action in actions if isinstance(action, Move)]
    return [ended] if attempt.survivors else _over(ended)


def supersede(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """The actions for an attempt that another one of its job followed: it is over, its job is not."""
    ended = next((one for one in take_in(attempt, now, settings) if isinstance(one, Close)), None)
    if ended is None:
        ended = _closed(attempt, Outcome.INTERRUPTED, JobState.QUEUED, "another attempt followed")
    ended = replace(ended, state=JobState.QUEUED, job_outcome=None, not_before=None)
    return [ended] if attempt.survivors else _over(ended)


def _closed(attempt: Attempt, outcome: Outcome, state: JobState, reason: str) -> Close:
    return Close(
        attempt.job_id, attempt.attempt_id, outcome, state, None, reason=reason,
        oom_used=attempt.oom_used, fail_used=attempt.fail_used,
    )  # fmt: skip


def _over(ended: Close) -> list[Action]:
    """Nothing of it is left, and its GPUs need no time to cool."""
    return [ended, Release(ended.attempt_id), Cooled(ended.attempt_id)]
