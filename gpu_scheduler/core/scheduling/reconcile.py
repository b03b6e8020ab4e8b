"""Reconciles one open attempt with its folder, by the rules of docs/design.md, Reconciling.

A pending cancel counts as a `stop` in every rule. Pure: one attempt and the time in, actions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.core.failure.explanation import explain_failure, explain_launch_failure
from gpu_scheduler.core.model.attempt_status import AttemptResult, StopRequest
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.accounting import DRIVER_MIB
from gpu_scheduler.core.scheduling.actions import (
    Action,
    FinishAttempt,
    KillRunner,
    RecordMemoryReleased,
    RecordRunner,
    RecordRunnerDeath,
    Relaunch,
    ReleaseAllocation,
    RequestStop,
    ResetLaunchCount,
    Sweep,
    Transition,
    VoidClaim,
    WakeRunner,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Cancel
from gpu_scheduler.core.scheduling.retry import GpuInventory, RetryDecision, decide_retry
from gpu_scheduler.core.scheduling.settings import Settings

#: Seconds between signals to processes that do not react.
SIGNAL_INTERVAL_S = 1.0
#: Seconds past the grace period after which the runner itself is killed (docs/design.md, Reconciling).
RUNNER_OVERTIME_S = 10.0
#: Longest wait between failed launches, seconds.
MAX_RETRY_WAIT_S = 60.0

_UNKNOWN_INVENTORY = GpuInventory()
_OUTCOME_OF_CAUSE = {
    "cancelled": Outcome.CANCELLED,
    "preempted": Outcome.PREEMPTED,
    "timed_out": Outcome.TIMED_OUT,
    "machine": Outcome.INTERRUPTED,
}


def needs_process_scan(attempt: Attempt, now: Now) -> bool:
    """Returns whether the round must scan for remaining processes of this attempt."""
    status = attempt.status
    if attempt.outcome is not None:
        return attempt.released_at is None
    if status.claim == "dead" or status.result is not None:
        return status.claim == "dead"
    return _is_folder_removed(attempt) or has_unknown_runner(attempt) or _is_launch_overdue(attempt, now)


def _is_folder_removed(attempt: Attempt) -> bool:
    """Returns whether the folder of an attempt that was claimed has been removed."""
    return attempt.status.claim == "none" and not attempt.status.folder_exists and _was_claimed(attempt)


def has_unknown_runner(attempt: Attempt) -> bool:
    """Returns whether the attempt was claimed by a runner that neither the claim nor the store identifies."""
    status = attempt.status
    return status.claim == "invalid" or (
        status.claim == "none" and status.folder_exists and _was_claimed(attempt)
    )


def _was_claimed(attempt: Attempt) -> bool:
    return attempt.status.command_began or attempt.job_state in (JobState.RUNNING, JobState.STOPPING)


def _is_launch_overdue(attempt: Attempt, now: Now) -> bool:
    """Returns whether the launched runner has missed the deadline for its claim."""
    launched = attempt.status.folder_complete and attempt.launch_error is None
    return attempt.status.claim == "none" and launched and now.boot >= attempt.launch_deadline


def reconcile(
    attempt: Attempt,
    now: Now,
    settings: Settings,
    inventory: GpuInventory = _UNKNOWN_INVENTORY,
    *,
    starts_blocked: bool = False,
) -> list[Action]:
    """Returns the actions of this round for an open attempt.

    inventory: the GPUs that its job may use; starts_blocked: nothing can be launched now.
    """
    status = attempt.status
    if status.claim == "unknown":
        return []
    if status.claim == "unlocked" and status.result is None:
        # Its runner lives, but its progress cannot be observed from here: it must not count as dead.
        return []
    if status.result is not None:
        end = _finish_with_result(attempt, status.result, now, settings, inventory)
        # No process is left: one commit records its end and releases its GPUs.
        return [end, ReleaseAllocation(attempt.attempt_id)] if attempt.survivors == () else [end]
    if status.claim == "void":
        cause = _stop_cause(attempt)
        outcome = _outcome_of(cause) if cause else Outcome.NOT_STARTED
        return [_finish(attempt, outcome, now, settings, reason=None if cause else _launch_failure(attempt))]
    if status.claim in ("live", "unclaimed"):
        return [*_record_runner(attempt), *_reconcile_live(attempt, now, settings)]
    if status.claim == "dead" or _is_folder_removed(attempt):
        return _reconcile_dead(attempt, now, settings)
    if has_unknown_runner(attempt):
        return _reconcile_unknown_runner(attempt, now, settings)
    if _stop_cause(attempt):
        return _void_claim(attempt, now)
    if attempt.boot_id != now.boot_id:
        restarted = StateReason(ReasonKind.MACHINE_RESTARTED)
        return [_finish(attempt, Outcome.INTERRUPTED, now, settings, reason=restarted)]
    # With an incomplete folder no runner can be starting: the scheduler died before the launch.
    if attempt.status.folder_complete and now.boot < attempt.launch_deadline:
        return []
    if attempt.launch_error is None:
        # One of its processes still runs: the runner is late, or its claim was removed.
        if attempt.status.folder_complete and attempt.survivors:
            return []
        if starts_blocked:
            # The problem that blocks starts now also explains why no runner claimed it.
            tried = attempt.launch_count >= settings.max_launches
            return [ResetLaunchCount(attempt.attempt_id)] if tried else []
        # A launch into a folder that a full disk left incomplete does not count as failed either.
        if not attempt.status.folder_complete or attempt.launch_count < settings.max_launches:
            return [Relaunch(attempt.attempt_id)]
    return _void_claim(attempt, now, gives_up=attempt.launch_error is None)


def release_allocation(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Releases the allocation of an ended attempt, or ends the processes that are left first."""
    if attempt.survivors is None or attempt.released_at is not None:
        return []
    if not attempt.survivors:
        return [ReleaseAllocation(attempt.attempt_id)]
    return _sweep(attempt, now, settings)


