"""Detaches open attempts in a copied store, which belong to the original.

The processes of the original carry their tokens: the copy neither ends them nor launches them again. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling.actions import (
    Action,
    FinishAttempt,
    RecordMemoryReleased,
    ReleaseAllocation,
)
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.scheduling.reconcile import reconcile
from gpu_scheduler.core.scheduling.settings import Settings


def detach(attempt: Attempt, now: Now, settings: Settings, original: str) -> list[Action]:
    """Returns the actions for an attempt, without a process scan. original: the original data directory.

    An attempt with a result ended before the copy was made; the job of any other attempt is held.
    """
    this = attempt.attempt_id
    if not attempt.state.is_open:
        return [
            *([ReleaseAllocation(this)] if attempt.state is AttemptState.ENDED else []),
            RecordMemoryReleased(this),
        ]
    if attempt.status.result is not None:
        return [*reconcile(replace(attempt, survivors=()), now, settings), RecordMemoryReleased(this)]
    step = NextStep(NextKind.HELD, job_id=attempt.job_id)
    reason = StateReason(ReasonKind.IN_ORIGINAL_STORE, subject=original, next_steps=(step,))
    held = FinishAttempt(
        attempt.job_id, this, Outcome.INTERRUPTED, JobState.HELD, None, reason=reason,
        oom_retries_used=attempt.oom_retries_used, fail_retries_used=attempt.fail_retries_used,
    )  # fmt: skip
    return [held, ReleaseAllocation(this), RecordMemoryReleased(this)]
