"""Records the actions that change jobs, requests and wait reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.core.model.event import EventDetails, EventKind, JobEnded
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.priority import NORMAL_PRIORITY
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import TRANSITIONS, JobState, Outcome, check_transition
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store.write_context import WriteContext

#: Maximum number of jobs in a pending group that get an event if the group is infeasible.
_MAX_INFEASIBLE_EVENTS = 5
#: Maximum number of jobs that begin to wait for GPUs when fewer jobs of their name group run.
_MAX_WAITING_ANEW = 64


def change_job_state(
    context: WriteContext,
    job_id: int,
    state: JobState,
    reason: StateReason | None,
    details: EventDetails | None = None,
    *,
    before: JobState | None = None,
    event_reason: StateReason | None = None,
    **values: Any,
) -> None:
    """Changes the state of a job and adds the corresponding event. Raises IllegalTransitionError.

    before: the state until now, or None to read it from the store; event_reason: the reason to record in the
    event if `reason` is None; values: the new values of other columns of the job.
    """
    db = context.db
    if before is None:
        before = JobState(db.execute("SELECT state FROM job WHERE id = ?", (job_id,)).fetchone()["state"])
    if state is not before and state not in TRANSITIONS[before]:
        check_transition(job_id, before, state, context.job_history(job_id))
    values = {"state": state.value, "reason": reason_json(reason), **values}
    if state is JobState.QUEUED and state is not before:
        values.setdefault("queued_at", context.now.wall)
    names = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE job SET {names} WHERE id = ?", (*values.values(), job_id))
    # A skipped job can also be cancelled.
    if state is not before or state is JobState.FINISHED:
        context.add_event(EventKind(state.value), job_id, reason_json(reason or event_reason), details)


def reason_json(reason: StateReason | None) -> str | None:
    """Returns a reason in the format in which it is stored."""
    return None if reason is None else reason.to_json()


def checkpoint_json(checkpoint: Checkpoint | None) -> str | None:
    """Returns a checkpoint in the format in which it is stored."""
    return None if checkpoint is None else checkpoint.to_json()


def finish_job(context: WriteContext, action: act.FinishJob) -> None:
    """Finishes a waiting or skipped job without starting it. It is no longer adopted."""
    change_job_state(
        context, action.job_id, JobState.FINISHED, action.reason, JobEnded(action.outcome.value),
        outcome=action.outcome.value, finished_at=context.now.wall, held_by=None, adopted=None, **NO_STOP,
    )  # fmt: skip


def hold_job(context: WriteContext, action: act.HoldJob) -> None:
    """Holds a queued job."""
    change_job_state(
        context, action.job_id, JobState.HELD, action.reason, held_by=action.by, adopted=None, **NO_STOP
    )


#: The values of the columns of a job without an open request to stop its attempt.
NO_STOP: Mapping[str, None] = dict.fromkeys((
    "stop_cause", "stop_grace_s", "stop_on_timeout", "stop_id", "stop_signal", "stop_next_state",
    "stop_preemptor",
))  # fmt: skip


def record_stop(context: WriteContext, action: act.RecordStop) -> None:
    """Records an open request to stop the attempt of a job."""
    stop = action.stop
    context.db.execute(
        f"UPDATE job SET {', '.join(f'{name} = ?' for name in NO_STOP)} WHERE id = ?",
        (
            stop.cause, stop.grace_s, stop.on_timeout, stop.stop_id, stop.signal, stop.next_state.value,
            stop.preemptor, action.job_id,
        ),
    )  # fmt: skip


def clear_stop(context: WriteContext, action: act.ClearStop) -> None:
    """Clears the open preemption of a job, unless another request has replaced it."""
    cursor = context.db.execute(
        f"UPDATE job SET {', '.join(f'{name} = NULL' for name in NO_STOP)}"
        " WHERE id = ? AND stop_cause = 'preempted' AND stop_id = ?",
        (action.job_id, action.stop_id),
    )
    if cursor.rowcount:
        context.add_attempt_event(EventKind.PREEMPTION_WITHDRAWN, action.attempt_id)


def requeue_job(context: WriteContext, action: act.RequeueJob) -> None:
    """Queues a held or finished job again."""
    row = context.db.execute("SELECT * FROM job WHERE id = ?", (action.job_id,)).fetchone()
    # Only the user gives a job additional retries, and not by releasing one that waited for a retry.
    kept = (
        row["held_by"] in ("user", "line") or row["outcome"] == Outcome.SKIPPED.value or action.recoveries > 0
    )
    is_submitted = row["state"] == JobState.FINISHED.value and row["outcome"] != Outcome.SKIPPED.value
    min_vram_mib = row["min_vram_mib"] if action.min_vram_mib is None else action.min_vram_mib
    change_job_state(
        context, action.job_id, JobState.QUEUED, None, event_reason=action.reason,
        outcome=None, exit_code=None, signal=None, held_by=None, launch_failures=0, not_before_boot=None,
        finished_at=None, cleared_at=None, **NO_STOP, adopted=None,
        resume_from=row["resume_from"] if action.keeps_checkpoint else checkpoint_json(action.checkpoint),
        recoveries=action.recoveries,
        submitted_at=context.now.wall if is_submitted else row["submitted_at"],
        oom_retries_used=row["oom_retries_used"] if kept else 0,
        fail_retries_used=row["fail_retries_used"] if kept else 0,
        min_vram_mib=min_vram_mib,
        spec_key=context.store.spec_key(JobSpec.from_json(row["spec"]), min_vram_mib),
    )  # fmt: skip


def set_attribute(context: WriteContext, action: act.SetAttribute) -> None:
    """Changes an attribute of a job."""
    db = context.db
    row = db.execute("SELECT spec, min_vram_mib FROM job WHERE id = ?", (action.job_id,)).fetchone()
    # Memory that the user sets overrides the memory that an earlier attempt needed.
    min_vram_mib = None if action.name == "vram" else row["min_vram_mib"]
    changed = {action.name: action.value}
    if action.name == "command":
        changed["text"] = action.value
    spec = JobSpec.from_json(json.dumps({**json.loads(row["spec"]), **changed}))
    db.execute(
        "UPDATE job SET spec = ?, spec_key = ?, name = ?, priority = ?, min_vram_mib = ?, text = ?,"
        " identity = ? WHERE id = ?",
        (spec.to_json(), context.store.spec_key(spec, min_vram_mib), spec.name,
         NORMAL_PRIORITY if spec.priority is None else spec.priority, min_vram_mib, spec.text,
         spec.identity, action.job_id),
    )  # fmt: skip


def set_queue_positions(context: WriteContext, action: act.SetQueuePositions) -> None:
    """Sets the queue positions of jobs."""
    context.db.executemany(
        "UPDATE job SET position = ? WHERE id = ?",
        [(position, job_id) for job_id, position in action.positions],
    )


def record_forecasts(context: WriteContext, action: act.RecordForecasts) -> None:
    """Records the forecasts of jobs that have none yet."""
    context.db.executemany(
        "INSERT OR IGNORE INTO forecast (job_id, made_at, start_at, end_at) VALUES (?, ?, ?, ?)",
        [(job_id, context.now.wall, *times) for job_id, times in action.times.items()],
    )


def set_wait_reason(context: WriteContext, action: act.SetWaitReason) -> None:
    """Records why a pending group waits. If the group is infeasible, adds an event for its first jobs.

    Jobs that waited until fewer jobs of their name group run begin to wait for GPUs now.
    """
    db = context.db
    if action.reason.kind is not WaitKind.GROUP_FULL:
        db.execute(
            "UPDATE job SET queued_at = ?1 WHERE id IN (SELECT id FROM job WHERE state = 'queued'"
            " AND unmet_parents = 0 AND adopted IS NULL AND source_missing = 0 AND spec_key = ?2"
            " ORDER BY priority, position, id LIMIT ?4) AND EXISTS (SELECT 1 FROM pending_group AS old"
            " WHERE old.spec_key = ?2 AND json_extract(old.reason, '$.kind') = ?3)",
            (context.now.wall, action.spec_key, WaitKind.GROUP_FULL.value, _MAX_WAITING_ANEW),
        )
    db.execute(
        "INSERT OR REPLACE INTO pending_group (spec_key, reason) VALUES (?, ?)",
        (action.spec_key, action.reason.to_json()),
    )
    if action.reason.is_infeasible:
        rows = db.execute(
            "SELECT id FROM job WHERE state = 'queued' AND unmet_parents = 0 AND adopted IS NULL"
            " AND spec_key = ? ORDER BY id LIMIT ?",
            (action.spec_key, _MAX_INFEASIBLE_EVENTS),
        ).fetchall()
        for row in rows:
            context.add_event(EventKind.INFEASIBLE, row["id"], action.reason.to_json())


def answer_request(context: WriteContext, action: act.AnswerRequest) -> None:
    """Answers a request."""
    context.db.execute(
        "UPDATE request SET answered_at = ?, answer = ? WHERE id = ?",
        (context.now.wall, action.answer.to_json(), action.request_id),
    )
