"""Records the actions that change attempts and their allocations."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable
from typing import Any

from gpu_scheduler.core.model.attempt import Allocation, Attempt
from gpu_scheduler.core.model.attempt_status import Checkpoint
from gpu_scheduler.core.model.event import (
    AttemptEnded,
    AttemptStarted,
    EventKind,
    MisplacedProcess,
    Overuse,
    StopStarted,
)
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import (
    AttemptState,
    IllegalTransitionError,
    JobState,
    Outcome,
    states_before,
)
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.accounting import declared_mib
from gpu_scheduler.store.attempt_history import record_measurement, record_run_time
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.write_jobs import (
    NO_STOP,
    WriteContext,
    change_job_state,
    checkpoint_json,
    reason_json,
)


def start(context: WriteContext, action: act.Start) -> int:
    """Opens an attempt with its allocations. Returns the attempt's id."""
    db, now = context.db, context.now
    # An attempt whose launch failed has not run, so its job keeps the protection against preemptions.
    state, resume_from, *place, number, follows_preemption = db.execute(
        "SELECT job.state, job.resume_from, job.priority, job.position, job.submitted_at,"
        " coalesce(last.number, 0) + 1,"
        " last.outcome IS 'preempted' OR (last.outcome IS 'not_started' AND last.follows_preemption)"
        " FROM job LEFT JOIN attempt AS last ON last.job_id = job.id"
        " AND last.number = (SELECT max(number) FROM attempt WHERE job_id = job.id) WHERE job.id = ?",
        (action.job_id,),
    ).fetchone()
    if action.process is not None or not action.gpus:
        place = [None] * 3  # an adopted process never queues, and a job without a GPU overtakes nobody
    attempt_id = insert(
        db, "attempt", job_id=action.job_id, number=number, token=secrets.token_hex(16), boot_id=now.boot_id,
        state=AttemptState.STARTING.value, executor=_executor(context, action), learned=action.learned,
        assumed=action.assumed, launch_deadline_boot=now.boot + context.settings.launch_deadline_s,
        created_at=now.wall, resumed_from=resume_from, **_watched(action),
        follows_preemption=follows_preemption,
        **dict(zip(("queue_priority", "queue_position", "submitted_at"), place, strict=True)),
    )  # fmt: skip
    insert_allocations(db, attempt_id, _allocations(context, action))
    checkpoint = None if resume_from is None else Checkpoint.from_json(resume_from)
    details = AttemptStarted(
        number, context.gpu_indices(action.gpus), action.share, action.vram, action.whole, action.learned,
        action.assumed,
        resumed_from=None if checkpoint is None else checkpoint.path,
        resumed_step=None if checkpoint is None else checkpoint.step,
        watched_pid=None if action.process is None else action.process.pid,
    )  # fmt: skip
    change_job_state(
        context, action.job_id, JobState.STARTING, None, details, before=JobState(state),
        not_before_boot=None,
    )  # fmt: skip
    return attempt_id


def _executor(context: WriteContext, action: act.Start) -> str:
    """Returns the name of the executor of an attempt. A watcher has no output, so it needs no terminal."""
    return context.executor if action.process is None else "direct"


def _watched(action: act.Start) -> dict[str, Any]:
    """Returns the columns of an attempt whose runner watches a process."""
    process = action.process
    if process is None:
        return {}
    return {
        "watched_pid": process.pid,
        "watched_ticks": process.start_ticks,
        "started_at": process.started_at,
    }


def _allocations(context: WriteContext, action: act.Start) -> Iterable[Allocation]:
    declares = not action.assumed and bool(action.share or action.vram)
    baseline = dict(action.baseline_mib)
    charge = Allocation(action.share, action.vram, action.whole)
    for gpu in action.gpus:
        budget = declared_mib(charge, context.gpu_total_mib(gpu)) if declares else None
        yield Allocation(action.share, action.vram, action.whole, None, gpu, budget, baseline.get(gpu))


def insert_allocations(db: sqlite3.Connection, attempt_id: int, allocations: Iterable[Allocation]) -> None:
    """Inserts the allocations of a new attempt, in this order."""
    db.executemany(
        "INSERT INTO allocation (attempt_id, ordinal, gpu, share, vram, whole, budget_mib, baseline_mib)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (attempt_id, n, one.gpu, one.share, one.vram, one.whole, one.budget_mib, one.baseline_mib)
            for n, one in enumerate(allocations)
        ],
    )


