"""Resolves references to jobs. A reference is a number, a range of numbers, or a name.

A name means the only open job with that name or, if none is open, the finished job that ended last.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.text.formatting import count_noun
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.job_lists import job_ids_in, jobs_named
from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store

#: A reference to jobs: an id, a range of ids, or a name.
JobRef = int | range | str

#: Maximum number of jobs with the same name that an error message lists.
_MAX_LISTED = 10


def resolve_job(store: Store, ref: JobRef) -> int:
    """Returns the id of the job.

    Raises SchedulerError for a range without jobs, and for a name that no job has or that several open jobs
    share. A number is returned without a lookup.
    """
    if isinstance(ref, str):
        return _job_named(store, ref)
    return ref if isinstance(ref, int) else _jobs_in_range(store, ref)[0]


def job_record(store: Store, job_id: int) -> JobRecord:
    """Returns a job. Raises SchedulerError if there is none."""
    job = store.job(job_id)
    if job is None:
        raise SchedulerError(
            f"there is no job {job_id} in {store.data_dir.folder}; `status --all` lists the jobs"
        )
    return job


def resolve_jobs(store: Store, refs: Iterable[JobRef]) -> list[int]:
    """Returns the ids of the jobs in the order of the references, each once.

    Raises SchedulerError like `resolve_job`, and for a range without any job.
    """
    found: dict[int, None] = {}
    for ref in refs:
        ids = _jobs_in_range(store, ref) if isinstance(ref, range) else [resolve_job(store, ref)]
        found.update(dict.fromkeys(ids))
    return list(found)


def _jobs_in_range(store: Store, numbers: range) -> list[int]:
    ids = job_ids_in(store, numbers)
    if not ids:
        raise SchedulerError(
            f"there are no jobs {numbers[0]} to {numbers[-1]} in {store.data_dir.folder};"
            " `status --all` lists the jobs"
        )
    return ids


def _job_named(store: Store, name: str) -> int:
    jobs = jobs_named(store, name)
    if not jobs:
        raise SchedulerError(
            f"there is no job named {name} in {store.data_dir.folder}; `status --all` lists the jobs"
            " ([name=…] on a job's line gives it a name)"
        )
    open_ones = [job for job in jobs if job.state is not JobState.FINISHED]
    if len(open_ones) > 1:
        # If no scheduler is running, some of these jobs may have ended without a record in the store.
        open_ones = [job for job in open_ones if not _has_ended(store, job)]
    if len(open_ones) > 1:
        listed = ", ".join(f"job {job.id} ({job.state})" for job in open_ones[:_MAX_LISTED])
        more = f" and {len(open_ones) - _MAX_LISTED:,} more" if len(open_ones) > _MAX_LISTED else ""
        raise SchedulerError(
            f"{count_noun(len(open_ones), 'open job')} are named {name}: {listed}{more}\n"
            "give a job number instead; nothing was done"
        )
    return (open_ones or jobs)[0].id


def _has_ended(store: Store, job: JobRecord) -> bool:
    if job.state not in ACTIVE:
        return False
    from gpu_scheduler.app.without_scheduler import observed_job

    return observed_job(store, job).state is JobState.FINISHED
