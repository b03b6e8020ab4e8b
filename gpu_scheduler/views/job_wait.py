"""Formats what a command that waits for jobs reports about them."""

from __future__ import annotations

from gpu_scheduler.app.job_wait import AwaitedJob
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.job_spec import UNRESOLVED
from gpu_scheduler.core.model.states import WAITING, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.text.formatting import safe_text
from gpu_scheduler.views.job_findings import queueing_command, unfinished_job_text
from gpu_scheduler.views.reason_text import outcome_text, reason_text

#: Reasons to wait that a user may have to change.
_FOR_USER = frozenset({WaitKind.STORAGE, WaitKind.GPUS_UNREADABLE, WaitKind.LINE_MALFORMED})


def end_text(job: JobView) -> str:
    """Formats the end of a job: "job 3 completed", "job 3 failed, exit code 7"."""
    record = job.record
    outcome = outcome_text(record.outcome or Outcome.ENDED, record.exit_code, record.signal)
    more = None if record.reason is None else reason_text(record.reason, without_exit=True)
    return safe_text(f"job {record.id} {outcome}{f': {more}' if more else ''}")


def obstacle_text(job: AwaitedJob) -> str | None:
    """Formats why a waiting job may need the user; None if it does not wait or starts by itself."""
    view, record = job.view, job.view.record
    if record.state not in WAITING:
        return None
    if record.state is JobState.HELD:
        return f"{unfinished_job_text(view)}; {_queueing_text(view)}"
    if job.blocker is not None:
        remedy = f"; {_queueing_text(job.blocker)}" if job.blocker.record.state is JobState.HELD else ""
        return f"job {record.id} waits for other jobs, and {unfinished_job_text(job.blocker)}{remedy}"
    if not job.is_scheduler_up:
        return f"job {record.id} waits until `start`, because no scheduler is running"
    if view.infeasible or _needs_user(view):
        return unfinished_job_text(view)
    return None


def _queueing_text(held: JobView) -> str:
    record = held.record
    return f"`{queueing_command(record)}` queues it"


def _needs_user(job: JobView) -> bool:
    if job.wait is None:
        return False
    return job.wait.kind in _FOR_USER or any(parent.id == UNRESOLVED for parent in job.parents)
