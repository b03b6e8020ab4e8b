"""Inspects the database, the attempt folders and the backups, and decides whether the store was lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpu_scheduler.store import location
from gpu_scheduler.store.attempt_folders import AttemptFolder, list_attempt_folders, unknown_to_store
from gpu_scheduler.store.backups import (
    Backup,
    DamagedDatabaseError,
    HighestIds,
    highest_ids,
    highest_ids_of_backup,
    list_backups,
)
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import is_development_schema
from gpu_scheduler.store.read_only import connect_read_only

#: "empty": the database has no jobs table; "development": a development version wrote it.
DatabaseState = Literal["missing", "empty", "damaged", "development", "whole"]


@dataclass(frozen=True)
class StoreCondition:
    """The condition of a store.

    damage              why the database counts as damaged; empty if it does not.
    owner               the data directory recorded in an intact database, if that directory's id differs
                        from the id in this one.
    folders             the attempt folders that were read.
    unknown_folders     the folders of attempts that the database should contain but does not.
    backups             the backups, newest first; their content has not been checked.
    highest_ids         the highest ids in the database.
    backup_highest_ids  the highest ids in the newest readable backup.
    """

    state: DatabaseState
    damage: str = ""
    owner: str | None = None
    highest_ids: HighestIds = field(default_factory=HighestIds)
    folders: tuple[AttemptFolder, ...] = ()
    unknown_folders: tuple[AttemptFolder, ...] = ()
    backups: tuple[Backup, ...] = ()
    backup_highest_ids: HighestIds = field(default_factory=HighestIds)

    @property
    def is_lost(self) -> bool:
        """True if the database lacks jobs that have run here, so that their lines would run again."""
        return (
            self.state == "damaged"
            or bool(self.unknown_folders)
            or not self.highest_ids.covers(self.backup_highest_ids)
        )


def inspect_store(data_dir: DataDir, *, thorough: bool = True) -> StoreCondition:
    """Inspects the database, the attempt folders and the backups without changing anything.

    thorough: also read the folders of jobs that are finished in the store, and raise OSError for folders that
    cannot be read. Skipping the folders of finished jobs hides a lost attempt only if someone put back an
    older database that lacks nothing except a retry of a finished job.

    Raises OSError, and sqlite3.OperationalError if the database cannot be opened at the moment.
    """
    try:
        found = tuple(list_backups(data_dir))
    except PermissionError:
        if thorough or is_missing_or_empty(data_dir.database):
            raise
        found = ()
    backed_up = _newest_backup_ids(found)
    if is_missing_or_empty(data_dir.database):
        state: DatabaseState = "empty" if os.path.lexists(data_dir.database) else "missing"
        folders = tuple(list_attempt_folders(data_dir))
        return StoreCondition(state, "", None, HighestIds(), folders, folders, found, backed_up)
    try:
        extent = highest_ids(data_dir.database)
        with closing(connect_read_only(data_dir.database)) as db:
            owner = location.owner_elsewhere(db, data_dir)
            if is_development_schema(db):
                folders = tuple(list_attempt_folders(data_dir))
                return StoreCondition("development", "", owner, extent, folders, (), found, backed_up)
            # If the database belongs to another store, its job ids match the folders here only by chance.
            skip = frozenset[int]() if thorough or owner is not None else _finished_job_ids(db)
            folders = tuple(list_attempt_folders(data_dir, skip, skip_unreadable=not thorough))
            missing = tuple(unknown_to_store(folders, db))
    except DamagedDatabaseError as error:
        folders = tuple(list_attempt_folders(data_dir))
        return StoreCondition("damaged", str(error), None, HighestIds(), folders, folders, found, backed_up)
    return StoreCondition("whole", "", owner, extent, folders, missing, found, backed_up)


def unknown_attempt_folders(data_dir: DataDir) -> list[AttemptFolder]:
    """Returns the folders of attempts that are missing from the store. Raises OSError and sqlite3.Error."""
    # Read the folders before the store, because an attempt is recorded before its folder is created.
    folders = list_attempt_folders(data_dir)
    with closing(connect_read_only(data_dir.database)) as db:
        return unknown_to_store(folders, db)


def highest_known_ids(data_dir: DataDir) -> HighestIds:
    """Returns the highest ids in the attempt folders and the backups. Raises OSError."""
    backed_up = _newest_backup_ids(list_backups(data_dir))
    jobs = max([backed_up.jobs, *(one.job_id for one in list_attempt_folders(data_dir))])
    return HighestIds(jobs, backed_up.attempts)


def _newest_backup_ids(found: Iterable[Backup]) -> HighestIds:
    return next(
        (extent for one in found if (extent := highest_ids_of_backup(one)) != HighestIds()), HighestIds()
    )


def _finished_job_ids(db: sqlite3.Connection) -> frozenset[int]:
    return frozenset(row[0] for row in db.execute("SELECT id FROM job WHERE state = 'finished'"))


def is_missing_or_empty(database: Path) -> bool:
    """Returns whether the database is missing or has no jobs table; False if it cannot be read."""
    try:
        if os.stat(database).st_size == 0:
            return True
    except FileNotFoundError:
        return True
    try:
        with closing(connect_read_only(database)) as db:
            return not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone()
    except sqlite3.Error:
        return False


def is_store_lost(data_dir: DataDir) -> bool:
    """Returns whether the store is missing although one existed. Readers make only this check."""
    if not is_missing_or_empty(data_dir.database):
        return False
    try:
        return bool(list_backups(data_dir)) or any(list_attempt_folders(data_dir))
    except OSError:
        return False
