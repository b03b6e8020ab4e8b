"""Inspects the database, the attempt folders and the backups, and decides whether the store was lost."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Literal

from msgspec import Struct, field

from gpu_scheduler.core.jobsfile.reading import attributes_to_json
from gpu_scheduler.core.model.event import AttemptDetails, EventKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.backups import (
    AttemptFolder,
    Backup,
    DamagedDatabaseError,
    HighestIds,
    Origin,
    highest_ids,
    highest_ids_of_backup,
    list_attempt_folders,
    list_backups,
    unknown_to_store,
)
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import connect_read_only, insert, is_development_schema, is_missing_or_empty
from gpu_scheduler.store.requests import add_environment
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import insert_allocations

#: "empty": the database has no jobs table; "development": a development version wrote it.
DatabaseState = Literal["missing", "empty", "damaged", "development", "whole"]


class StoreCondition(Struct, frozen=True):
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

    def without_database(state: DatabaseState, damage: str = "") -> StoreCondition:
        folders = tuple(list_attempt_folders(data_dir))
        return StoreCondition(state, damage, None, HighestIds(), folders, folders, found, backed_up)

    if is_missing_or_empty(data_dir.database):
        return without_database("empty" if os.path.lexists(data_dir.database) else "missing")
    try:
        extent = highest_ids(data_dir.database)
        with closing(connect_read_only(data_dir.database)) as db:
            owner = moved_or_copied.owner_elsewhere(db, data_dir)
            if is_development_schema(db):
                folders = tuple(list_attempt_folders(data_dir))
                return StoreCondition("development", "", owner, extent, folders, (), found, backed_up)
            # If the database belongs to another store, its job ids match the folders here only by chance.
            skip = set[int]()
            if not thorough and owner is None:
                skip = {job_id for (job_id,) in db.execute("SELECT id FROM job WHERE state = 'finished'")}
            folders = tuple(list_attempt_folders(data_dir, skip, skip_unreadable=not thorough))
            missing = tuple(unknown_to_store(folders, db))
    except DamagedDatabaseError as error:
        return without_database("damaged", str(error))
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


# Restores missing attempts to the store from their attempt folders, in the caller's transaction.


_UNKNOWN_JOB: dict[str, Any] = {
    "source": "folder",
    "priority": 0,
    "min_vram_mib": None,
    "oom_retries_used": 0,
    "fail_retries_used": 0,
}


def has_job(db: sqlite3.Connection, job_id: int) -> bool:
    """Returns whether the store contains the job."""
    return db.execute("SELECT 1 FROM job WHERE id = ?", (job_id,)).fetchone() is not None


def insert_job(
    store: Store, db: sqlite3.Connection, folder: AttemptFolder, origin: Origin, created_at: float
) -> None:
    """Inserts the job of an attempt as a queued job whose queue position equals its id.

    If the origin has no spec, the job runs the attempt's command.sh. created_at: the time at which the job
    was created, in wall seconds.
    """
    command = f"bash {folder.path / 'command.sh'}"
    spec = origin.spec or JobSpec("command", command, str(folder.path), command=command)
    job = origin.job or _UNKNOWN_JOB
    environment = None if origin.environment is None else add_environment(store, origin.environment)
    insert(
        db, "job", id=folder.job_id, kind=spec.kind, identity=spec.identity, name=spec.name, text=spec.text,
        spec=spec.to_json(), spec_key=store.spec_key(spec, job["min_vram_mib"]), position=folder.job_id,
        state="queued", created_at=created_at, queued_at=created_at, submitted_at=created_at,
        environment=environment, **job,
    )  # fmt: skip


def insert_attempt(
    db: sqlite3.Connection,
    folder: AttemptFolder,
    origin: Origin,
    created_at: float,
    started_at: float | None,
    *,
    running: bool = False,
) -> None:
    """Inserts an open attempt and sets its job to starting or running, regardless of the job's state.

    created_at: the time at which the attempt was created; started_at: the time at which its runner started.
    Both are in wall seconds.
    """
    state, adopted = "running" if running else "starting", origin.adopted
    attempt_id = insert(
        db, "attempt", job_id=folder.job_id, number=folder.number, token=origin.token, boot_id=origin.boot_id,
        state=state, executor=origin.executor, learned=origin.learned, assumed=origin.assumed,
        launch_deadline_boot=0, log=origin.log, session=origin.session, created_at=created_at,
        started_at=started_at if adopted is None else adopted.started_at,
        watched_pid=None if adopted is None else adopted.pid,
        watched_ticks=None if adopted is None else adopted.start_ticks,
    )  # fmt: skip
    insert_allocations(db, attempt_id, origin.allocations)
    # The folder does not show the intermediate states, so the state changes are not checked here.
    db.execute(
        "UPDATE job SET state = ?, outcome = NULL, exit_code = NULL, signal = NULL, reason = NULL,"
        " held_by = NULL, finished_at = NULL, stop_cause = NULL, adopted = ? WHERE id = ?",
        (state, None if adopted is None else adopted.to_json(), folder.job_id),
    )
    data = json.dumps(AttemptDetails(folder.number).data())
    insert(db, "event", job_id=folder.job_id, at=time.time(), kind=EventKind.RESTORED.value, data=data)


def bind_lines(db: sqlite3.Connection, jobs: Iterable[tuple[int, Origin]]) -> None:
    """For each of these jobs that came from a jobs file, appends a line to that file's last reading.

    The scheduler then recognises the line in the file as that job's line and does not count it as new.
    """
    for job_id, origin in jobs:
        source = origin.job["source"] if origin.job else ""
        path = source.removeprefix("file:")
        if path == source or origin.spec is None:
            continue
        if db.execute("SELECT 1 FROM line WHERE job_id = ?", (job_id,)).fetchone():
            continue
        cwd = origin.source_cwd or origin.spec.cwd
        db.execute("INSERT OR IGNORE INTO jobs_file (path, cwd) VALUES (?, ?)", (path, cwd))
        last = db.execute(
            "SELECT coalesce(max(position), 0), coalesce(max(number), 0) FROM line WHERE path = ?", (path,)
        ).fetchone()
        spec = origin.spec
        insert(
            db, "line", path=path, position=last[0] + (1 << 20), number=last[1] + 1, identity=spec.identity,
            kind=spec.kind, text=spec.text, raw=f"{spec.text}\n",
            attributes=attributes_to_json(spec.attributes), job_id=job_id,
        )  # fmt: skip


def raise_id_sequences(db: sqlite3.Connection, minimum: HighestIds) -> None:
    """Ensures that new jobs and attempts get higher ids than these."""
    for table, number in (("job", minimum.jobs), ("attempt", minimum.attempts)):
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        if found is None and number:
            db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, number))
        elif found is not None and found[0] < number:
            db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, table))
