"""Keeps what a lost store is restored from: its backups in `X.d/backups`, and the attempt folders.

This module also checks whether a database is intact or was lost, and reads the highest ids that it has
assigned. The last three backups are kept.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.model.job import AdoptedProcess, Allocation, Attempt, Job
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.text.parsing import parse_json
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import ATTEMPT_FOLDER_NAME, JOB_FOLDER_NAME, DataDir
from gpu_scheduler.store.database import connect_read_only, is_development_schema, is_missing_or_empty
from gpu_scheduler.system.safe_file import read_json_bytes, sync

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


# Lists the attempt folders in `runs/` and reads the origin of each attempt from its folder.
#
# The origin is the part of spec.json from which a lost store can be restored. An attempt is recorded in the
# store before its folder is created. A folder whose attempt is missing from the store therefore belongs to a
# lost store or to a forgotten job.


#: The key of the origin in spec.json. The runner does not read it.
ORIGIN_KEY = "origin"
#: If an attempt may have been launched, its folder contains at least one of these files.
_LAUNCH_FILES = ("spec.json", "claim", "command.pid", "result")
_JOB_FOLDER, _ATTEMPT_FOLDER = re.compile(JOB_FOLDER_NAME), re.compile(ATTEMPT_FOLDER_NAME)
#: The fields recorded in the origin for the attempt, for each of its allocations, and for its job.
_ATTEMPT_FIELDS = ("executor", "learned", "assumed", "created_at")
_ALLOCATION_FIELDS = ("gpu", "share", "vram", "whole", "budget_mib", "baseline_mib")
_JOB_FIELDS = ("source", "priority", "min_vram_mib", "oom_retries_used", "fail_retries_used")


class AttemptFolder(Struct, frozen=True):
    """A folder below `runs/` that is named like an attempt folder.

    number: the attempt number; token_prefix: the first 8 characters of the token.
    """

    job_id: int
    number: int
    token_prefix: str
    path: Path


class Origin(Struct, frozen=True):
    """The origin of an attempt, as recorded in its spec.json.

    data_dir: the data directory in which the attempt was created. job: values from the job's row, by column.
    source_cwd: the working directory of the lines in the job's jobs file; None if the job did not come from a
    file. environment: the variables that the job inherits; None for those of the scheduler. spec: None if the
    folder has no usable spec.json. adopted: the running process that the attempt watches; None if it starts
    its command.
    """

    token: str
    boot_id: str
    log: str | None
    session: str | None
    executor: str
    data_dir: str | None = None
    spec: JobSpec | None = None
    created_at: float = 0.0
    source_cwd: str | None = None
    environment: Mapping[str, str] | None = None
    learned: bool = False
    assumed: bool = False
    allocations: tuple[Allocation, ...] = ()
    job: Mapping[str, Any] | None = None
    adopted: AdoptedProcess | None = None


def list_attempt_folders(
    data_dir: DataDir, skip_jobs: Container[int] = (), *, skip_unreadable: bool = False
) -> list[AttemptFolder]:
    """Returns the attempt folders, sorted by job and attempt number.

    skip_jobs: the ids of jobs whose folders are skipped, because listing the folders of very many jobs takes
    seconds if they must be read from disk. skip_unreadable: skip folders that cannot be read instead of
    raising OSError. If `runs` itself cannot be read, OSError is always raised.
    """
    found = []
    try:
        jobs = [
            name
            for name in os.listdir(data_dir.runs)
            if _JOB_FOLDER.fullmatch(name) and int(name) not in skip_jobs
        ]
    except FileNotFoundError:
        return []
    for job in jobs:
        folder = os.path.join(data_dir.runs, job)
        try:
            names = os.listdir(folder)
        except NotADirectoryError:
            continue
        except PermissionError:
            if not skip_unreadable:
                raise
            continue
        for name in names:
            match = _ATTEMPT_FOLDER.fullmatch(name)
            if match:
                found.append((int(job), int(match[1]), match[2], folder, name))
    return [
        AttemptFolder(job, number, prefix, Path(folder, name))
        for job, number, prefix, folder, name in sorted(found)
    ]


def unknown_to_store(folders: Collection[AttemptFolder], db: sqlite3.Connection) -> list[AttemptFolder]:
    """Returns the folders whose attempts are missing from the store, except those of forgotten jobs."""
    rows = db.execute("SELECT job_id, number, substr(token, 1, 8) FROM attempt").fetchall()
    known = {(row[0], row[1], row[2]) for row in rows}
    missing = [one for one in folders if (one.job_id, one.number, one.token_prefix) not in known]
    if not missing:
        return []
    sequence = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    newest = sequence[0] if sequence else 0
    jobs = {row[0] for row in db.execute("SELECT id FROM job").fetchall()}
    return [one for one in missing if one.job_id > newest or (one.job_id in jobs and may_have_launched(one))]


def may_have_launched(folder: AttemptFolder) -> bool:
    """Returns whether a file in the folder shows that the attempt may have been launched."""
    return any(os.path.lexists(folder.path / name) for name in _LAUNCH_FILES)


def origin_object(
    attempt: Attempt, job: Job, data_dir: DataDir, source_cwd: str | None, *, has_own_environment: bool
) -> dict[str, Any]:
    """Returns the origin of an attempt as the JSON object in spec.json.

    has_own_environment: whether the job was submitted with an environment, on which that in spec.json is
    based.
    """
    return {
        "data_dir": str(data_dir.folder),
        "spec": json.loads(job.spec_json),
        "source_cwd": source_cwd,
        "has_own_environment": has_own_environment,
        "job": {name: getattr(job, name) for name in _JOB_FIELDS},
        "adopted": None if job.adopted is None else json.loads(job.adopted.to_json()),
        "attempt": {
            **{name: getattr(attempt, name) for name in _ATTEMPT_FIELDS},
            "allocations": [
                {name: getattr(one, name) for name in _ALLOCATION_FIELDS} for one in attempt.allocations
            ],
        },
    }


def read_origin(folder: AttemptFolder) -> Origin | None:
    """Returns the origin of the attempt, or None if the folder has no usable spec.json."""
    try:
        return _parse_origin(folder, _read_json(folder.path / "spec.json"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def token_of(folder: AttemptFolder) -> str | None:
    """Returns the first usable token in spec.json, claim and result, or None if there is none."""
    found = read_origin(folder)
    if found is not None:
        return found.token
    tokens = (
        _valid_token(folder, _read_json(folder.path / name)) for name in ("spec.json", "claim", "result")
    )
    return next((token for token in tokens if token is not None), None)


def _valid_token(folder: AttemptFolder, content: Any) -> str | None:
    token = content.get("token") if isinstance(content, dict) else None
    if not isinstance(token, str) or not re.fullmatch(r"[0-9a-f]{32}", token):
        return None
    return token if token.startswith(folder.token_prefix) else None


def _read_json(path: Path) -> Any:
    """Returns the content of a JSON file, or None if the file is unreadable or invalid."""
    try:
        return parse_json(read_json_bytes(path, trust=True))
    except (OSError, ValueError):
        return None


def _parse_origin(folder: AttemptFolder, content: Any) -> Origin | None:
    token = _valid_token(folder, content)
    if token is None:
        return None
    log, session, more = content["log"], content["session"], content[ORIGIN_KEY]
    attempt, job = more["attempt"], more["job"]
    return Origin(
        token,
        str(content["boot_id"]),
        log if isinstance(log, str) else None,
        session if isinstance(session, str) else None,
        str(attempt["executor"]),
        data_dir=str(more["data_dir"]),
        spec=JobSpec.from_json(json.dumps(more["spec"])),
        created_at=float(attempt["created_at"]),
        source_cwd=None if more["source_cwd"] is None else str(more["source_cwd"]),
        environment=dict(content["env"]) if more.get("has_own_environment") else None,
        learned=bool(attempt["learned"]),
        assumed=bool(attempt["assumed"]),
        allocations=tuple(
            Allocation(**{name: one[name] for name in _ALLOCATION_FIELDS}) for one in attempt["allocations"]
        ),
        job={name: job[name] for name in _JOB_FIELDS},
        adopted=AdoptedProcess.from_values(more["adopted"]) if more.get("adopted") else None,
    )
