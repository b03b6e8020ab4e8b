"""Restores missing attempts to the store from their attempt folders, in the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from gpu_scheduler.core.jobsfile.reading import attributes_to_json
from gpu_scheduler.core.model.event import AttemptDetails, EventKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.attempt_folders import AttemptFolder, Origin
from gpu_scheduler.store.backups import HighestIds
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.environments import add_environment
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.write_attempts import insert_allocations

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
    state = "running" if running else "starting"
    attempt_id = insert(
        db, "attempt", job_id=folder.job_id, number=folder.number, token=origin.token, boot_id=origin.boot_id,
        state=state, executor=origin.executor, learned=origin.learned, assumed=origin.assumed,
        launch_deadline_boot=0, log=origin.log, session=origin.session, created_at=created_at,
        started_at=started_at if origin.adopted is None else origin.adopted.started_at,
        watched_pid=None if origin.adopted is None else origin.adopted.pid,
        watched_ticks=None if origin.adopted is None else origin.adopted.start_ticks,
    )  # fmt: skip
    insert_allocations(db, attempt_id, origin.allocations)
    # The folder does not show the intermediate states, so the state changes are not checked here.
    db.execute(
        "UPDATE job SET state = ?, outcome = NULL, exit_code = NULL, signal = NULL, reason = NULL,"
        " held_by = NULL, finished_at = NULL, stop_cause = NULL, adopted = ? WHERE id = ?",
        (state, None if origin.adopted is None else origin.adopted.to_json(), folder.job_id),
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
