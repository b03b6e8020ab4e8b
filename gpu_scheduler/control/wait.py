"""Waits until jobs have ended, and determines the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct

from gpu_scheduler.core.model.job_spec import UNRESOLVED
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.request import QUEUEING
from gpu_scheduler.core.model.states import WAITING, JobState
from gpu_scheduler.core.scheduling.pending_queue import job_exit_code
from gpu_scheduler.show.job_findings import queueing_command, unfinished_job_text
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_jobs
from gpu_scheduler.show.job_views import JobView, blocking_ancestor, context_of, job_view
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.store import Store

#: Seconds between two checks whether the store has changed.
_POLL_INTERVAL_S = 0.1
#: Seconds after which the jobs are read even from an unchanged store, because their folders may have changed.
_MAX_AGE_S = 1.0

#: The shortest pause between two reads of the jobs, as a multiple of the time that a read takes.
_PAUSE_FACTOR = 4
#: Seconds after which the store is opened again.
_REOPEN_S = 30.0

#: Maximum number of jobs for which one read looks for a job that blocks them.
_MAX_BLOCKERS = 20


class AwaitedJob(Struct, frozen=True):
    """A job that a command waits for.

    has_ended: whether it has ended for good. blocker: the job because of which it cannot start unless the
    user does something; None if there is none. is_scheduler_up: whether a scheduler is running.
    """

    view: JobView
    has_ended: bool
    blocker: JobView | None
    is_scheduler_up: bool


#: Receives the jobs that it has not received as ended before.
Report = Callable[[Sequence[AwaitedJob]], None]


def find_jobs(location: Location, refs: Iterable[JobRef]) -> list[int]:
    """Returns the ids of the jobs. Raises SchedulerError if a reference means no job or several jobs."""
    with open_store(location, read_only=True) as store:
        return resolve_jobs(store, refs)


def wait_for_jobs(
    location: Location, job_ids: Sequence[int], report: Report, timeout_s: float | None = None
) -> int | None:
    """Waits until these jobs have ended. Returns the largest of their exit codes; None after the timeout.

    A held job, and one that can never start, is waited for like any other. If no scheduler is running, the
    end that is recorded in the folder of a job counts. Raises SchedulerError if a job does not exist.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    left, codes = job_ids, [0]
    while True:
        # The store is opened again and again, because `start --restore` replaces the database.
        with open_store(location, read_only=True) as store:
            reopen_at = time.monotonic() + _REOPEN_S
            while time.monotonic() < reopen_at:
                version, began = store.db.data_version, time.monotonic()
                jobs = _awaited_jobs(store, left)
                report(jobs)
                codes += [_exit_code(job.view) for job in jobs if job.has_ended]
                left = [job.view.record.id for job in jobs if not job.has_ended]
                if not left:
                    return max(codes)
                if not _wait_for_change(store, version, time.monotonic() - began, end):
                    return None


def _awaited_jobs(store: Store, job_ids: Collection[int]) -> list[AwaitedJob]:
    is_up = scheduler_pid_of(store) is not None
    with store.snapshot():
        jobs = [job_record(store, job_id) for job_id in job_ids]
        attempts = store.newest_attempts(job_ids)
        wanted = set(job_ids)
        active = [one for one in store.active_attempts() if one.job_id in wanted]
        context = context_of(store, job_ids, active, is_up=is_up)
        blocked = [job for job in jobs if job.unmet_parents][:_MAX_BLOCKERS]
        blockers = {job.id: blocking_ancestor(store, job, context) for job in blocked}
        views = [job_view(job, attempts.get(job.id), context) for job in jobs]
    return [
        AwaitedJob(
            view,
            _has_ended(view, context.open_requests.get(view.record.id), is_scheduler_up=is_up),
            blockers.get(view.record.id),
            is_up,
        )
        for view in views
    ]


def _has_ended(view: JobView, request: str | None, *, is_scheduler_up: bool) -> bool:
    """Returns whether a job has ended for good.

    A running scheduler must have recorded the end, and must not be about to queue the job again. request: the
    verb of the job's newest open request.
    """
    if view.record.state is not JobState.FINISHED or not is_scheduler_up:
        return view.record.state is JobState.FINISHED
    return view.is_recorded and request not in QUEUEING


def _exit_code(view: JobView) -> int:
    record = view.record
    return job_exit_code(record.state, record.outcome, record.exit_code, record.signal, view.wait)


def _wait_for_change(store: Store, version: int, read_s: float, end: float | None) -> bool:
    """Waits until the jobs should be read again. Returns False if the time is up before that.

    version: that of the store at the last read; read_s: the seconds that this read took, on which the pause
    depends, so that waiting for thousands of jobs does not occupy a processor.
    """
    now = time.monotonic()
    earliest, latest = now + _PAUSE_FACTOR * read_s, now + max(_MAX_AGE_S, _PAUSE_FACTOR * read_s)
    while now < latest and (now < earliest or store.db.data_version == version):
        if end is not None and now >= end:
            return False
        time.sleep(_POLL_INTERVAL_S)
        now = time.monotonic()
    return end is None or now < end


# Formats why a job that a command waits for may need the user.


#: Reasons to wait that a user may have to change.
_FOR_USER = frozenset({WaitKind.STORAGE, WaitKind.GPUS_UNREADABLE, WaitKind.LINE_MALFORMED})


def obstacle_text(job: AwaitedJob) -> str | None:
    """Formats why a waiting job may need the user; None if it does not wait or starts by itself."""
    view, record = job.view, job.view.record
    if record.state not in WAITING:
        return None
    if record.state is JobState.HELD:
        return f"{unfinished_job_text(view)}; `{queueing_command(record)}` queues it"
    if job.blocker is not None:
        other = job.blocker.record
        remedy = f"; `{queueing_command(other)}` queues it" if other.state is JobState.HELD else ""
        return f"job {record.id} waits for other jobs, and {unfinished_job_text(job.blocker)}{remedy}"
    if not job.is_scheduler_up:
        return f"job {record.id} waits until `start`, because no scheduler is running"
    is_unresolved = any(parent.id == UNRESOLVED for parent in view.parents)
    needs_user = view.wait is not None and (view.wait.kind in _FOR_USER or is_unresolved)
    return unfinished_job_text(view) if view.infeasible or needs_user else None
