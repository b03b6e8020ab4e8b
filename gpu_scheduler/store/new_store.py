"""Creates a store, forgets all its jobs, and changes it from simulated to real GPUs or back.

Only `start` and commands that submit jobs create a store.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.core.model.event import EventKind, JobsForgotten
from gpu_scheduler.core.model.gpu import is_simulated
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import insert, query_read_only
from gpu_scheduler.store.moved_or_copied import adopt_folder
from gpu_scheduler.store.scheduler_lock import no_scheduler_starts
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import keep_statuses


def check_state_file(path: str) -> None:
    """Raises UsageError if this path cannot be that of a new state file."""
    if os.path.isdir(path) or path.endswith("/"):
        raise UsageError(
            f"--state-file {path}: is a folder; name a file in it, such as gpu_scheduler_state.json"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--state-file {path}: the folder {folder} does not exist; create it first")


def check_encoding(paths: Mapping[str, str | None]) -> None:
    """Raises UsageError for a path that is not valid UTF-8, because the store cannot contain it.

    paths: the paths by the option or the words that name them.
    """
    for what, path in paths.items():
        try:
            (path or "").encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{what} {path}: the path is not valid UTF-8, so the store cannot record it; rename it"
            ) from None


def create_store(data_dir: DataDir) -> bool:
    """Creates an empty store. Returns False if another program, such as `start`, is creating it.

    Raises SchedulerError, and OSError or sqlite3.OperationalError if the files cannot be created.
    """
    data_dir.check_access()
    data_dir.check_owner(take_over=False)
    is_new = not data_dir.folder.exists()
    data_dir.create()
    with no_scheduler_starts(data_dir.folder) as is_locked:
        if not is_locked:
            return False
        with removed_if_new(data_dir, is_new=is_new):
            data_dir.take_ownership()
            with closing(Store(data_dir, create=True)) as store:
                adopt_folder(store)
    return True


@contextmanager
def removed_if_new(data_dir: DataDir, *, is_new: bool) -> Iterator[None]:
    """Removes the data directory if this process created it and the block fails. It has no job yet."""
    try:
        yield
    except (SchedulerError, sqlite3.OperationalError):
        if is_new:
            shutil.rmtree(data_dir.folder, ignore_errors=True)
            data_dir.drop_ownership()
        raise


# Forgets all jobs of a store.
#
# It keeps the GPUs and their pauses, the measured usage and run times of attempts, and the working
# directories of jobs files. Job ids are never reused.


log = logging.getLogger(__name__)

#: Files in the data directory that are derived from the store and mention forgotten jobs.
_DERIVED_FILES = ("journal.jsonl", "journal.jsonl.1")
#: The tables to empty, in the order that foreign keys require.
_TABLES = (
    "submission_key", "dependency", "environment", "line", "pending_group", "reservation", "group_change",
    "event", "misplaced_process", "allocation", "attempt", "job", "job_count",
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


# Simulated or real GPUs. The managed GPUs in the store reveal the kind, so this works with stores of all
# versions.


#: Key in `meta`, by table, for the id of the last row before the store switched from real to simulated GPUs.
_NEWEST_REAL = {"measurement": "measured_on_real_gpus", "run_time": "newest_real_run_time"}


class RecordedGpus(Struct, frozen=True):
    """The kind of GPUs and the number of jobs in a store. simulated: None if the store has no GPUs."""

    simulated: bool | None
    jobs: int

    def conflicts_with(self, simulated: bool) -> bool:
        """Returns whether the store has jobs that ran on the other kind of GPUs."""
        return self.jobs > 0 and self.simulated is not None and self.simulated is not simulated

    def refusal(self, folder: Path) -> tuple[str, str]:
        """Returns why a start with the other kind of GPUs is refused, and the remedies."""
        made, asked = ("simulated", "real") if self.simulated else ("real", "simulated")
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return (
            f"the store in {folder} has {jobs} recorded with {made} GPUs, but this start would use {asked}"
            " GPUs; lines that have already run would not run again",
            "--state-file OTHER.json creates a separate store, --fresh forgets these jobs,"
            " and --keep-history keeps them",
        )


def recorded_gpus(database: Path) -> RecordedGpus | None:
    """Returns the kind of GPUs and the number of jobs in a database without changing it.

    Returns None if there is no database or it cannot be read at the moment.
    """
    gpus = query_read_only(database, "SELECT uuid FROM gpu WHERE managed")
    jobs = query_read_only(database, "SELECT count(*) AS n FROM job")
    if gpus is None or not jobs:
        return None
    return RecordedGpus(any(is_simulated(row["uuid"]) for row in gpus) if gpus else None, jobs[0]["n"])


def change_gpu_kind(store: Store, uuids: Iterable[str], now: Now) -> None:
    """Marks these managed GPUs, which are all of the kind that is no longer used, as unmanaged.

    If they are simulated, also removes everything that would affect real GPUs: pauses, needs raised after an
    OOM, measurements, run times, and GPU time. Real GPUs keep their pauses while they are unmanaged. Only the
    scheduler that holds the locks may call this function.
    """
    leaving = list(uuids)
    with store.db.transaction() as db:
        db.executemany("UPDATE gpu SET managed = 0 WHERE uuid = ?", [(uuid,) for uuid in leaving])
        db.execute("DELETE FROM pending_group")
        db.execute("DELETE FROM reservation WHERE start_at IS NOT NULL")
        if not any(map(is_simulated, leaving)):
            for table, key in _NEWEST_REAL.items():
                store.db.set_meta(key, str(store.db.value(f"SELECT max(id) FROM {table}") or 0))
            return
        db.executemany(
            "UPDATE gpu SET paused = 0, foreign_peaks = '[]' WHERE uuid = ?", [(uuid,) for uuid in leaving]
        )
        answer = RequestAnswer(AnswerCode.GPU_NOT_MANAGED).to_json()
        db.executemany(
            "UPDATE request SET answered_at = ?, answer = ?"
            " WHERE answered_at IS NULL AND verb IN ('pause', 'resume') AND target = ?",
            [(now.wall, answer, uuid) for uuid in leaving],
        )
        for table, key in _NEWEST_REAL.items():
            db.execute(f"DELETE FROM {table} WHERE id > ?", (int(store.db.meta(key) or 0),))
        db.execute("DELETE FROM gpu_time")
        for job_id, spec in store.db.rows("SELECT id, spec FROM job WHERE min_vram_mib IS NOT NULL"):
            key = store.spec_key(JobSpec.from_json(spec))
            db.execute("UPDATE job SET min_vram_mib = NULL, spec_key = ? WHERE id = ?", (key, job_id))
