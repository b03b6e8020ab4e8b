"""Forgets all jobs of a store.

It keeps the GPUs and their pauses, the measured usage and run times of attempts, and the working directories
of jobs files.
Job ids are never reused.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.core.model.event import EventKind, JobsForgotten
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import keep_statuses

log = logging.getLogger(__name__)

#: Files in the data directory that are derived from the store and mention forgotten jobs.
_DERIVED_FILES = ("journal.jsonl", "journal.jsonl.1")
#: The tables to empty, in the order that foreign keys require.
_TABLES = (
    "submission_key", "dependency", "environment", "line", "pending_group", "reservation", "group_change",
    "forecast", "event", "misplaced_process", "allocation", "attempt", "job", "job_count",
)  # fmt: skip


@contextmanager
def forgetting_jobs(store: Store) -> Iterator[int]:
    """Removes all jobs from the store before the block. Yields the number of removed jobs.

    If the block succeeds, commits the removal and deletes the attempt folders. If it fails, changes nothing.
    """
    with store.db.transaction() as db:
        jobs = _delete_jobs(db)
        yield jobs
    _remove_folders(store.data_dir)


def _delete_jobs(db: sqlite3.Connection) -> int:
    jobs: int = db.execute("SELECT count(*) FROM job").fetchone()[0]
    newest: int = db.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()[0]
    keep_statuses(db)
    for table in _TABLES:
        db.execute(f"DELETE FROM {table}")
    # Keep open requests for GPUs: a GPU that was paused while no scheduler was running stays paused.
    db.execute("DELETE FROM request WHERE answered_at IS NOT NULL OR verb NOT IN ('pause', 'resume')")
    if newest:
        # Event ids continue to grow, so that `events --follow` does not miss an event.
        data = json.dumps(JobsForgotten(jobs).data())
        kind = EventKind.FORGOTTEN.value
        insert(db, "event", id=newest + 1, job_id=0, at=time.time(), kind=kind, data=data)
    return jobs


def _remove_folders(data_dir: DataDir) -> None:
    """Removes all attempt folders, including those that an earlier removal left behind."""
    for name in os.listdir(data_dir.runs):
        shutil.rmtree(data_dir.runs / name, ignore_errors=True)
    left = [data_dir.runs / name for name in os.listdir(data_dir.runs)]
    for path in (data_dir.folder / name for name in _DERIVED_FILES):
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    if left:
        log.warning(
            "cannot remove %s, which belongs to a forgotten job; the next `start --fresh` tries again",
            left[0],
        )