def check_memory_release(
    attempt: Attempt, gpu_memory: Sequence[tuple[float | None, int | None]], now: Now, settings: Settings
) -> list[Action]:
    """Checks whether the GPUs of a released attempt have their memory back.

    gpu_memory: for each of its GPUs, in the order of `attempt.gpus`, the time of the sample and its
    unattributed memory in MiB; None = unknown.
    """
    if attempt.released_at is None:
        return []
    over = attempt.boot_id != now.boot_id or now.boot >= attempt.released_at + settings.memory_release_s
    released_at = attempt.released_at
    back = all(
        sampled_at is not None
        and sampled_at >= released_at
        and _is_memory_released(mib, attempt.baseline_mib.get(uuid, 0))
        for uuid, (sampled_at, mib) in zip(attempt.gpus, gpu_memory, strict=True)
    )
    return [RecordMemoryReleased(attempt.attempt_id)] if over or back else []


def _is_memory_released(unattributed_mib: int | None, baseline_mib: int) -> bool:
    return unattributed_mib is None or unattributed_mib <= baseline_mib + DRIVER_MIB


def _stop_cause(attempt: Attempt) -> str | None:
    """Returns why the attempt must stop: the cause of the pending cancel, else of `stop` in its folder."""
    if attempt.cancel is not None:
        return attempt.cancel.cause
    return attempt.status.stop.cause if attempt.status.stop is not None else None


