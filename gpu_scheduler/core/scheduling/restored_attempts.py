"""Decides what happens to attempts in a store that was restored from their folders or copied.

A restored attempt ends, or its job is held, or the attempt stays open. Nothing is launched again, because a
folder does not record everything that a retry depends on, such as the number of retries used. In a copied
store, the open attempts and their processes belong to the original store, so the copy neither ends them nor
launches them again.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling.actions import (
    Action,
    FinishAttempt,
    HoldJob,
    RecordMemoryReleased,
    ReleaseAllocation,
    Transition,
)
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.scheduling.reconcile_attempt import reconcile
from gpu_scheduler.core.scheduling.settings import Settings


def restore(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Returns the actions for the newest attempt of a job in a restored store.

    If there is no FinishAttempt among them, the attempt stays open, because it is running or has remaining
    processes. It is then reconciled like every open attempt.
    """
    status = attempt.status
    if status.result is None and status.claim == "void":
        return _with_release(_hold(attempt, Outcome.NOT_STARTED, StateReason(ReasonKind.STORE_LOST)))
    if status.result is None and attempt.survivors and status.claim != "live":
        return []
    # An attempt whose source counts as missing is never retried.
    orphaned = replace(attempt, source_missing=True, survivors=attempt.survivors or ())
    actions = reconcile(orphaned, now, settings)
    ended = next((action for action in actions if isinstance(action, FinishAttempt)), None)
    if ended is None:
        return [action for action in actions if isinstance(action, Transition)]
    return [ended] if attempt.survivors else _with_release(ended)


def supersede(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Returns the actions for an attempt that was followed by another one: it ends, but its job does not."""
    ended = next((one for one in restore(attempt, now, settings) if isinstance(one, FinishAttempt)), None)
    if ended is None:
        superseded = StateReason(ReasonKind.SUPERSEDED)
        ended = _finish_attempt(attempt, Outcome.INTERRUPTED, JobState.QUEUED, superseded)
    ended = replace(ended, state=JobState.QUEUED, job_outcome=None, not_before=None)
    return [ended] if attempt.survivors else _with_release(ended)


def detach(attempt: Attempt, now: Now, settings: Settings, original: str) -> list[Action]:
    """Returns the actions for an attempt in a copied store, without a process scan.

    original: the original data directory. An attempt with a result ended before the store was copied. The job
    of any other attempt is held.
    """
    this = attempt.attempt_id
    if not attempt.state.is_open:
        return [
            *([ReleaseAllocation(this)] if attempt.state is AttemptState.ENDED else []),
            RecordMemoryReleased(this),
        ]
    if attempt.status.result is not None:
        return [*reconcile(replace(attempt, survivors=()), now, settings), RecordMemoryReleased(this)]
    return _with_release(_hold(attempt, Outcome.INTERRUPTED, _in_original(original)))


def detach_process(job_id: int, original: str) -> HoldJob:
    """Returns the hold, in a copied store, of a queued job that is an adopted process."""
    return HoldJob(job_id, "copy", _held(_in_original(original), job_id))


def _in_original(original: str) -> StateReason:
    return StateReason(ReasonKind.IN_ORIGINAL_STORE, subject=original)


def _held(reason: StateReason, job_id: int) -> StateReason:
    return replace(reason, next_steps=(NextStep(NextKind.HELD, job_id=job_id),))


def _hold(attempt: Attempt, outcome: Outcome, reason: StateReason) -> FinishAttempt:
    return _finish_attempt(attempt, outcome, JobState.HELD, _held(reason, attempt.job_id))


def _finish_attempt(
    attempt: Attempt, outcome: Outcome, state: JobState, reason: StateReason
) -> FinishAttempt:
    return FinishAttempt(
        attempt.job_id, attempt.attempt_id, outcome, state, None, reason=reason,
        oom_retries_used=attempt.oom_retries_used, fail_retries_used=attempt.fail_retries_used,
        recoveries=attempt.recoveries, checkpoint=attempt.known_checkpoint,
    )  # fmt: skip


def _with_release(ended: FinishAttempt) -> list[Action]:
    """Returns the end of an attempt without processes, and the release of its GPUs and their memory."""
    return [ended, ReleaseAllocation(ended.attempt_id), RecordMemoryReleased(ended.attempt_id)]
