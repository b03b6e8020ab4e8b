"""The database of a record beside its attempt folders and backups: whether it can be the record of these."""

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

#: "empty": it has no table of jobs.
State = Literal["missing", "empty", "damaged", "whole"]


@dataclass(frozen=True)
class Condition:
    """damage: what is wrong with a damaged database. owner: the folder whose record a whole one is, by the id
    that lies here not this one. unknown: folders of attempts that it should know and
    does not. backups: newest first, not examined. extent, backed_up: how far it and its backups came."""

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
        """Whether this is not the record of what was done here, so that lines would run again."""
        return self.state == "damaged" or bool(self.unknown) or not self.extent.covers(self.backed_up)


def examine(home: Home, *, thorough: bool = True) -> Condition:
    """Look at all of it; nothing is changed. Raises OSError, and sqlite3.OperationalError where the database
    cannot be opened now.

    thorough: also at what may not be read, which raises then, and at the folders of jobs that are finished on
    the record. These may hide a newer attempt only if such a job was retried and nothing else was done since
    the database was put back.
    """
    try:
        there = tuple(backups(home))
    except PermissionError:
        if thorough or is_empty(home.database):
            raise
        there = ()
    backed_up = _backed_up(there)
    if is_empty(home.database):
        state: State = "empty" if os.path.lexists(home.database) else "missing"
        folders = tuple(in_runs(home))
        return Condition(state, "", None, Extent(), folders, folders, there, backed_up)
    try:
        extent = extent_of(home.database)
        with closing(sqlite3.connect(f"{home.database.absolute().as_uri()}?mode=ro", uri=True)) as db:
            owner = identity.owner_elsewhere(db, home)
            # A database that is not this record's shares no more than numbers with the jobs here.
            skip = frozenset[int]() if thorough or owner is not None else _finished(db)
            folders = tuple(in_runs(home, skip, readable=not thorough))
            strange = tuple(unknown(folders, db))
    except DamagedError as error:
        folders = tuple(in_runs(home))
        return Condition("damaged", str(error), None, Extent(), folders, folders, there, backed_up)
    return Condition("whole", "", owner, extent, folders, strange, there, backed_up)


def told_numbers(home: Home) -> Extent:
    """The highest numbers that the attempt folders and backups tell of. Raises OSError."""
    backed_up = _backed_up(backups(home))
    jobs = max([backed_up.jobs, *(one.job_id for one in in_runs(home))])
    return Extent(jobs, backed_up.attempts)


def _backed_up(there: Iterable[Backup]) -> Extent:
    return next((extent for one in there if (extent := known_extent(one)) != Extent()), Extent())


def _finished(db: sqlite3.Connection) -> frozenset[int]:
    return frozenset(row[0] for row in db.execute("SELECT id FROM job WHERE state = 'finished'"))


def is_empty(database: Path) -> bool:
    """Whether there is no database, or one without a table of jobs. False: it cannot be read."""
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
    """Whether there is no record where there was one: for readers, who are told of no other condition."""
    if not is_empty(home.database):
        return False
    try:
        return bool(backups(home)) or any(in_runs(home))
    except OSError:
        return False
