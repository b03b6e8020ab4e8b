"""Reads the jobs that are adopted processes (docs/design.md, Adopted processes)."""

from __future__ import annotations

from gpu_scheduler.store.records import JobRecord
from gpu_scheduler.store.store import Store


def jobs_to_watch(store: Store) -> list[JobRecord]:
    """Returns the queued jobs whose adopted process no runner watches, oldest first."""
    from gpu_scheduler.store.from_rows import JOB_COLUMNS, job_records

    return job_records(
        store.db.rows(
            f"SELECT {JOB_COLUMNS} FROM job WHERE state = 'queued' AND adopted IS NOT NULL ORDER BY id"
        )
    )


def adopted_job_of(store: Store, pid: int, start_ticks: int, boot_id: str) -> int | None:
    """Returns the job that is this process; None if there is none.

    start_ticks: the start of the process in kernel ticks since the boot that boot_id identifies.
    """
    for job in jobs_to_watch(store):
        one = job.adopted
        if one is not None and (one.pid, one.start_ticks, one.boot_id) == (pid, start_ticks, boot_id):
            return job.id
    for attempt in store.active_attempts():
        identity = (attempt.watched_pid, attempt.watched_ticks, attempt.boot_id)
        if attempt.state.is_open and identity == (pid, start_ticks, boot_id):
            return attempt.job_id
    return None
