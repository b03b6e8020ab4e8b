"""Inserts attempts that the store does not know, from their folders, in the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from gpu_scheduler.core.jobsfile.reading import attributes_to_json
from gpu_scheduler.core.model.event import AttemptDetails, EventKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.attempt_folders import AttemptFolder, Origin
from gpu_scheduler.store.backups import HighestIds
from gpu_scheduler.store.write_attempts import insert_allocations

_UNKNOWN_JOB: dict[str, Any] = {
    "source": "folder",
    "priority": 0,
    "min_vram_mib": None,
    "oom_retries_used": 0,
    "fail_retries_used": 0,
}


def has_job(db: sqlite3.Connection, job_id: int) -> bool:
    """Returns whether the store has the job."""
    return db.execute("SELECT 1 FROM job WHERE id = ?", (job_id,)).fetchone() is not None


def insert_job(
    db: sqlite3.Connection, folder: AttemptFolder, origin: Origin, created_at: float, *, learn: bool
) -> None:
    """Inserts the job of an attempt as queued; its id is its queue position.

    Without a spec it runs the attempt's command.sh. created_at: wall seconds of its creation.
    """
    command = f"bash {folder.path / 'command.sh'}"
    spec = origin.spec or JobSpec("command", command, str(folder.path), command=command)
    job = origin.job or _UNKNOWN_JOB
    db.execute(
        "INSERT INTO job (id, source, kind, identity, name, text, spec, spec_key, priority, position,"
        " state, min_vram_mib, oom_retries_used, fail_retries_used, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
        (
            folder.job_id, job["source"], spec.kind, spec.identity, spec.name, spec.text, spec.to_json(),
            ResourceSpec.of(spec, job["min_vram_mib"], learn_needs=learn).key(), job["priority"],
            folder.job_id, job["min_vram_mib"], job["oom_retries_used"], job["fail_retries_used"], created_at,
        ),
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
    """Inserts the attempt as open and sets its job to starting or running, whatever the state was.

    created_at, started_at: wall seconds at which the attempt was created and its runner began.
    """
    state = "running" if running else "starting"
    cursor = db.execute(
        "INSERT INTO attempt (job_id, number, token, boot_id, state, executor, learned, assumed,"
        " launch_deadline_boot, log, session, created_at, started_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
        (folder.job_id, folder.number, origin.token, origin.boot_id, state, origin.executor, origin.learned,
         origin.assumed, origin.log, origin.session, created_at, started_at),
    )  # fmt: skip
    assert cursor.lastrowid is not None
    insert_allocations(db, cursor.lastrowid, origin.allocations)
    # No folder has the states in between, so the table of allowed changes does not apply here.
    db.execute(
        "UPDATE job SET state = ?, outcome = NULL, exit_code = NULL, signal = NULL, reason = NULL,"
        " held_by = NULL, finished_at = NULL, cancel_cause = NULL, cancel_grace_s = NULL WHERE id = ?",
        (state, folder.job_id),
    )
    data = json.dumps(AttemptDetails(folder.number).data())
    db.execute(
        "INSERT INTO event (job_id, at, kind, data) VALUES (?, ?, ?, ?)",
        (folder.job_id, time.time(), EventKind.RESTORED.value, data),
    )


def bind_lines(db: sqlite3.Connection, jobs: Iterable[tuple[int, Origin]]) -> None:
    """Appends a line to the last reading of the jobs file for each of these jobs that came from one.

    The line in the file is then recognised as the line of that job and does not count as new.
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
        db.execute(
            "INSERT INTO line (path, position, number, identity, kind, text, raw, attributes, job_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                path, last[0] + (1 << 20), last[1] + 1, spec.identity, spec.kind, spec.text, f"{spec.text}\n",
                attributes_to_json(spec.attributes), job_id,
            ),
        )  # fmt: skip


def raise_id_sequences(db: sqlite3.Connection, minimum: HighestIds) -> None:
    """Ensures that new jobs and attempts get ids above these."""
    for table, number in (("job", minimum.jobs), ("attempt", minimum.attempts)):
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        if found is None and number:
            db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, number))
        elif found is not None and found[0] < number:
            db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, table))
