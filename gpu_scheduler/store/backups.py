"""Makes, checks and restores backups of the store in `X.d/backups`, and keeps the last three.

This module also checks whether a database is intact or was lost, and reads the highest ids that it has
assigned.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.attempt_folders import list_attempt_folders
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import connect_read_only, is_development_schema, is_missing_or_empty
from gpu_scheduler.system.safe_file import sync

#: Number of backups to keep.
KEPT = 3
_NAME = re.compile(r"scheduler-([1-9][0-9]{0,8})\.db")
_TEMPORARY = ".scheduler.db.new"


class HighestIds(Struct, frozen=True):
    """The highest job id and attempt id that a store has assigned. They never decrease."""

    jobs: int = 0
    attempts: int = 0

    def covers(self, others: HighestIds) -> bool:
        """Returns whether a store with these ids may contain everything that the other store contains."""
        return self.jobs >= others.jobs and self.attempts >= others.attempts


class Backup(Struct, frozen=True):
    """A backup. number: a serial number, which increases even if the clock is set back."""

    path: Path
    number: int
    made_at: float


class DamagedDatabaseError(SchedulerError):
    """Raised if SQLite cannot read a database or finds errors in it."""


def list_backups(data_dir: DataDir) -> list[Backup]:
    """Returns the backups, newest first, without opening them."""
    found = []
    try:
        with os.scandir(data_dir.backups) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    made_at = entry.stat(follow_symlinks=False).st_mtime
                    found.append(Backup(Path(entry.path), int(match[1]), made_at))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda backup: -backup.number)


def is_store_lost(data_dir: DataDir) -> bool:
    """Returns whether the store is missing although one existed. Readers make only this check."""
    if not is_missing_or_empty(data_dir.database):
        return False
    try:
        return bool(list_backups(data_dir)) or any(list_attempt_folders(data_dir))
    except OSError:
        return False


def make_backup(db: sqlite3.Connection, data_dir: DataDir) -> Backup:
    """Makes a backup and removes all but the three newest backups.

    Raises OSError or sqlite3.Error if the backup cannot be written, DamagedDatabaseError if the store is
    damaged, and SchedulerError if a backup is newer than the store. After an error, the existing backups are
    unchanged.
    """
    data_dir.backups.mkdir(mode=0o700, exist_ok=True)
    with _temporary_copy(db, data_dir.backups) as temporary:
        extent = highest_ids(temporary, immutable=True)
        existing = list_backups(data_dir)
        if existing and not extent.covers(known := highest_ids_of_backup(existing[0])):
            raise SchedulerError(
                f"the backup {existing[0].path}, whose last job is job {known.jobs}, is newer than the store,"
                " so it is kept; `start --restore` continues from it"
            )
        made = _publish(
            temporary, data_dir.backups / f"scheduler-{existing[0].number + 1 if existing else 1}.db"
        )
    for old in existing[KEPT - 1 :]:
        old.path.unlink(missing_ok=True)
    return made


def highest_ids(database: Path, *, immutable: bool = False) -> HighestIds:
    """Returns the highest ids in an existing database after an integrity check.

    immutable: no process writes to the file, and SQLite must not create a file beside it. Raises
    DamagedDatabaseError if the database is damaged, and sqlite3.OperationalError if it cannot be opened at
    the moment.
    """
    try:
        with closing(connect_read_only(database, immutable=immutable, timeout_s=10.0)) as db:
            finding = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if finding != "ok":
                raise DamagedDatabaseError(f"{database} is damaged: {finding}")
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "job" not in tables:
                raise DamagedDatabaseError(f"{database} is not a scheduler store: it has no jobs table")
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                raise DamagedDatabaseError(f"{database} is damaged: its schema version is 0")
            return _highest_ids(db)
    except sqlite3.OperationalError:
        raise  # this is not evidence of damage
    except sqlite3.DatabaseError as error:
        raise DamagedDatabaseError(f"{database} is damaged: {error}") from None


def is_of_development_version(backup: Backup) -> bool:
    """Returns whether a development version made this intact backup, so that no release can read it."""
    with closing(connect_read_only(backup.path, immutable=True)) as db:
        return is_development_schema(db)


def restore_backup(backup: Backup, target: Path) -> None:
    """Copies a backup to an unused path, atomically and durably. Raises OSError and sqlite3.Error."""
    source = connect_read_only(backup.path, immutable=True)
    with closing(source) as db, _temporary_copy(db, target.parent) as temporary:
        _publish(temporary, target)


@contextmanager
def _temporary_copy(db: sqlite3.Connection, folder: Path) -> Iterator[Path]:
    """Yields a copy of a database in this folder. Removes the copy afterwards unless the block renamed it."""
    temporary = folder / _TEMPORARY
    temporary.unlink(missing_ok=True)  # left by a scheduler that was killed
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
            # SQLite need not sync the copy: the whole file is synced before it gets its final name.
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("PRAGMA journal_mode = OFF")
            db.backup(copy)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def highest_ids_of_backup(backup: Backup) -> HighestIds:
    """Returns the highest ids in a backup without an integrity check, or zeros if it cannot be read."""
    try:
        with closing(connect_read_only(backup.path, immutable=True)) as db:
            return _highest_ids(db)
    except sqlite3.Error:
        return HighestIds()


def _highest_ids(db: sqlite3.Connection) -> HighestIds:
    numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    return HighestIds(numbers.get("job", 0), numbers.get("attempt", 0))


def _publish(temporary: Path, path: Path) -> Backup:
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)
    match = _NAME.fullmatch(path.name)
    return Backup(path, int(match[1]) if match else 0, path.stat().st_mtime)
