"""Backups of the record in `X.d/backups`: made by SQLite, checked before they count; the last three are kept.

A database is judged here: whether it is whole, and how far it has come.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.home import Home

#: Backups that are kept.
KEPT = 3
_NAME = re.compile(r"scheduler-([1-9][0-9]{0,8})\.db")
_TEMPORARY = ".scheduler.db.new"


@dataclass(frozen=True)
class Extent:
    """The highest numbers that a record has given to a job and to an attempt; they never go down."""

    jobs: int = 0
    attempts: int = 0

    def covers(self, other: Extent) -> bool:
        """Whether a record that has come this far may know everything that the other one knows."""
        return self.jobs >= other.jobs and self.attempts >= other.attempts


@dataclass(frozen=True)
class Backup:
    """One backup. number: later ones have higher numbers, whatever the clock said."""

    path: Path
    number: int
    made_at: float


class DamagedError(SchedulerError):
    """A database that SQLite cannot read, or in which it finds errors."""


def backups(home: Home) -> list[Backup]:
    """The backups, newest first. None of them is opened."""
    found = []
    try:
        with os.scandir(home.backups) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    made_at = entry.stat(follow_symlinks=False).st_mtime
                    found.append(Backup(Path(entry.path), int(match[1]), made_at))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda backup: -backup.number)


def make(record: sqlite3.Connection, home: Home) -> Backup:
    """Make a backup and remove those before the last three.

    Raises OSError or sqlite3.Error where it cannot be written, DamagedError where the record is damaged, and
    SchedulerError where a backup knows more than the record; then the backups are as they were.
    """
    home.backups.mkdir(mode=0o700, exist_ok=True)
    temporary = home.backups / _TEMPORARY
    temporary.unlink(missing_ok=True)  # of a scheduler that was killed
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
            # The file does not count before it is synced as a whole.
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("PRAGMA journal_mode = OFF")
            record.backup(copy)
        extent = extent_of(temporary, immutable=True)
        there = backups(home)
        if there and not extent.covers(known := known_extent(there[0])):
            raise SchedulerError(
                f"{there[0].path} knows more than the record (up to job {known.jobs}), and is kept:"
                " `start --restore` goes on from it"
            )
        made = _place(temporary, home.backups / f"scheduler-{there[0].number + 1 if there else 1}.db")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for old in there[KEPT - 1 :]:
        old.path.unlink(missing_ok=True)
    return made


def extent_of(database: Path, *, immutable: bool = False) -> Extent:
    """How far a database has come that is there. Raises DamagedError, and sqlite3.OperationalError where it
    cannot be opened now. immutable: nobody writes it, and nothing may be made beside it."""
    mode = "immutable=1" if immutable else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?{mode}", uri=True, timeout=10.0)) as db:
            said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if said != "ok":
                raise DamagedError(f"{database} is damaged: {said}")
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "job" not in tables:
                raise DamagedError(f"{database} is not a record: it has no jobs table")
            numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    except sqlite3.OperationalError:
        raise  # which says nothing of what is in it
    except sqlite3.DatabaseError as error:
        raise DamagedError(f"{database} is damaged: {error}") from None
    return Extent(numbers.get("job", 0), numbers.get("attempt", 0))


def copy_to(backup: Backup, target: Path) -> None:
    """Let a copy appear under a free name, at once and synced. Raises OSError and sqlite3.Error."""
    temporary = target.with_name(_TEMPORARY)
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        source = f"{backup.path.absolute().as_uri()}?immutable=1"
        with closing(sqlite3.connect(source, uri=True)) as db, closing(sqlite3.connect(temporary)) as copy:
            copy.execute("PRAGMA synchronous = OFF")
            copy.execute("PRAGMA journal_mode = OFF")
            db.backup(copy)
        _place(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def known_extent(backup: Backup) -> Extent:
    """What a backup knows, by its sequences alone; nothing if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"{backup.path.absolute().as_uri()}?immutable=1", uri=True)) as db:
            numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
    except sqlite3.Error:
        return Extent()
    return Extent(numbers.get("job", 0), numbers.get("attempt", 0))


def _place(temporary: Path, path: Path) -> Backup:
    fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    match = _NAME.fullmatch(path.name)
    return Backup(path, int(match[1]) if match else 0, path.stat().st_mtime)