def _reconcile_live(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    stop, cancel = attempt.status.stop, attempt.cancel
    job, this = attempt.job_id, attempt.attempt_id
    if stop is None and cancel is None:
        if attempt.job_state is JobState.RUNNING:
            return []
        return [Transition(job, this, JobState.RUNNING)]
    actions: list[Action] = []
    if attempt.job_state is not JobState.STOPPING:
        actions.append(Transition(job, this, JobState.STOPPING))
    if cancel is not None and (stop is None or (_is_stricter(cancel, stop) and _may_signal(attempt, now))):
        return [*actions, RequestStop(this, cancel.cause, cancel.grace_s)]
    if stop is None or actions:
        return actions
    if not _may_signal(attempt, now):
        return []
    since = now.boot - (attempt.stopping_at if attempt.stopping_at is not None else now.boot)
    if stop.on_timeout == "kill" and since >= stop.grace_s + RUNNER_OVERTIME_S:
        return [KillRunner(this)]
    return [WakeRunner(this)]


def _record_runner(attempt: Attempt) -> list[Action]:
    """Records the observed runner if the store does not have it."""
    runner, recorded = attempt.status.runner, attempt.runner
    # The store has the boot id of the attempt, whatever the claim says.
    if runner is None or (recorded is not None and runner[:2] == recorded[:2]):
        return []
    return [RecordRunner(attempt.attempt_id, runner.pid, runner.start_ticks)]


def _reconcile_unknown_runner(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Reconciles an attempt with an unknown runner: it runs while it has processes.

    They are ended only if a cancel or `stop` asks for it.
    """
    if attempt.boot_id != now.boot_id or attempt.survivors == ():
        return _reconcile_dead(attempt, now, settings)
    cause = _stop_cause(attempt)
    if attempt.survivors is None or cause is None:
        return []
    this, stop, cancel = attempt.attempt_id, attempt.status.stop, attempt.cancel
    actions: list[Action] = []
    if attempt.job_state is not JobState.STOPPING:
        actions.append(Transition(attempt.job_id, this, JobState.STOPPING))
    if cancel is not None and (stop is None or _is_stricter(cancel, stop)):
        # If one of the processes is a runner, it reads `stop` at the SIGTERM that follows.
        return (
            [*actions, RequestStop(this, cancel.cause, cancel.grace_s)]
            if _may_signal(attempt, now)
            else actions
        )
    return [*actions, *_sweep(attempt, now, settings)]


def _void_claim(attempt: Attempt, now: Now, *, gives_up: bool = False) -> list[Action]:
    # At intervals only: a claim that cannot be voided must not keep the round from everything else.
    return [VoidClaim(attempt.attempt_id, gives_up)] if _may_signal(attempt, now) else []


def _is_stricter(cancel: Cancel, stop: StopRequest) -> bool:
    return cancel.cause != stop.cause or cancel.grace_s < stop.grace_s


def _reconcile_dead(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    if attempt.survivors is None:
        return []
    if attempt.survivors:
        actions: list[Action] = (
            [] if attempt.runner_died_at is not None else [RecordRunnerDeath(attempt.attempt_id)]
        )
        since = now.boot - (attempt.runner_died_at if attempt.runner_died_at is not None else now.boot)
        if since < settings.survivor_wait_s or not _was_sent_sigkill(attempt, now):
            return actions + _sweep(attempt, now, settings)
    cause = _stop_cause(attempt)
    outcome = _outcome_of(cause) if cause else Outcome.INTERRUPTED
    reason = replace(_interruption(attempt, now), survivors=attempt.survivors)
    return [_finish(attempt, outcome, now, settings, reason=reason, survivors=attempt.survivors)]


def _launch_failure(attempt: Attempt) -> StateReason:
    if attempt.launch_error is not None:
        return StateReason(ReasonKind.LAUNCH_FAILED, message=attempt.launch_error)
    return StateReason(ReasonKind.RUNNER_NEVER_STARTED, launches=attempt.launch_count)


def _interruption(attempt: Attempt, now: Now) -> StateReason:
    status = attempt.status
    if attempt.boot_id != now.boot_id:
        return StateReason(ReasonKind.MACHINE_RESTARTED)
    if not status.folder_exists:
        return StateReason(ReasonKind.FOLDER_REMOVED)
    return StateReason(ReasonKind.RUNNER_DIED, message=status.damage)


def _outcome_of(cause: str) -> Outcome:
    """Returns the outcome of an attempt stopped for this cause; an unknown cause counts as a cancel."""
    return _OUTCOME_OF_CAUSE.get(cause, Outcome.CANCELLED)


def _was_sent_sigkill(attempt: Attempt, now: Now) -> bool:
    """Returns whether a sweep has sent SIGKILL and its processes had time to exit.

    The grace period may exceed the wait for survivors, and the scheduler may have been down since.
    """
    swept_at, signalled_at = attempt.swept_at, attempt.signalled_at
    killed = swept_at is not None and signalled_at is not None and signalled_at > swept_at
    return killed and _may_signal(attempt, now)


def _sweep(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    if attempt.swept_at is None:
        return [Sweep(attempt.attempt_id, kill=False)]
    grace = attempt.cancel.grace_s if attempt.cancel is not None else settings.grace_s
    if now.boot - attempt.swept_at < grace or not _may_signal(attempt, now):
        return []
    return [Sweep(attempt.attempt_id, kill=True)]


def _may_signal(attempt: Attempt, now: Now) -> bool:
    # A time in the future was recorded in an earlier boot.
    return attempt.signalled_at is None or not 0 <= now.boot - attempt.signalled_at < SIGNAL_INTERVAL_S


def _finish_with_result(
    attempt: Attempt, result: AttemptResult, now: Now, settings: Settings, inventory: GpuInventory
) -> FinishAttempt:
    if result.cause is not None:
        outcome = _OUTCOME_OF_CAUSE.get(result.cause, Outcome.INTERRUPTED)
    elif not result.began:
        outcome = Outcome.NOT_STARTED
    else:
        outcome = Outcome.COMPLETED if result.exit_code == 0 else Outcome.FAILED
    reason = StateReason(ReasonKind.RUNNER_REPORT, message=result.message) if result.message else None
    if outcome is Outcome.NOT_STARTED:
        reason = explain_launch_failure(result)
    elif outcome is Outcome.FAILED:
        reason = explain_failure(result, attempt.failure_context)
        decision = decide_retry(attempt, reason.failure, settings, inventory)
        reason = replace(reason, next_steps=decision.next_steps)
        if decision.retry:
            return _finish_and_retry(attempt, decision, now, reason, result)
    elif result.cause == "machine":
        reason = StateReason(ReasonKind.MACHINE_ENDED)
    return _finish(attempt, outcome, now, settings, reason=reason, survivors=result.survivors, result=result)


def _finish_and_retry(
    attempt: Attempt, decision: RetryDecision, now: Now, reason: StateReason, result: AttemptResult
) -> FinishAttempt:
    return FinishAttempt(
        attempt.job_id,
        attempt.attempt_id,
        Outcome.FAILED,
        JobState.QUEUED,
        None,
        reason=reason,
        exit_code=result.exit_code,
        signal=result.signal,
        survivors=result.survivors,
        not_before=now.boot + decision.wait_s,
        started_at=result.started_at,
        ended_at=result.ended_at,
        oom_retries_used=attempt.oom_retries_used + decision.oom,
        fail_retries_used=attempt.fail_retries_used + (not decision.oom),
        min_vram_mib=decision.min_vram_mib,
    )


def _finish(
    attempt: Attempt,
    outcome: Outcome,
    now: Now,
    settings: Settings,
    reason: StateReason | None = None,
    survivors: tuple[int, ...] = (),
    result: AttemptResult | None = None,
) -> FinishAttempt:
    state, job_outcome = JobState.FINISHED, outcome
    failures, not_before = 0, None
    next_step: NextStep | None = None
    cancelled = attempt.cancel is not None and attempt.cancel.cause == "cancelled"
    if outcome in (Outcome.INTERRUPTED, Outcome.PREEMPTED, Outcome.NOT_STARTED) and cancelled:
        job_outcome = Outcome.CANCELLED
    elif outcome in (Outcome.INTERRUPTED, Outcome.PREEMPTED):
        state = JobState.HELD
        reason = reason or StateReason(ReasonKind(outcome.value))
        next_step = NextStep(NextKind.HELD, job_id=attempt.job_id)
    elif outcome is Outcome.NOT_STARTED and result and result.shortage and not attempt.source_missing:
        # Not a failure of the job: it is not counted, and the job is retried while the shortage lasts.
        state, failures = JobState.QUEUED, attempt.launch_failures
        not_before = now.boot + settings.assign_retry_wait_s
        next_step = NextStep(NextKind.LAUNCH_RETRY_UNCOUNTED, wait_s=settings.assign_retry_wait_s)
    elif outcome is Outcome.NOT_STARTED:
        failures = attempt.launch_failures + 1
        if failures < settings.max_assign_attempts and not attempt.source_missing:
            state = JobState.QUEUED
            wait = min(settings.assign_retry_wait_s * 2 ** (failures - 1), MAX_RETRY_WAIT_S)
            not_before = now.boot + wait
            next_step = NextStep(NextKind.LAUNCH_RETRY, failures + 1, settings.max_assign_attempts, wait)
        else:
            job_outcome = Outcome.FAILED
            next_step = NextStep(NextKind.LAUNCH_ABANDONED, failures)
    if reason is not None and next_step is not None:
        reason = replace(reason, next_steps=(*reason.next_steps, next_step))
    return FinishAttempt(
        attempt.job_id,
        attempt.attempt_id,
        outcome,
        state,
        job_outcome if state is JobState.FINISHED else None,
        reason=reason,
        # If the command did not begin, the exit code is that of our own checks.
        exit_code=result.exit_code if result and result.began else None,
        signal=result.signal if result and result.began else None,
        survivors=survivors,
        launch_failures=failures,
        not_before=not_before,
        oom_retries_used=attempt.oom_retries_used,
        fail_retries_used=attempt.fail_retries_used,
        started_at=result.started_at if result else None,
        ended_at=result.ended_at if result else None,
        shortage=result.shortage if result else None,
    )
