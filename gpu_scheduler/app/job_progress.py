"""Reads the progress of running jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.app.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.app.job_views import context_of, job_view
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.core.model.states import ACTIVE
from gpu_scheduler.store.job_lists import jobs_to_watch
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.progress.job_progress import ProgressReader as ProgressReader


@dataclass(frozen=True)
class ProgressReport:
    """The jobs whose progress was asked for, at `now` (seconds since 1970)."""

    now: float
    jobs: tuple[JobView, ...]


def running_progress(location: Location) -> ProgressReport:
    """Returns the running jobs, watched or not, with their progress.

    Raises StoreNotFoundError before the first start.
    """
    from gpu_scheduler.app.status import StatusQuery, status

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


def new_reader() -> ProgressReader:
    """Returns a reader for `with_progress`. If the next call uses it again, it reads only what is new."""
    from gpu_scheduler.progress.job_progress import ProgressReader

    return ProgressReader()


def with_progress(
    store: Store,
    jobs: Iterable[JobView],
    now: float,
    reader: ProgressReader | None = None,
    *,
    with_checkpoint: bool = True,
) -> tuple[JobView, ...]:
    """Returns the jobs, the running ones with their progress.

    now: in wall seconds. with_checkpoint: whether to look for checkpoints even if the logs show the progress.
    """
    shown = list(jobs)
    running = [job for job in shown if job.is_running]
    if not running:
        return tuple(shown)
    from gpu_scheduler.attempts.running_progress import adopted_source, progress_source

    reader = new_reader() if reader is None else reader
    found, read = {}, set[int]()
    for job in running:
        record = store.job(job.record.id)
        if record is None:
            continue
        if job.attempt is None or record.is_unwatched:
            source = adopted_source(record)
        else:
            source = progress_source(store, record.spec, job.attempt)
        if source is not None:
            found[record.id] = reader.read(source, now, with_checkpoint=with_checkpoint)
            read.add(source.key)
    reader.keep_only(read)
    return tuple(job._replace(progress=found.get(job.record.id)) for job in shown)
