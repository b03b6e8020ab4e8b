"""Reads the status from one snapshot of the store and from the folders of open attempts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.config import JOBS_FILE
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import ACTIVE, JobState, Outcome
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.show import gpu_views
from gpu_scheduler.show.gpu_views import foreign_claims, read_locks
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job, resolve_jobs
from gpu_scheduler.show.job_views import (
    JobView,
    StatusReport,
    context_of,
    health_issues_of,
    job_view,
    with_progress,
)
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.job_lists import (
    JobFilter,
    JobOrder,
    cleared_count,
    finished_jobs,
    jobs_to_watch,
    list_jobs,
    open_jobs,
    state_counts,
    unsuccessful_counts,
)
from gpu_scheduler.store.jobs_files import jobs_files, malformed_lines
from gpu_scheduler.store.pending_groups import reserved_gpus
from gpu_scheduler.store.state_file import requested_pauses
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import newest_job_of, redis_problem

if TYPE_CHECKING:
    from gpu_scheduler.attempts.job_progress import ProgressReader as ProgressReader
    from gpu_scheduler.core.model.job import ActiveAttempt
    from gpu_scheduler.store.attempt_history import PastRun

#: Number of bytes at the end of a running job's log that are searched for its last line.
_TAIL_BYTES = 4096


class StatusQuery(Struct, frozen=True):
    """The jobs that a status report lists.

    max_queued: the maximum number of queued jobs, and of held jobs (None means all); max_finished: the
    maximum number of finished jobs, newest first (None means all); only_failed: whether to list only failed
    jobs; with_cleared: whether to list cleared jobs too; last_lines: whether to read the last output line of
    each running job from its log; progress: whether to read how far each running job is;
    checkpoints: whether to look for their checkpoints, too, even if their logs show how far they are.
    jobs: the only jobs to list, whatever their states; empty means those that the other values choose.
    """

    max_queued: int | None = None
    max_finished: int | None = None
    only_failed: bool = False
    with_cleared: bool = False
    last_lines: bool = False
    progress: bool = False
    checkpoints: bool = False
    jobs: tuple[JobRef, ...] = ()


def status(
    location: Location, query: StatusQuery, progress_reader: ProgressReader | None = None
) -> StatusReport:
    """Returns the status. Raises StoreNotFoundError before the first start (see `empty_status`).

    progress_reader: the reader of an earlier call, which makes this one cheaper.
    """
    with open_store(location, read_only=True) as store:
        report = read_report(store, query)
        if query.progress:
            jobs = with_progress(
                store, report.jobs, report.now, progress_reader, with_checkpoint=query.checkpoints
            )
            report = replace(report, jobs=jobs)
        if query.last_lines:
            report = replace(report, jobs=tuple(map(_with_last_line, report.jobs)))
        return report


class ProgressReport(Struct, frozen=True):
    """The jobs whose progress was asked for, at `now` (seconds since 1970)."""

    now: float
    jobs: tuple[JobView, ...]


def running_progress(location: Location) -> ProgressReport:
    """Returns the running jobs, watched or not, with their progress.

    Raises StoreNotFoundError before the first start.
    """
    report = status(location, StatusQuery(max_queued=0, max_finished=0, progress=True, checkpoints=True))
    jobs = tuple(job for job in report.jobs if job.record.state in ACTIVE or job.is_running)
    if report.pid is None:
        with open_store(location, read_only=True) as store:
            unwatched = tuple(job.id for job in jobs_to_watch(store))
        for job_id in unwatched:
            jobs += job_progress(location, job_id).jobs
    return ProgressReport(report.now, jobs)


def job_progress(location: Location, job: JobRef) -> ProgressReport:
    """Returns a job with its progress, which only a running job has, watched or not.

    Raises SchedulerError if there is no such job.
    """
    with open_store(location, read_only=True) as store:
        is_up = scheduler_pid_of(store) is not None
        with store.snapshot():
            record = job_record(store, resolve_job(store, job))
            context = context_of(store, [record.id], store.active_attempts(), is_up=is_up)
            view = job_view(record, store.newest_attempts([record.id]).get(record.id), context)
        now = context.now.wall
        return ProgressReport(now, with_progress(store, [view], now))


class JobPage(Struct, frozen=True):
    """Some of the jobs, the newest first. next: the cursor of the next page; None if this is the last."""

    jobs: tuple[JobView, ...]
    next: int | None


def job_page(
    location: Location, wanted: JobFilter, cursor: int | None, limit: int, order: JobOrder = "newest"
) -> JobPage:
    """Returns at most `limit` jobs, running ones with their progress.

    cursor: that of the page, None for the first one. order: as for `list_jobs`. Raises StoreNotFoundError
    before the first start.
    """
    with open_store(location, read_only=True) as store:
        is_up = scheduler_pid_of(store) is not None
        with store.snapshot():
            found = list_jobs(store, wanted, cursor, limit + 1, order)
            jobs, ids = found[:limit], [job.id for job in found[:limit]]
            attempts = store.newest_attempts(ids)
            active = [one for one in store.active_attempts() if one.job_id in set(ids)]
            context = context_of(store, ids, active, is_up=is_up)
            views = tuple(job_view(job, attempts.get(job.id), context) for job in jobs)
        views = with_progress(store, views, time.time(), with_checkpoint=False)
    return JobPage(views, ids[-1] if len(found) > limit else None)


def runs_since(location: Location, since: float, now: float) -> tuple[list[PastRun], float]:
    """Returns the newest runs on GPUs since then, and the GPU-seconds for which reserved GPUs were idle.

    Times are wall seconds. Raises StoreNotFoundError before the first start.
    """
    from gpu_scheduler.store.attempt_history import gpu_time, recent_runs

    with open_store(location, read_only=True) as store, store.snapshot():
        return recent_runs(store, since, 500), gpu_time(store, now).reserved_idle_s


def job_of_item(location: Location, redis_id: str) -> int | None:
    """Returns the newest job of an item of a Redis queue; None if this queue has never taken it."""
    try:
        with open_store(location, read_only=True) as store:
            return newest_job_of(store, redis_id)
    except StoreNotFoundError:
        return None


def empty_status(location: Location) -> StatusReport:
    """Returns the status before the first start."""
    data_dir = location.resolve()
    return StatusReport(time.time(), None, str(data_dir.state_file), str(data_dir.folder))


def count_waiting_lines() -> int:
    """Returns how many lines of jobs.txt in this folder wait for a first `start`; 0 if it cannot be read."""
    from gpu_scheduler.intake.jobs_file_text import JobsFile
    from gpu_scheduler.system.safe_file import FileProblem

    content = JobsFile(Path(JOBS_FILE)).read()
    lines = () if isinstance(content, FileProblem) else content.splitlines()
    return sum(not line.lstrip().startswith(b"#") for line in lines if line.strip())


def failed_jobs(store: Store) -> tuple[JobView, ...]:
    """Returns the failed jobs, including those whose end is not recorded yet; the latest end comes first."""
    return read_report(store, StatusQuery(max_queued=0, only_failed=True)).jobs


def read_report(store: Store, query: StatusQuery) -> StatusReport:
    """Reads the report from the store, without the last output lines of running jobs."""
    pid = scheduler_pid_of(store)
    locks = read_locks(store)
    with store.snapshot():
        jobs = _listed_jobs(store, query)
        attempts = store.newest_attempts(job.id for job in jobs)
        active = store.active_attempts()
        context = context_of(store, (job.id for job in jobs), active, is_up=pid is not None)
        foreign = foreign_claims(store, locks, context.open_attempts.values(), pid)
        views = gpu_views.gpu_views(
            store.gpus(), active, requested_pauses(store), store.recorded_options(), foreign,
            reserved_gpus(store),
        )  # fmt: skip
        report = StatusReport(
            now=time.time(),
            health_issues=health_issues_of(store),
            pid=pid,
            redis_problem=redis_problem(store) if pid is not None else None,
            unserved=Counter() if pid is None else _unserved(store, active),
            state_file=str(store.data_dir.state_file),
            data_dir=str(store.data_dir.folder),
            gpus=gpu_views.with_pause_reasons(store, views),
            jobs=tuple(job_view(job, attempts.get(job.id), context) for job in jobs),
            counts=state_counts(store),
            unsuccessful_counts=unsuccessful_counts(store, with_cleared=query.with_cleared),
            hidden_count=0 if query.with_cleared or query.jobs else cleared_count(store),
            malformed=tuple(malformed_lines(store)),
            jobs_files=tuple(jobs_files(store)),
        )
    if query.jobs:
        ended = Counter(str(job.outcome) for job in jobs if job.outcome not in (None, Outcome.COMPLETED))
        counts = Counter(job.state.value for job in jobs)
        report = replace(report, counts=counts, unsuccessful_counts=ended)
    return report.failed_only(query.max_finished) if query.only_failed else report


def _unserved(store: Store, active: Iterable[ActiveAttempt]) -> Counter[str]:
    used = store.recorded_options().slurm is not None
    return Counter(one.executor for one in active if one.is_on_engine and one.state.is_open and not used)


def _listed_jobs(store: Store, query: StatusQuery) -> list[Job]:
    if query.jobs:
        picked = [job_record(store, job_id) for job_id in resolve_jobs(store, query.jobs)]
        return sorted(picked, key=lambda job: -(job.finished_at or 0.0))
    jobs = open_jobs(store, tuple(ACTIVE))
    for state in (JobState.QUEUED, JobState.HELD):
        jobs += [] if query.only_failed else open_jobs(store, (state,), query.max_queued)
    max_finished = None if query.only_failed else query.max_finished
    return jobs + finished_jobs(
        store, max_finished, only_failed=query.only_failed, with_cleared=query.with_cleared
    )


def _with_last_line(job: JobView) -> JobView:
    if job.record.state not in ACTIVE or job.log is None:
        return job
    from gpu_scheduler.attempts.job_logs import current_log, read_tail
    from gpu_scheduler.core.text.job_output import last_visible_line

    log = job.log if job.attempt is None else current_log(job.attempt)
    return job._replace(last_line=last_visible_line(read_tail(log, _TAIL_BYTES)))
