"""Formats what a command that waits for jobs reports about them."""

from __future__ import annotations

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.dependency import UNRESOLVED
from gpu_scheduler.core.model.states import WAITING, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.views.reason_text import outcome_text
from gpu_scheduler.views.wait_text import held_text, job_reason_text

#: Reasons to wait that a user may have to change.
_FOR_USER = frozenset({WaitKind.STORAGE, WaitKind.GPUS_UNREADABLE, WaitKind.LINE_MALFORMED})


def end_text(job: JobView) -> str:
    """Formats the end of a job: "job 3 completed", "job 3 failed, exit code 7"."""
    record = job.record
    outcome = outcome_text(record.outcome or Outcome.ENDED, record.exit_code, record.signal)
    reason = job_reason_text(job)
    more = f": {reason}" if reason and reason not in outcome else ""
    return safe_text(f"job {record.id} {outcome}{more}")


def obstacle_text(job: JobView, *, is_scheduler_up: bool) -> str | None:
    """Formats why a waiting job may need the user; None if it does not wait or starts by itself."""
    if job.record.state not in WAITING:
        return None
    job_id = job.record.id
    if job.record.state is JobState.HELD:
        return safe_text(f"job {job_id} is {held_text(job)}")
    if not is_scheduler_up:
        return f"job {job_id} waits until `start`, because no scheduler is running"
    if job.infeasible or _needs_user(job):
        return safe_text(f"job {job_id} waits: {job_reason_text(job)}")
    return None


def _needs_user(job: JobView) -> bool:
    if job.wait is not None and job.wait.kind is WaitKind.PARENTS:
        return any(one.state is JobState.HELD or one.id == UNRESOLVED for one in job.parents)
    return job.wait is not None and job.wait.kind in _FOR_USER
