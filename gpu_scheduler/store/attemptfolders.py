"""Lists the attempt folders in `runs/`, and keeps in each what puts its attempt and job on a record again.

An attempt is on the record before its folder is made. A folder that the record does not know is therefore one
that a lost record knew, or one of a job that was forgotten.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_scheduler.core import jsontext
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.safefile import json_bytes
from gpu_scheduler.store.home import Home

#: Where in spec.json it stands. The runner does not read it.
KEY = "origin"
#: Files of an attempt that may be launched, or was.
_SIGNS = ("spec.json", "claim", "command.pid", "result")
_JOB = re.compile(r"[1-9][0-9]{0,17}")
_ATTEMPT = re.compile(r"([1-9][0-9]{0,8})-([0-9a-f]{8})")
#: Columns of an attempt, and of its job, that are written as they are on the record.
_ATTEMPT_COLUMNS = ("share", "vram", "whole", "learned", "created_at")
_ATTEMPT_JSON = ("gpus", "baseline", "budgets")
_JOB_COLUMNS = ("source", "priority", "raised_mib", "oom_used", "fail_used")


@dataclass(frozen=True)
class AttemptFolder:
    """A folder in `runs/` that is named as one of an attempt. prefix: the first 8 letters of the token."""

    job_id: int
    number: int
    prefix: str
    path: Path


@dataclass(frozen=True)
class Origin:
    """What spec.json says of an attempt.

    record: the folder of the record that it was made in. attempt, job: columns of their rows. source_cwd: the
    working folder of the lines of the job's file; None = it has none. spec: None = of an earlier version,
    which did not write down what only the record knew.
    """

    token: str
    boot_id: str
    log: str | None
    session: str | None
    record: str | None = None
    spec: JobSpec | None = None
    created_at: float = 0.0
    source_cwd: str | None = None
    attempt: Mapping[str, Any] | None = None
    job: Mapping[str, Any] | None = None


def in_runs(home: Home, skip: Container[int] = (), *, readable: bool = False) -> list[AttemptFolder]:
    """The attempt folders, by job and number, but for those of the jobs to skip. Listing the folders of very
    many jobs takes seconds where the disk has to be asked. readable: leaves out those that may not be
    read, for which OSError is raised otherwise, as it is for `runs` itself.
    """
    found = []
    try:
        jobs = [name for name in os.listdir(home.runs) if _JOB.fullmatch(name) and int(name) not in skip]
    except FileNotFoundError:
        return []
    for job in jobs:
        folder = os.path.join(home.runs, job)
        try:
            names = os.listdir(folder)
        except NotADirectoryError:
            continue
        except PermissionError:
            if not readable:
                raise
            continue
        for name in names:
            match = _ATTEMPT.fullmatch(name)
            if match:
                found.append((int(job), int(match[1]), match[2], folder, name))
    return [
        AttemptFolder(job, number, prefix, Path(folder, name))
        for job, number, prefix, folder, name in sorted(found)
    ]


def unknown(folders: Collection[AttemptFolder], record: sqlite3.Connection) -> list[AttemptFolder]:
    """Those of attempts that the record should know and does not: folders of forgotten jobs are left out."""
    rows = record.execute("SELECT job_id, number, substr(token, 1, 8) FROM attempt").fetchall()
    known = {(row[0], row[1], row[2]) for row in rows}
    strange = [one for one in folders if (one.job_id, one.number, one.prefix) not in known]
    if not strange:
        return []
    sequence = record.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    newest = sequence[0] if sequence else 0
    jobs = {row[0] for row in record.execute("SELECT id FROM job").fetchall()}
    return [one for one in strange if one.job_id > newest or (one.job_id in jobs and has_begun(one))]


def has_begun(folder: AttemptFolder) -> bool:
    """Whether the folder has a file of a runner, or for one. Without, the attempt was never launched."""
    return any(os.path.lexists(folder.path / name) for name in _SIGNS)


def origin(row: sqlite3.Row, home: Home, source_cwd: str | None) -> dict[str, Any]:
    """What spec.json keeps of an attempt. row: of the attempt, with the columns of its job that differ."""
    return {
        "record": str(home.folder),
        "spec": json.loads(row["spec"]),
        "source_cwd": source_cwd,
        "job": {name: row[name] for name in _JOB_COLUMNS},
        "attempt": {
            **{name: row[name] for name in _ATTEMPT_COLUMNS},
            **{name: json.loads(row[name]) for name in _ATTEMPT_JSON},
        },
    }


def read(folder: AttemptFolder) -> Origin | None:
    """What the folder says of its attempt; None where it has no spec.json that can be used."""
    try:
        return _parsed(folder, _json(folder.path / "spec.json"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def token_of(folder: AttemptFolder) -> str | None:
    """The token of an attempt, by its spec.json, its claim or its result; None: it has none of them."""
    found = read(folder)
    if found is not None:
        return found.token
    said = (_token(folder, _json(folder.path / name)) for name in ("spec.json", "claim", "result"))
    return next((token for token in said if token is not None), None)


def _token(folder: AttemptFolder, said: Any) -> str | None:
    token = said.get("token") if isinstance(said, dict) else None
    if not isinstance(token, str) or not re.fullmatch(r"[0-9a-f]{32}", token):
        return None
    return token if token.startswith(folder.prefix) else None


def _json(path: Path) -> Any:
    """What a JSON file says; None where it cannot be used."""
    try:
        return jsontext.parse(jsontext.decode(json_bytes(path, trust=True)))
    except (OSError, ValueError):
        return None


def _parsed(folder: AttemptFolder, said: Any) -> Origin | None:
    token = _token(folder, said)
    if token is None:
        return None
    log, session = said["log"], said["session"]
    base = Origin(
        token, str(said["boot_id"]), log if isinstance(log, str) else None,
        session if isinstance(session, str) else None,
    )  # fmt: skip
    if KEY not in said:
        return base
    more = said[KEY]
    spec = JobSpec.from_json(json.dumps(more["spec"]))
    attempt, job = more["attempt"], more["job"]
    columns = {name: attempt[name] for name in _ATTEMPT_COLUMNS}
    columns |= {name: json.dumps(attempt[name]) for name in _ATTEMPT_JSON}
    return Origin(
        base.token, base.boot_id, base.log, base.session, str(more["record"]), spec,
        float(attempt["created_at"]),
        None if more["source_cwd"] is None else str(more["source_cwd"]),
        columns, {name: job[name] for name in _JOB_COLUMNS},
    )  # fmt: skip
