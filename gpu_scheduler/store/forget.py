"""Forgetting every job that a record knows. What stays: GPUs and their pauses, what attempts were measured to
use, the folders in which jobs files are read, and that a number of a job is never used again."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store

log = logging.getLogger(__name__)

#: Views of the record in its folder, which tell of jobs that it does not know any more.
_VIEWS = ("journal.jsonl", "journal.jsonl.1")
#: In this order, for what refers to what.
_TABLES = ("line", "waiting", "history", "attempt", "job", "tally")


@contextmanager
def forgetting(store: Store) -> Iterator[int]:
    """Inside, the record knows no job; yields how many it has forgotten.

    When the block ends well that is for good, and the folders of the attempts go; else everything stays.
    """
    with store.db.transaction() as db:
        jobs = _forget(db)
        yield jobs
    _remove_folders(store.home)


def _forget(db: sqlite3.Connection) -> int:
    jobs: int = db.execute("SELECT count(*) FROM job").fetchone()[0]
    newest: int = db.execute("SELECT coalesce(max(rowid), 0) FROM history").fetchone()[0]
    for table in _TABLES:
        db.execute(f"DELETE FROM {table}")
    # A GPU that was paused while no scheduler was up stays so.
    db.execute("DELETE FROM wish WHERE done_at IS NOT NULL OR verb NOT IN ('pause', 'resume')")
    if newest:
        # Its number goes on, so that whoever follows the events misses none.
        told = f"{jobs} job{'s' * (jobs != 1)} forgotten"
        db.execute(
            "INSERT INTO history (rowid, job_id, at, state, reason, data)"
            " VALUES (?, 0, ?, 'forgotten', ?, ?)",
            (newest + 1, time.time(), told, json.dumps({"jobs": jobs})),
        )
    return jobs


def _remove_folders(home: Home) -> None:
    """Also those that an earlier removal left, since no job has a folder now."""
    for name in os.listdir(home.runs):
        shutil.rmtree(home.runs / name, ignore_errors=True)
    left = [home.runs / name for name in os.listdir(home.runs)]
    for path in (home.folder / name for name in _VIEWS):
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    if left:
        log.warning(
            "%s, of a forgotten job, cannot be removed; the next `start --fresh` tries again", left[0]
        )
