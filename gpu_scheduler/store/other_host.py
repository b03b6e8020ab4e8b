"""Reads the store of another host from a copy.

Even a reader of SQLite takes locks, maps shared memory and may checkpoint the log into the file; two hosts
must not do that to the same file.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from gpu_scheduler.errors import SchedulerError

_MAX_TRIES = 20
_WAIT_S = 0.05


def copy_database(database: Path, refusal: str) -> tempfile.TemporaryDirectory[str]:
    """Returns a temporary folder with a consistent copy of the database and its log.

    Raises SchedulerError, beginning with `refusal`, if there is no database or it keeps changing.
    """
    folder = tempfile.TemporaryDirectory(prefix="gpu_scheduler_record_")
    try:
        for _ in range(_MAX_TRIES):
            if _try_copy(database, Path(folder.name)):
                return folder
            time.sleep(_WAIT_S)
        raise SchedulerError(f"{refusal}\n{database} changes too often to be read from this host; try again")
    except FileNotFoundError:
        folder.cleanup()
        raise SchedulerError(refusal) from None
    except BaseException:
        folder.cleanup()
        raise


def _try_copy(database: Path, folder: Path) -> bool:
    log = database.with_name(f"{database.name}-wal")
    before = _file_versions(database, log)
    target = folder / database.name
    shutil.copyfile(database, target)
    try:
        shutil.copyfile(log, folder / log.name)
    except FileNotFoundError:
        (folder / log.name).unlink(missing_ok=True)
    return _file_versions(database, log) == before and _is_whole(target)


def _file_versions(*paths: Path) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            found.append(None)
    return found


def _is_whole(path: Path) -> bool:
    try:
        connection = sqlite3.connect(path)
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False
