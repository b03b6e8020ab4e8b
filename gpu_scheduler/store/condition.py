"""Inspects the database, the attempt folders and the backups, and decides whether the store was lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpu_scheduler.store import identity
from gpu_scheduler.store.attemptfolders import AttemptFolder, in_runs, unknown
from gpu_scheduler.store.backups import Backup, DamagedError, Extent, backups, extent_of, known_extent
from gpu_scheduler.store.home import Home

#: "empty": the database has no jobs table.
State = Literal["missing", "empty", "damaged", "whole"]


@dataclass(frozen=True)
class Condition:
    """The condition of a store.

    damage              why the database counts as damaged.
    owner               the data directory of an intact database, if its id is not the one found here.
    folders             the attempt folders that were read.
    unknown_folders     those of attempts that the database should contain but does not.
    backups             newest first, not examined.
    highest_ids         in the database.
    backup_highest_ids  in the backups.
    """

    state: State
    damage: str = ""
    owner: str | None = None
    extent: Extent = field(default_factory=Extent)
    folders: tuple[AttemptFolder, ...] = ()
    unknown: tuple[AttemptFolder, ...] = ()
    backups: tuple[Backup, ...] = ()
    backed_up: Extent = field(default_factory=Extent)

    @property
    def is_lost(self) -> bool:
        """True if the database lacks jobs that were run here, so that their lines would run again."""
        return self.state == "damaged" or bool(self.unknown) or not self.extent.covers(self.backed_up)


def examine(home: Home, *, thorough: bool = True) -> Condition:
    """Inspects database, attempt folders and backups without changing anything.

    thorough: also read the folders of jobs that the store has as finished, and raise OSError for folders that
    cannot be read. A folder of a finished job hides a newer attempt only if an older database was put back
    and since then nothing but a retry of that job was done.

    Raises OSError, and sqlite3.OperationalError if the database cannot be opened at the moment.
    """
    try:
        found = tuple(backups(home))
    except PermissionError:
        if thorough or is_empty(home.database):
            raise
        found = ()
    backed_up = _backed_up(found)
    if is_empty(home.database):
        state: State = "empty" if os.path.lexists(home.database) else "missing"
        folders = tuple(in_runs(home))
        return Condition(state, "", None, Extent(), folders, folders, found, backed_up)
    try:
        extent = extent_of(home.database)
        with closing(sqlite3.connect(f"{home.database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            owner = identity.owner_elsewhere(db, home)
            # The jobs of another store's database have only ids in common with the folders here.
            skip = frozenset[int]() if thorough or owner is not None else _finished(db)
            folders = tuple(in_runs(home, skip, readable=not thorough))
            missing = tuple(unknown(folders, db))
    except DamagedError as error:
        folders = tuple(in_runs(home))
        return Condition("damaged", str(error), None, Extent(), folders, folders, found, backed_up)
    return Condition("whole", "", owner, extent, folders, missing, found, backed_up)


def told_numbers(home: Home) -> Extent:
    """Returns the highest ids in the attempt folders and the backups. Raises OSError."""
    backed_up = _backed_up(backups(home))
    jobs = max([backed_up.jobs, *(one.job_id for one in in_runs(home))])
    return Extent(jobs, backed_up.attempts)


def _backed_up(there: Iterable[Backup]) -> Extent:
    return next((extent for one in there if (extent := known_extent(one)) != Extent()), Extent())


def _finished(db: sqlite3.Connection) -> frozenset[int]:
    return frozenset(row[0] for row in db.execute("SELECT id FROM job WHERE state = 'finished'"))


def is_empty(database: Path) -> bool:
    """Returns whether the database is missing or has no jobs table; False if it cannot be read."""
    try:
        if os.stat(database).st_size == 0:
            return True
    except FileNotFoundError:
        return True
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone()
    except sqlite3.Error:
        return False


def is_lost(home: Home) -> bool:
    """Returns whether the store is missing although there was one. For readers, which check nothing else."""
    if not is_empty(home.database):
        return False
    try:
        return bool(backups(home)) or any(in_runs(home))
    except OSError:
        return False
