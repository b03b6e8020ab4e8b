"""Records the actions that change jobs, requests and wait reasons."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.model.attempt_status import Checkpoint
from gpu_scheduler.core.model.event import (
    AttemptDetails,
    EventDetails,
    EventKind,
    GpusReserved,
    JobEnded,
    ReservationDropped,
)
from gpu_scheduler.core.model.job_spec import NORMAL_PRIORITY, JobSpec, ParentStatus, status_of
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import TRANSITIONS, JobState, Outcome, check_transition
from gpu_scheduler.core.model.units import Now
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import dependencies
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.store import Store, insert_dependencies

# The transaction in which the writer records the actions of one round and adds events.


class WriteContext(Struct, frozen=True, dict=True):
    """An open transaction. now: the time of the round; executor: the executor of new attempts."""

    store: Store
    db: sqlite3.Connection
    settings: Settings
    now: Now
    executor: str

    @cached_property
    def _gpus(self) -> dict[str, tuple[int, int | None]]:
        rows = self.db.execute("SELECT uuid, idx, total_mib FROM gpu").fetchall()
        return {uuid: (index, total_mib) for uuid, index, total_mib in rows}

    def gpu_indices(self, gpus: Iterable[str]) -> list[int]:
        """Returns the indices of the given GPUs, with -1 for each unknown GPU."""
        return [self._gpus[gpu][0] if gpu in self._gpus else -1 for gpu in gpus]

    def gpu_total_mib(self, gpu: str) -> int | None:
        """Returns the memory size of a GPU, or None if it is unknown."""
        return self._gpus[gpu][1] if gpu in self._gpus else None

    def job_history(self, job_id: int) -> tuple[str, ...]:
        """Returns the events of a job as texts, oldest first."""
        events = self.db.execute("SELECT kind, reason FROM event WHERE job_id = ? ORDER BY id", (job_id,))
        return tuple(f"{event['kind']} {event['reason'] or ''}".strip() for event in events)

    def add_event(
        self,
        kind: EventKind,
        job_id: int = 0,
        reason: str | None = None,
        details: EventDetails | None = None,
    ) -> None:
        """Adds an event. job_id: 0 if it is not about a job; reason: plain text, or a reason as JSON."""
        data = {} if details is None else details.data()
        insert(
            self.db, "event", job_id=job_id, at=self.now.wall, kind=kind.value, reason=reason,
            data=json.dumps(data),
        )  # fmt: skip

    def add_attempt_event(self, kind: EventKind, attempt_id: int) -> None:
        """Adds an event about an attempt."""
        job_id, number = self.db.execute(
            "SELECT job_id, number FROM attempt WHERE id = ?", (attempt_id,)
        ).fetchone()
        self.add_event(kind, job_id, details=AttemptDetails(number))


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


# Records the dependencies of jobs, and skips or queues jobs as their parents require.


#: Maximum number of jobs that one round skips or queues again. If more are left, another round follows.
_MAX_SETTLED = 5_000


def set_dependencies(context: WriteContext, action: act.SetDependencies) -> None:
    """Replaces the dependencies of one kind of a job."""
    kind = action.kind.value
    context.db.execute("DELETE FROM dependency WHERE job_id = ? AND kind = ?", (action.job_id, kind))
    insert_dependencies(context.db, action.job_id, action.dependencies)


def settle_dependencies(context: WriteContext, action: act.SettleDependencies) -> None:
    """Skips the queued jobs with a failed parent, and queues the skipped jobs that have none any more.

    Both change the parents of further jobs, so this is repeated until no job is left.
    """
    left = _MAX_SETTLED
    while left > 0:
        found = _to_skip(context.db, left) + _to_queue(context.db, left)
        if not found:
            return
        for job_id in found:
            _settle(context, job_id)
        left -= len(found)


def _to_skip(db: sqlite3.Connection, limit: int) -> list[int]:
    rows = db.execute("SELECT id FROM job WHERE state = 'queued' AND failed_parents > 0 LIMIT ?", (limit,))
    return [row["id"] for row in rows.fetchall()]


def _to_queue(db: sqlite3.Connection, limit: int) -> list[int]:
    rows = db.execute(
        "SELECT id FROM job WHERE state = 'finished' AND outcome = 'skipped' AND failed_parents = 0 LIMIT ?",
        (limit,),
    )
    return [row["id"] for row in rows.fetchall()]


def _settle(context: WriteContext, job_id: int) -> None:
    """Skips a job if a parent failed, otherwise queues it again."""
    parents = dependencies.parents_of(context.store, [job_id]).get(job_id, ())
    failed = next((parent for parent in parents if status_of(parent) is ParentStatus.FAILED), None)
    if failed is None:
        reason = StateReason(ReasonKind.PARENT_RETRIED)
        requeue_job(context, act.RequeueJob(job_id, reason, keeps_checkpoint=True))
        return
    reason = StateReason(ReasonKind.PARENT_FAILED, parent=failed.id, parent_outcome=failed.outcome)
    change_job_state(
        context, job_id, JobState.FINISHED, reason, JobEnded(Outcome.SKIPPED.value),
        outcome=Outcome.SKIPPED.value, finished_at=context.now.wall,
    )  # fmt: skip


# Records the actions that reserve GPUs for a job that preempts others.


def reserve(context: WriteContext, action: act.Reserve) -> None:
    """Records the reservation of a queued job, and for which job its victims are preempted."""
    db = context.db
    # The job may have had a reservation by queue order.
    db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    rows = [(action.job_id, gpu) for gpu in action.gpus]
    db.executemany("INSERT INTO reservation (job_id, gpu) VALUES (?, ?)", rows)
    victims = [(action.job_id, attempt_id) for attempt_id in action.victims]
    db.executemany("UPDATE attempt SET preempted_for = ? WHERE id = ?", victims)
    marks = ", ".join("?" * len(action.victims))
    jobs = db.execute(f"SELECT job_id FROM attempt WHERE id IN ({marks}) ORDER BY job_id", action.victims)
    details = GpusReserved(context.gpu_indices(action.gpus), [job_id for (job_id,) in jobs])
    context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)


def drop_reservation(context: WriteContext, action: act.DropReservation) -> None:
    """Deletes the reservation of a job."""
    context.db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    context.add_event(EventKind.RESERVATION_DROPPED, action.job_id)


def set_queue_reservation(context: WriteContext, action: act.SetQueueReservation) -> None:
    """Replaces the reservation by queue order. Only a new job or the end of the reservation is an event."""
    db = context.db
    old = db.execute(
        "SELECT job_id, overtakes FROM reservation WHERE start_at IS NOT NULL LIMIT 1"
    ).fetchone()
    old_job = None if old is None else old["job_id"]
    db.execute("DELETE FROM reservation WHERE start_at IS NOT NULL")
    if old_job not in (None, action.job_id):
        dropped = ReservationDropped(old["overtakes"])
        context.add_event(EventKind.RESERVATION_DROPPED, old_job, details=dropped)
    if action.job_id is None:
        return
    db.executemany(
        "INSERT INTO reservation (job_id, gpu, start_at, overtakes) VALUES (?, ?, ?, ?)",
        [(action.job_id, gpu, action.start_at, action.overtakes) for gpu in action.gpus],
    )
    if action.job_id != old_job:
        details = GpusReserved(
            sorted(context.gpu_indices(action.gpus)), [], action.start_at, action.overtakes
        )
        context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)
