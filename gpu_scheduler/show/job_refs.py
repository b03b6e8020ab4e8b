"""Resolves references to jobs: a number, a range of numbers, a name, a group or a pattern.

A name means the open jobs with that name or, if none is open, the finished job that ended last. A group and a
pattern mean that for each of their names (`core.model.job_spec`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_scheduler.core.model.gpu import format_ranges
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import group_of, is_pattern
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.text.formatting import count_noun, limit_length
from gpu_scheduler.errors import NoSuchJobError, SchedulerError, StoreNotFoundError
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store
from gpu_scheduler.store.job_lists import job_ids_in, jobs_meant, newest_names
from gpu_scheduler.store.store import Store

#: A reference to jobs: an id, a range of ids, or a name, a group or a pattern.
JobRef = int | range | str


def resolve_job(store: Store, ref: JobRef) -> int:
    """Returns the id of the job.

    Raises SchedulerError for a range without jobs, and for a name that means no job or several jobs. A number
    is returned without a lookup.
    """
    if isinstance(ref, str):
        return _single_job(store, ref)
    return ref if isinstance(ref, int) else _jobs_in_range(store, ref)[0]


def job_record(store: Store, job_id: int) -> Job:
    """Returns a job. Raises NoSuchJobError if there is none."""
    job = store.job(job_id)
    if job is None:
        raise NoSuchJobError(
            f"there is no job {job_id} in {store.data_dir.folder}; `status --all` lists the jobs"
        )
    return job


def resolve_jobs(
    store: Store, refs: Iterable[JobRef], concerns: Callable[[Job], bool] = lambda _: True
) -> list[int]:
    """Returns the ids of the jobs in the order of the references, each once.

    concerns: whether the command concerns a job; a name that means several jobs means only these of them.
    Raises SchedulerError for a range or a name without any job.
    """
    found: dict[int, None] = {}
    for ref in refs:
        if isinstance(ref, str):
            jobs = named_jobs(store, ref)
            now = [_as_shown(store, job) for job in jobs]
            ids = [job.id for job in now if len(jobs) == 1 or concerns(job)]
            if not ids:
                states = ", ".join(sorted({str(job.outcome or job.state) for job in now}))
                raise SchedulerError(
                    f"{ref} means {len(jobs):,} jobs, none of which this command concerns ({states});"
                    " nothing was done"
                )
        else:
            ids = _jobs_in_range(store, ref) if isinstance(ref, range) else [ref]
        found.update(dict.fromkeys(ids))
    return list(found)


def named_jobs(store: Store, reference: str) -> list[Job]:
    """Returns the jobs that a name, a group or a pattern means, by id. Raises NoSuchJobError if none."""
    jobs = jobs_meant(store, reference)
    if not jobs:
        what = "with a name such as" if is_pattern(reference) else "named"
        raise NoSuchJobError(
            f"there is no job {what} {reference} in {store.data_dir.folder}; `status --all` lists the jobs"
            " ([name=…] on a job's line gives it a name)"
        )
    return jobs


def _jobs_in_range(store: Store, numbers: range) -> list[int]:
    ids = job_ids_in(store, numbers)
    if not ids:
        raise NoSuchJobError(
            f"there are no jobs {numbers[0]} to {numbers[-1]} in {store.data_dir.folder};"
            " `status --all` lists the jobs"
        )
    return ids


def _single_job(store: Store, name: str) -> int:
    jobs = named_jobs(store, name)
    if len(jobs) > 1:
        # If no scheduler is running, some of these jobs may have ended without a record in the store.
        jobs = [job for job in jobs if not _has_just_ended(store, job)] or jobs[-1:]
    if len(jobs) > 1:
        what = f"{count_noun(len(jobs), 'open job')} are named {name}"
        if jobs[0].name != name:
            what = f"{name} means {len(jobs):,} jobs"
        listed = limit_length(format_ranges([job.id for job in jobs]))
        raise SchedulerError(f"{what}: {listed}\ngive a job number instead; nothing was done")
    return jobs[0].id


def _has_just_ended(store: Store, job: Job) -> bool:
    return job.state in ACTIVE and _as_shown(store, job).state is JobState.FINISHED


def _as_shown(store: Store, job: Job) -> Job:
    """Returns a job as `status` shows it, so that a command concerns a job that has just ended."""
    if job.state not in ACTIVE:
        return job
    from gpu_scheduler.show.job_views import observed_job

    return observed_job(store, job)


# Finds the words that complete an argument in a shell. Runs no program, because the user waits for them.


_MAX_JOBS = 1000


def completion_words(location: Location, kind: str) -> list[str]:
    """Returns the words for "jobs" (numbers, names and groups), "gpus" or conda "environments".

    There are no jobs and no GPUs without a store.
    """
    if kind == "environments":
        try:  # conda lists the folders of all environments in this file
            paths = (Path.home() / ".conda" / "environments.txt").read_text().split("\n")
        except (OSError, ValueError):
            paths = []
        return ["base", *(Path(path).name for path in paths if Path(path).parent.name == "envs")]
    try:
        with open_store(location, read_only=True) as store:
            if kind == "gpus":
                return ["all", *map(str, store.managed_gpus())]
            names = newest_names(store, _MAX_JOBS)
    except StoreNotFoundError:
        return []
    named = [name for name in names.values() if name is not None]
    return list(dict.fromkeys([*map(str, names), *named, *filter(None, map(group_of, named))]))