def relaunch(context: WriteContext, action: act.Relaunch) -> None:
    """Counts another launch of the same attempt and sets the deadline for its claim."""
    deadline = context.now.boot + context.settings.launch_deadline_s
    before: int = context.db.execute(
        "SELECT launch_count FROM attempt WHERE id = ?", (action.attempt_id,)
    ).fetchone()[0]
    context.db.execute(
        "UPDATE attempt SET launch_count = launch_count + 1, launch_deadline_boot = ? WHERE id = ?",
        (deadline, action.attempt_id),
    )
    if before:
        context.add_attempt_event(EventKind.RELAUNCHED, action.attempt_id)


def record_transition(context: WriteContext, action: act.Transition) -> None:
    """Changes the states of a job and its open attempt to running or stopping."""
    is_stopping = action.state is JobState.STOPPING
    details = _open_stop(context, action.job_id) if is_stopping else None
    change_job_state(context, action.job_id, action.state, None, details)
    if is_stopping:
        columns, time = "stopping_boot = ?", context.now.boot
    else:
        columns, time = "stopping_boot = NULL, started_at = coalesce(started_at, ?)", context.now.wall
    _change_state(context, action.attempt_id, AttemptState(action.state.value), columns, time)


def _open_stop(context: WriteContext, job_id: int) -> StopStarted | None:
    """Returns the details of an open request; None if only the file `stop` of the attempt contains it."""
    row = context.db.execute(
        "SELECT stop_cause, stop_grace_s, stop_preemptor FROM job WHERE id = ?", (job_id,)
    ).fetchone()
    return None if row["stop_cause"] is None else StopStarted(*row)


def record_runner_death(context: WriteContext, action: act.RecordRunnerDeath) -> None:
    """Records that the runner died without a result."""
    _change_state(context, action.attempt_id, AttemptState.ORPHANED, "runner_died_boot = ?", context.now.boot)
    context.add_attempt_event(EventKind.RUNNER_LOST, action.attempt_id)


def record_misplaced_process(context: WriteContext, action: act.RecordMisplacedProcess) -> None:
    """Records a process outside the allocation of its attempt."""
    context.db.execute(
        "INSERT OR IGNORE INTO misplaced_process (attempt_id, gpu, pid) VALUES (?, ?, ?)",
        (action.attempt_id, action.uuid, action.pid),
    )
    attempt = _attempt(context, action.attempt_id)
    [gpu] = context.gpu_indices([action.uuid])
    details = MisplacedProcess(attempt.number, gpu, action.pid, context.gpu_indices(attempt.gpus))
    context.add_event(EventKind.MISPLACED_PROCESS, attempt.job_id, details=details)


def record_usage(context: WriteContext, action: act.RecordUsage) -> None:
    """Adds a sample to the allocations of an attempt."""
    context.db.executemany(
        "UPDATE allocation SET peak_mib = coalesce(max(peak_mib, ?), peak_mib, ?),"
        " load_sum = load_sum + coalesce(?, 0), load_samples = load_samples + (? IS NOT NULL)"
        " WHERE attempt_id = ? AND gpu = ?",
        [(mib, mib, load, load, action.attempt_id, gpu) for gpu, mib, load in action.usage],
    )
    context.db.execute(
        "UPDATE attempt SET measured_boot = ? WHERE id = ?", (action.sampled_at, action.attempt_id)
    )


def record_overuse(context: WriteContext, action: act.RecordOveruse) -> None:
    """Records that overuse on a GPU was reported."""
    context.db.execute(
        "UPDATE allocation SET overuse_logged = 1 WHERE attempt_id = ? AND gpu = ?",
        (action.attempt_id, action.uuid),
    )
    attempt = _attempt(context, action.attempt_id)
    [gpu] = context.gpu_indices([action.uuid])
    details = Overuse(attempt.number, gpu, action.used_mib, action.declared_mib, action.share)
    context.add_event(EventKind.OVERUSE, attempt.job_id, details=details)


