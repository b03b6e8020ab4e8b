"""What front ends may do with the record: insert jobs and wishes, and read.

Changing a job or an attempt is the loop's alone (`recorder.py`).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import Ask
from gpu_scheduler.core.order import NORMAL
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.store.database import Database
from gpu_scheduler.store.home import Home


class Store:
    """The record of one state file."""

    def __init__(self, home: Home, *, create: bool = False) -> None:
        if create:
            home.create()
        self.home = home
        self.db = Database(home.database, create=create)

    def close(self) -> None:
        """Close the database."""
        self.db.close()

    def insert_job(self, spec: JobSpec, source: str, now: float | None = None) -> int:
        """A new job, queued or held, in the caller's transaction if there is one. Returns its id."""
        at = time.time() if now is None else now
        state = JobState.HELD if spec.hold else JobState.QUEUED
        outcome = None
        reason = "held by its line" if spec.hold else None
        if spec.cancel:
            state, outcome, reason = JobState.FINISHED, Outcome.CANCELLED, "cancelled by its line"
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO job (source, kind, identity, name, text, spec, ask, priority, place, state,"
                " outcome, reason, held_by, created_at, finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?,"
                " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'job'), 0) + 1, ?, ?, ?, ?, ?, ?)",
                (source, spec.kind, spec.identity, spec.name, spec.text, spec.to_json(), Ask.of(spec).key(),
                 NORMAL if spec.priority is None else spec.priority, state.value,
                 outcome.value if outcome else None, reason, "line" if state is JobState.HELD else None,
                 at, at if outcome else None),
            )  # fmt: skip
            job_id = cursor.lastrowid
            assert job_id is not None
            db.execute("INSERT INTO history VALUES (?, ?, ?, ?)", (job_id, at, state.value, reason))
        return job_id

    def wish(self, verb: str, target: str = "", by: str = "cli", **args: object) -> int:
        """Ask the loop for something. Returns the wish's id; `answer` tells what came of it."""
        with self.db.transaction() as db:
            cursor = db.execute(
                "INSERT INTO wish (verb, target, args, by, made_at) VALUES (?, ?, ?, ?, ?)",
                (verb, target, json.dumps(args), by, time.time()),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def answer(self, wish_id: int) -> str | None:
        """What came of a wish; None = not carried out yet."""
        row = self.db.row("SELECT answer FROM wish WHERE id = ?", wish_id)
        return row["answer"] if row else None

    def open_wishes(self) -> list[sqlite3.Row]:
        """Wishes that are not carried out yet, oldest first."""
        return self.db.rows("SELECT * FROM wish WHERE done_at IS NULL ORDER BY id")

    def job(self, job_id: int) -> sqlite3.Row | None:
        """One job."""
        return self.db.row("SELECT * FROM job WHERE id = ?", job_id)

    def attempts(self, job_id: int) -> list[sqlite3.Row]:
        """The attempts of a job, oldest first."""
        return self.db.rows("SELECT * FROM attempt WHERE job_id = ? ORDER BY number", job_id)

    def unsettled(self) -> list[sqlite3.Row]:
        """Attempts that are open, hold GPUs, or whose memory is not back, with their job's columns."""
        return self.db.rows(
            "SELECT attempt.*, job.state AS job_state, job.cancel_cause, job.cancel_grace_s,"
            " job.launch_failures, job.source AS job_source, job.spec AS job_spec, job.text AS job_text,"
            " EXISTS (SELECT 1 FROM line WHERE line.job_id = job.id) AS has_line"
            " FROM attempt JOIN job ON job.id = attempt.job_id WHERE attempt.settled = 0 ORDER BY attempt.id"
        )

    def gpus(self) -> list[sqlite3.Row]:
        """The managed GPUs, by index."""
        return self.db.rows("SELECT * FROM gpu WHERE managed ORDER BY idx")

    def asks(self) -> list[str]:
        """The distinct asks of the queued jobs (a skip scan: its cost does not grow with the queue)."""
        rows = self.db.rows(
            "WITH RECURSIVE asks (ask) AS (SELECT min(ask) FROM job WHERE state = 'queued' UNION ALL"
            " SELECT (SELECT min(ask) FROM job WHERE state = 'queued' AND job.ask > asks.ask) FROM asks"
            " WHERE asks.ask IS NOT NULL) SELECT ask FROM asks WHERE ask IS NOT NULL"
        )
        return [row["ask"] for row in rows]

    def startable(self, ask: str, boot: float, boot_id: str, limit: int) -> list[sqlite3.Row]:
        """The first queued jobs of an ask that nothing but GPUs keeps from starting, in order."""
        return self.db.rows(
            "SELECT id, priority, place, passed_at FROM job WHERE state = 'queued' AND ask = ? AND NOT gone"
            " AND (not_before_boot IS NULL OR not_before_boot <= ? OR boot_id <> ?)"
            " AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id AND settled = 0"
            " AND outcome IS NOT NULL AND released_boot IS NULL)"
            " ORDER BY priority, place, id LIMIT ?",
            ask, boot, boot_id, limit,
        )  # fmt: skip

    def next_retry(self, boot_id: str) -> float | None:
        """The boot time at which the next failed launch is tried again."""
        row = self.db.row(
            "SELECT min(not_before_boot) AS at FROM job WHERE state = 'queued' AND boot_id = ?", boot_id
        )
        return row["at"] if row else None

    def waiting(self) -> Mapping[str, str]:
        """Why the jobs of each ask wait."""
        return {row["ask"]: row["reason"] for row in self.db.rows("SELECT * FROM waiting")}

    def newest_of(self, identities: Iterable[str]) -> dict[str, sqlite3.Row]:
        """The newest job of each identity, whatever it came from."""
        found = {}
        for identity in identities:
            row = self.db.row("SELECT * FROM job WHERE identity = ? ORDER BY id DESC LIMIT 1", identity)
            if row is not None:
                found[identity] = row
        return found

    def history(self, job_id: int) -> list[dict[str, Any]]:
        """The states that a job went through, oldest first."""
        rows = self.db.rows("SELECT at, state, reason FROM history WHERE job_id = ? ORDER BY rowid", job_id)
        return [dict(row) for row in rows]
