"""Decides how an attempt ended, and whether its job then finishes, is held or is queued again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.command.shell_words import stands_in
from gpu_scheduler.core.explain.explanation import explain_failure, explain_launch_failure
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    Allocation,
    AttemptResult,
    Checkpoint,
    Job,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import FailureKind, NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import JobChanged
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.placement import allocated_mib
from gpu_scheduler.core.scheduling.settings import Settings

# Decides whether a job whose command failed runs again, with more memory if it ran out of GPU memory.
#
# OOM retries are only for jobs that ran out of GPU memory, so that they do not hide other failures
# (docs/design.md, Reconciling). Such a job then needs 1.25 times the memory that was observed or declared,
# but at most the memory of the largest GPUs.


#: Factor by which the observed or declared memory is multiplied after a job ran out of GPU memory.
RAISE_FACTOR = 1.25
#: Wait before the first retry after a failure, and the longest wait, in seconds. The wait doubles each time.
FIRST_WAIT_S, MAX_WAIT_S = 10.0, 600.0


class GpuInventory(Struct, frozen=True):
    """The memory of the GPUs that a job may use, in MiB.

    totals_mib: the memory size of each GPU, by UUID; available_mib: the most memory that one job can get on
    each of as many GPUs as it needs; None if unknown.
    """

    totals_mib: Mapping[str, int] = field(default_factory=dict)
    available_mib: int | None = None


def decide_retry(
    attempt: ActiveAttempt, failure: FailureKind | None, settings: Settings, inventory: GpuInventory
) -> tuple[NextStep, ...]:
    """Returns the next steps of a job whose command began and failed. A retry is always the last step."""
    context = attempt.observed.failure_context
    stop = attempt.stop_request
    # A job that failed before it could be preempted has failed like any other.
    is_stopped = stop is not None and stop.cause != "preempted"
    if context is None or attempt.is_line_gone or is_stopped or failure is FailureKind.BACKGROUND_WORK:
        return ()
    steps: tuple[NextStep, ...] = ()
    allowed = settings.oom_retries if context.oom_retries is None else context.oom_retries
    if failure is FailureKind.CUDA_OOM and allowed and attempt.gpus:
        step = _oom_step(attempt, allowed, settings, inventory)
        if step.is_retry:
            return (step,)
        steps = (step,)
    times = settings.fail_retries if context.fail_retries is None else context.fail_retries
    if attempt.job.fail_retries_used < times:
        wait_s = retry_wait_s(attempt.job.fail_retries_used)
        steps += (NextStep(NextKind.RETRY, attempt.job.fail_retries_used + 1, times, wait_s),)
    return steps


def retry_wait_s(used: int) -> float:
    """Returns the seconds until the next try of a job that has used this many retries after failures."""
    return float(min(FIRST_WAIT_S * 2.0 ** min(used, 60), MAX_WAIT_S))


def _oom_step(attempt: ActiveAttempt, allowed: int, settings: Settings, inventory: GpuInventory) -> NextStep:
    """Returns the OOM retry, or why there is none. allowed: the number of allowed OOM retries."""
    if attempt.job.oom_retries_used >= allowed:
        return NextStep(NextKind.OOM_RETRIES_USED_UP, of=allowed)
    if _had_maximum(attempt, inventory):
        had = attempt.vram or max(map(inventory.totals_mib.__getitem__, attempt.gpus))
        return NextStep(NextKind.NO_LARGER_GPU, vram_mib=had)
    raised = _raised_mib(attempt, settings, inventory)
    return NextStep(NextKind.OOM_RETRY, attempt.job.oom_retries_used + 1, allowed, vram_mib=raised)


def _had_maximum(attempt: ActiveAttempt, inventory: GpuInventory) -> bool:
    """Returns whether the job already had all available memory, by declaring it or by having whole GPUs."""
    if inventory.available_mib is None:
        return False
    if attempt.vram is not None:
        return attempt.vram >= inventory.available_mib
    return attempt.whole and all(
        inventory.totals_mib.get(uuid, 0) >= inventory.available_mib for uuid in attempt.gpus
    )


def _raised_mib(attempt: ActiveAttempt, settings: Settings, inventory: GpuInventory) -> int | None:
    """Returns 1.25 times the largest observed peak or declaration on any GPU, in MiB; None if unknown.

    The result is limited by the available memory.
    """
    spike = settings.spike_buffer
    declared = Allocation(attempt.share, attempt.vram, attempt.whole)
    budgets = [allocated_mib(declared, inventory.totals_mib.get(uuid, 0), spike) for uuid in attempt.gpus]
    raised = math.ceil(RAISE_FACTOR * max([*attempt.peaks.values(), *budgets], default=0))
    most = raised if inventory.available_mib is None else min(raised, inventory.available_mib)
    return most if most > 0 else None


# Decides with which checkpoint a job starts that was not queued again by `resume --job`.
#
# Such a job gets a checkpoint only if the user has said how its command accepts one. Otherwise, it starts
# from its beginning, and its next step says so.


def resumption(
    checkpoint: Checkpoint | None, *, may_resume: bool
) -> tuple[Checkpoint | None, tuple[NextStep, ...]]:
    """Returns the checkpoint with which the next attempt starts, and the step that tells so.

    checkpoint: the newest one of the job. may_resume: whether the command is known to accept one.
    """
    if checkpoint is None:
        return None, ()
    kind = NextKind.RESUME if may_resume else NextKind.START_OVER
    step = NextStep(kind, checkpoint=checkpoint.path, step=checkpoint.step)
    return (checkpoint if may_resume else None), (step,)


# Decides which interrupted jobs the scheduler itself queues again (`start --recover`).
#
# An interrupted job is held, because it may have done part of its work. The user allows recoveries for all
# jobs, but a job that brings down its runner or the machine must not do so for ever. A job that has saved a
# newer checkpoint in the meantime makes progress, so its recoveries are counted anew.


#: How many times the scheduler itself queues an interrupted job again, until the user does so.
MAX_RECOVERIES = 3


def recover_interrupted(facts: Facts) -> list[JobChanged]:
    """Returns the recoveries of this round. Without `start --recover`, there are none."""
    if not facts.settings.recover:
        return []
    return [
        recovery(job, facts.now, recovery_step(job.id, job.recoveries), recoveries=job.recoveries + 1)
        for job in facts.interrupted
        if job.recoveries < MAX_RECOVERIES
    ]


def recovery(job: Job, now: Now, *steps: NextStep, recoveries: int = 0) -> JobChanged:
    """Returns the change that queues an interrupted job again.

    recoveries: how many times the scheduler itself has then done so; 0 if the user asks for it.
    """
    checkpoint, added = resumption(job.checkpoint, may_resume=bool(job.checkpoint) and stands_in(job.spec))
    reason = StateReason(ReasonKind.RECOVERED, next_steps=(*steps, *added))
    return JobChanged(job, job.queued_again(now, recoveries=recoveries, checkpoint=checkpoint), reason)


def recovery_step(job_id: int, recoveries: int) -> NextStep:
    """Returns the step that follows an interruption. recoveries: how many recoveries the job has used."""
    if recoveries < MAX_RECOVERIES:
        return NextStep(NextKind.RECOVERY, recoveries + 1, MAX_RECOVERIES)
    return NextStep(NextKind.RECOVERIES_USED_UP, of=MAX_RECOVERIES, job_id=job_id)


#: Longest wait after a failed launch, in seconds.
MAX_RETRY_WAIT_S = 60.0
#: Wait after the watcher of an adopted process has died, in seconds.
WATCH_AGAIN_S = 1.0
#: Wait after another program claimed a GPU first, in seconds.
CLAIMED_RETRY_WAIT_S = 1.0

_OUTCOME_OF_CAUSE = {
    "cancelled": Outcome.CANCELLED,
    "preempted": Outcome.PREEMPTED,
    "timed_out": Outcome.TIMED_OUT,
    "machine": Outcome.INTERRUPTED,
}


def outcome_of(cause: str) -> Outcome:
    """Returns the outcome of an attempt stopped for this cause. An unknown cause counts as a cancel."""
    return _OUTCOME_OF_CAUSE.get(cause, Outcome.CANCELLED)


def launch_failure(attempt: ActiveAttempt) -> StateReason:
    """Returns why the command of an attempt never began."""
    message = attempt.launch_error or attempt.status.void_reason
    if message is not None:
        return StateReason(ReasonKind.LAUNCH_FAILED, message=message)
    return StateReason(ReasonKind.RUNNER_NEVER_STARTED, launches=attempt.launch_count)


def interruption(attempt: ActiveAttempt, now: Now) -> StateReason:
    """Returns why an attempt ended without a result."""
    status = attempt.status
    if status.engine is not None:
        engine, name = status.engine, attempt.executor.capitalize()
        said = f"{name} says: {engine.reason}" if engine.reason else f"{name} does not run it"
        where = f" (node {engine.node})" if engine.node else ""
        return StateReason(ReasonKind.RUNNER_DIED, message=said + where)
    if attempt.boot_id != now.boot_id:
        return StateReason(ReasonKind.MACHINE_RESTARTED)
    if not status.folder_exists:
        return StateReason(ReasonKind.FOLDER_REMOVED)
    return StateReason(ReasonKind.RUNNER_DIED, message=status.damage)


def _has_completed(attempt: ActiveAttempt) -> bool | None:
    """Returns whether the last progress of the attempt was N of N; None if there was none."""
    return None if attempt.observed.saved_work is None else attempt.observed.saved_work.is_complete


def _unseen_stop(attempt: ActiveAttempt, result: AttemptResult) -> StopRequest | None:
    """Returns the request to stop that an earlier watcher of an adopted process probably carried out.

    That watcher died before the process did. An exit code shows that the process ended by itself, unless it
    exited 0 although its work was not complete.
    """
    if attempt.watched_pid is None or attempt.number == 1:
        return None
    saved_work = result.exit_code == 0 and _has_completed(attempt) is False
    return attempt.open_stop if result.exit_code is None or saved_work else None


def newest_checkpoint(attempt: ActiveAttempt) -> Checkpoint | None:
    """Returns the newest complete checkpoint of the attempt's job; None if there is none.

    If nothing looked for checkpoints, it is the one that the store has.
    """
    saved = attempt.observed.saved_work
    return attempt.job.checkpoint if saved is None else saved.checkpoint


def end_with_result(
    attempt: ActiveAttempt, result: AttemptResult, now: Now, settings: Settings, inventory: GpuInventory
) -> ActiveAttempt:
    """Returns the attempt after its end with this result. inventory: the GPUs that a retry may use."""
    if result.cause is not None:
        outcome = _OUTCOME_OF_CAUSE.get(result.cause, Outcome.INTERRUPTED)
        if outcome is Outcome.PREEMPTED and result.exit_code == 0 and _has_completed(attempt):
            outcome = Outcome.COMPLETED
    elif not result.began:
        outcome = Outcome.NOT_STARTED
    elif (stop := _unseen_stop(attempt, result)) is not None:
        outcome = outcome_of(stop.cause)
    elif result.verdict == "unfinished":
        outcome = Outcome.FAILED
    elif result.exit_code == 0 or result.verdict == "closed_pipe":
        # A command that saved its work too slowly for a preemption, which was withdrawn, has not completed.
        stopped_late = attempt.status.withdrawn is not None and _has_completed(attempt) is False
        outcome = Outcome.PREEMPTED if stopped_late else Outcome.COMPLETED
    elif result.exit_code is None and result.signal is None:
        outcome = Outcome.ENDED
    else:
        outcome = Outcome.FAILED
    reason = StateReason(ReasonKind.RUNNER_REPORT, message=result.message) if result.message else None
    if outcome is Outcome.NOT_STARTED:
        reason = explain_launch_failure(result, attempt.observed.failure_context)
    elif outcome is Outcome.FAILED:
        reason = explain_failure(result, attempt.observed.failure_context)
        # Only its user knows how an adopted process can be started again.
        is_adopted = attempt.watched_pid is not None
        steps = () if is_adopted else decide_retry(attempt, reason.failure, settings, inventory)
        reason = replace(reason, left=result.left, left_count=result.left_count, next_steps=steps)
        end = end_attempt(attempt, outcome, now, settings, reason, result.survivors, result)
        is_retried = bool(steps) and steps[-1].is_retry
        return _with_checkpoint(_with_retry(end, steps[-1], now), attempt) if is_retried else end
    elif outcome is Outcome.COMPLETED and (result.left_count or result.exit_code):
        completed = StateReason(ReasonKind.COMPLETED, exit_code=result.exit_code, message=result.message)
        reason = replace(completed, left=result.left, left_count=result.left_count)
    elif result.cause == "machine":
        reason = StateReason(ReasonKind.MACHINE_ENDED)
    return end_attempt(attempt, outcome, now, settings, reason, result.survivors, result)


def _with_retry(end: ActiveAttempt, retry: NextStep, now: Now) -> ActiveAttempt:
    """Returns the end of an attempt whose job is queued again."""
    is_oom = retry.kind is NextKind.OOM_RETRY
    return _queued(
        end,
        now,
        not_before_boot=now.boot + (retry.wait_s or 0.0),
        oom_retries_used=end.job.oom_retries_used + is_oom,
        fail_retries_used=end.job.fail_retries_used + (not is_oom),
        **({} if retry.vram_mib is None else {"min_vram_mib": retry.vram_mib}),
    )


def _queued(end: ActiveAttempt, now: Now, **values: Any) -> ActiveAttempt:
    """Returns the end of an attempt whose job is queued again with these values."""
    # After a launch that failed, the job has waited all the while.
    waits_on = end.outcome is Outcome.NOT_STARTED
    queued = {"queued_at": end.job.queued_at if waits_on else now.wall, "finished_at": None}
    job = replace(end.job, state=JobState.QUEUED, outcome=None, **{**queued, **values})
    return replace(end, job=job)


def _ended(
    attempt: ActiveAttempt,
    outcome: Outcome,
    now: Now,
    result: AttemptResult | None = None,
    survivors: tuple[int, ...] = (),
) -> ActiveAttempt:
    """Returns the attempt after it ended, and its job as finished with the same outcome."""
    began = result is not None and result.began
    # If the command did not begin, the exit code comes from the checks in command.sh.
    ended_at = now.wall if result is None else result.ended_at
    exit_code, signal = (result.exit_code, result.signal) if result is not None and began else (None, None)
    job = replace(
        attempt.job, state=JobState.FINISHED, outcome=outcome, exit_code=exit_code, signal=signal,
        finished_at=ended_at, held_by=None, stop=None, adopted=None, launch_failures=0, not_before_boot=None,
        boot_id=now.boot_id, checkpoint=newest_checkpoint(attempt),
        resume_from=attempt.job.resume_from if outcome is Outcome.NOT_STARTED else None,
    )  # fmt: skip
    return replace(
        attempt, state=AttemptState.ENDED, outcome=outcome, exit_code=exit_code, signal=signal,
        survivors=survivors, ended_at=ended_at, job=job,
        started_at=(result.started_at if result is not None else None) or attempt.started_at,
    )  # fmt: skip


def with_reason(end: ActiveAttempt, reason: StateReason | None) -> ActiveAttempt:
    """Returns the end of an attempt with this reason, for itself and its job."""
    return replace(end, reason=reason, job=replace(end.job, reason=reason))


def end_attempt(
    attempt: ActiveAttempt,
    outcome: Outcome,
    now: Now,
    settings: Settings,
    reason: StateReason | None = None,
    survivors: tuple[int, ...] = (),
    result: AttemptResult | None = None,
) -> ActiveAttempt:
    """Returns the attempt after its end with this outcome. survivors: pids of remaining processes."""
    stop = attempt.open_stop
    is_preempted = stop is not None and stop.cause == "preempted"
    if outcome is Outcome.NOT_STARTED and is_preempted and attempt.watched_pid is None:
        # It must not be launched again, although the launch failed by itself. A process that was not watched
        # was not preempted either.
        outcome = Outcome.PREEMPTED
    end = _ended(attempt, outcome, now, result, survivors)
    end = replace(end, job=replace(end.job, recoveries=_recoveries(attempt)))
    end, step = _with_next_state(end, attempt, now, settings, _uncounted_wait_s(result, reason, settings))
    stop, state = attempt.stop_request, end.job.state
    if outcome is Outcome.PREEMPTED and stop is not None and stop.preemptor is not None:
        reason = replace(reason or StateReason(ReasonKind.PREEMPTED), preemptor=stop.preemptor)
    if reason is None and state is not JobState.FINISHED and outcome is not Outcome.NOT_STARTED:
        reason = StateReason(ReasonKind(outcome.value))
    if reason is not None and step is not None:
        reason = replace(reason, next_steps=(*reason.next_steps, step))
    end = with_reason(end, reason)
    if attempt.watched_pid is not None and outcome is Outcome.NOT_STARTED and state is JobState.QUEUED:
        return _still_adopted(end, attempt)
    is_victim = state is JobState.QUEUED and outcome is Outcome.PREEMPTED
    return _with_checkpoint(end, attempt) if is_victim else end


def _still_adopted(end: ActiveAttempt, attempt: ActiveAttempt) -> ActiveAttempt:
    """Returns the end of a watcher. Another one follows, to which an open request to stop then applies."""
    stop = attempt.stop_request if attempt.open_stop is not None else None
    return replace(end, job=replace(end.job, adopted=attempt.job.adopted, stop=stop))


def _recoveries(attempt: ActiveAttempt) -> int:
    """Returns how many recoveries the job has used since it last made progress."""
    newest = newest_checkpoint(attempt)
    has_resumed = attempt.resumed_from is not None
    if newest is not None and newest.is_newer_than(attempt.job.checkpoint, has_resumed=has_resumed):
        return 0
    return attempt.job.recoveries


def _with_checkpoint(end: ActiveAttempt, attempt: ActiveAttempt) -> ActiveAttempt:
    """Returns the end of an attempt whose job starts again by itself, with or without a checkpoint."""
    may_resume = attempt.observed.saved_work is not None and attempt.observed.saved_work.may_resume
    checkpoint, steps = resumption(end.job.checkpoint, may_resume=may_resume)
    if end.reason is not None:
        end = with_reason(end, replace(end.reason, next_steps=(*end.reason.next_steps, *steps)))
    return replace(end, job=replace(end.job, resume_from=checkpoint))


def watch_again(attempt: ActiveAttempt, now: Now) -> ActiveAttempt:
    """Returns the attempt after its watcher has died.

    The process may still run, so another watcher follows. This counts neither as a failure of the job nor as
    an interruption.
    """
    step = NextStep(NextKind.WATCHED_AGAIN, wait_s=WATCH_AGAIN_S)
    end = _queued(
        _ended(attempt, Outcome.INTERRUPTED, now),
        now,
        launch_failures=attempt.job.launch_failures,
        not_before_boot=now.boot + WATCH_AGAIN_S,
    )
    return _still_adopted(with_reason(end, replace(interruption(attempt, now), next_steps=(step,))), attempt)


def _uncounted_wait_s(
    result: AttemptResult | None, reason: StateReason | None, settings: Settings
) -> float | None:
    """Returns the wait after a failed launch that does not count, in seconds; None if the launch counts.

    A shortage, a claim of another program and an unusable lock file are not the job's fault.
    """
    if reason is not None and reason.kind is ReasonKind.GPU_CLAIMED:
        return CLAIMED_RETRY_WAIT_S
    is_claim_failure = reason is not None and reason.failure is FailureKind.GPU_CLAIM
    is_shortage = result is not None and bool(result.shortage)
    return settings.assign_retry_wait_s if is_shortage or is_claim_failure else None


def _with_next_state(
    end: ActiveAttempt, attempt: ActiveAttempt, now: Now, settings: Settings, uncounted_wait_s: float | None
) -> tuple[ActiveAttempt, NextStep | None]:
    """Returns the end with the next state of the job, and the next step to add to its reason, if any."""
    stop = attempt.open_stop
    if attempt.watched_pid is not None and end.outcome is Outcome.NOT_STARTED:
        stop = None  # it concerns the process, not its watcher
    cancelled = stop is not None and stop.cause == "cancelled"
    if end.outcome in (Outcome.INTERRUPTED, Outcome.PREEMPTED, Outcome.NOT_STARTED) and cancelled:
        return replace(end, job=replace(end.job, outcome=Outcome.CANCELLED)), None
    if end.outcome is Outcome.PREEMPTED and stop is not None and stop.next_state is JobState.QUEUED:
        # It may start at once, so that `status` shows no delay.
        return _queued(end, now, not_before_boot=now.boot), None
    if end.outcome in (Outcome.INTERRUPTED, Outcome.PREEMPTED):
        has_place = attempt.observed.saved_work is None or attempt.observed.saved_work.has_place
        saved = (end.job.checkpoint if has_place else None) or Checkpoint("")
        step = NextStep(NextKind.HELD, job_id=attempt.job_id, checkpoint=saved.path or None, step=saved.step)
        if end.outcome is Outcome.INTERRUPTED and settings.recover:
            step = recovery_step(attempt.job_id, end.job.recoveries)
        return _held(end), step
    if end.outcome is not Outcome.NOT_STARTED:
        return end, None
    failures = attempt.job.launch_failures + 1
    if uncounted_wait_s is not None and not attempt.is_line_gone:
        step = NextStep(NextKind.LAUNCH_RETRY_UNCOUNTED, wait_s=uncounted_wait_s)
        return _queued(
            end, now, launch_failures=failures - 1, not_before_boot=now.boot + uncounted_wait_s
        ), step
    wait = min(settings.assign_retry_wait_s * 2.0 ** min(failures - 1, 60), MAX_RETRY_WAIT_S)
    step = NextStep(NextKind.LAUNCH_RETRY, failures + 1, settings.max_assign_attempts, wait)
    may_try = failures < settings.max_assign_attempts
    if attempt.watched_pid is not None:
        # The process runs, so its job cannot fail because nobody watches it.
        step, may_try = NextStep(NextKind.WATCHED_AGAIN, wait_s=wait), True
    if may_try and not attempt.is_line_gone:
        return _queued(end, now, launch_failures=failures, not_before_boot=now.boot + wait), step
    step = NextStep(NextKind.LAUNCH_ABANDONED, failures)
    return replace(end, job=replace(end.job, outcome=Outcome.FAILED, launch_failures=failures)), step


def _held(end: ActiveAttempt) -> ActiveAttempt:
    """Returns the end of an attempt whose job is held because of its outcome."""
    assert end.outcome is not None
    job = replace(end.job, state=JobState.HELD, outcome=None, held_by=end.outcome.value, finished_at=None)
    return replace(end, job=job)


# Decides what happens to attempts in a store that was restored from their folders.


def end_of_restored(
    attempt: ActiveAttempt, outcome: Outcome, state: JobState, reason: StateReason, now: Now
) -> ActiveAttempt:
    """Returns a restored attempt after its end, with its job in this state: QUEUED or HELD."""
    end = _ended(attempt, outcome, now)
    end = replace(end, job=replace(end.job, checkpoint=attempt.job.checkpoint))
    return with_reason(_held(end) if state is JobState.HELD else _queued(end, now), reason)


def with_queued_job(end: ActiveAttempt, now: Now) -> ActiveAttempt:
    """Returns the end of an attempt whose job waits for the end of a later attempt."""
    return _queued(end, now, held_by=None, not_before_boot=None)