def finish_attempt(context: WriteContext, action: act.FinishAttempt) -> None:
    """Records the end of an attempt and the next state of its job."""
    ended_at = action.ended_at if action.ended_at is not None else context.now.wall
    _change_state(
        context, action.attempt_id, AttemptState.ENDED,
        "outcome = ?, exit_code = ?, signal = ?, reason = ?, survivors = ?,"
        " started_at = coalesce(?, started_at), ended_at = ?",
        action.outcome.value, action.exit_code, action.signal, reason_json(action.reason),
        json.dumps(action.survivors), action.started_at, ended_at,
    )  # fmt: skip
    attempt, job = context.store.attempt_with_job(action.attempt_id)
    record_measurement(context.db, attempt, job, context.now.wall)
    record_run_time(context.db, attempt, job, context.now.wall)
    raised: dict[str, Any] = {}
    if action.min_vram_mib is not None:
        key = context.store.spec_key(job.spec, action.min_vram_mib)
        raised = {"min_vram_mib": action.min_vram_mib, "spec_key": key}
    change_job_state(
        context, action.job_id, action.state, action.reason, _details_of_end(context, attempt, action),
        before=job.state,
        outcome=action.job_outcome.value if action.job_outcome else None,
        exit_code=action.exit_code, signal=action.signal,
        held_by=action.outcome.value if action.state is JobState.HELD else None,
        recoveries=action.recoveries,
        launch_failures=action.launch_failures,
        not_before_boot=action.not_before, boot_id=context.now.boot_id,
        oom_retries_used=action.oom_retries_used, fail_retries_used=action.fail_retries_used,
        finished_at=ended_at if action.state is JobState.FINISHED else None,
        **raised, **_resumption(action, job), **({} if action.is_still_adopted else {"adopted": None}),
        **({} if action.keeps_stop else NO_STOP),
    )  # fmt: skip


def _resumption(action: act.FinishAttempt, job: Job) -> dict[str, Any]:
    """Returns the columns of the job that decide how, and since when, its next attempt waits to start."""
    known = checkpoint_json(action.checkpoint)
    if action.outcome is Outcome.NOT_STARTED:
        # The next attempt starts as this one should have, and the job has waited all the while.
        return {"checkpoint": known, "queued_at": job.queued_at}
    return {"checkpoint": known, "resume_from": checkpoint_json(action.resume_from)}


def _details_of_end(context: WriteContext, attempt: Attempt, action: act.FinishAttempt) -> AttemptEnded:
    has_budget = attempt.has_budget
    return AttemptEnded(
        attempt.number,
        outcome=action.outcome.value,
        exit_code=action.exit_code,
        signal=action.signal,
        seconds=attempt.run_time_s,
        gpus=context.gpu_indices(attempt.gpus),
        peaks=[one.peak_mib for one in attempt.allocations],
        declared=attempt.vram if has_budget else None,
        budgets=[one.budget_mib for one in attempt.allocations] if has_budget else None,
        share=attempt.share,
        load=attempt.mean_load,
        log=attempt.log,
        survivors=list(action.survivors),
        learned=attempt.learned,
        min_vram=action.min_vram_mib,
    )


def release_allocation(context: WriteContext, action: act.ReleaseAllocation) -> None:
    """Records that the GPUs of an attempt have been released."""
    _change_state(context, action.attempt_id, AttemptState.RELEASED, "released_boot = ?", context.now.boot)


def record_memory_released(context: WriteContext, action: act.RecordMemoryReleased) -> None:
    """Records that the memory of the attempt's GPUs is free again, so the attempt is no longer active."""
    _change_state(context, action.attempt_id, AttemptState.CLOSED)


def _change_state(
    context: WriteContext, attempt_id: int, state: AttemptState, columns: str = "", *values: object
) -> None:
    """Changes the state of an attempt. Raises IllegalTransitionError.

    columns: SQL assignments to other columns; values: the values for the placeholders in them.
    """
    assignments = f"state = ?, {columns}" if columns else "state = ?"
    before = sorted(one.value for one in states_before(state))
    cursor = context.db.execute(
        f"UPDATE attempt SET {assignments} WHERE id = ? AND state IN ({', '.join('?' * len(before))})",
        (state.value, *values, attempt_id, *before),
    )
    if cursor.rowcount != 1:
        attempt = _attempt(context, attempt_id)
        subject = f"attempt {attempt.number} of job {attempt.job_id}"
        raise IllegalTransitionError(subject, attempt.state, state, context.job_history(attempt.job_id))


def _attempt(context: WriteContext, attempt_id: int) -> Attempt:
    attempt = context.store.attempt(attempt_id)
    assert attempt is not None
    return attempt
