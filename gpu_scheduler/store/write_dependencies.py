"""Records the dependencies of jobs, and skips or queues jobs as their parents require."""

from __future__ import annotations

import sqlite3

from gpu_scheduler.core.model.event import JobEnded
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.dependencies import ParentStatus, status_of
from gpu_scheduler.store import dependencies
from gpu_scheduler.store.dependencies import insert_dependencies
from gpu_scheduler.store.write_context import WriteContext
from gpu_scheduler.store.write_jobs import change_job_state, requeue_job

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
