"""The last reading of each jobs file, line by line, and what a file says about itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from gpu_scheduler.core.facts import JobFact
from gpu_scheduler.core.lines import BoundLine, Reading, attributes_from_json, attributes_to_json
from gpu_scheduler.core.states import JobState, Outcome
from gpu_scheduler.store.store import Store

_COLUMNS = "number, raw, text, kind, identity, attributes, problem, accepted, fresh, job_id"


def working_folder(store: Store, path: str, cwd: str) -> str:
    """The working folder of the file's lines: the recorded one, else `cwd`, recorded now."""
    with store.db.transaction() as db:
        db.execute("INSERT OR IGNORE INTO jobs_file (path, cwd) VALUES (?, ?)", (path, cwd))
        found: str = db.execute("SELECT cwd FROM jobs_file WHERE path = ?", (path,)).fetchone()["cwd"]
    return found


def load(store: Store, path: str) -> Reading:
    """The last reading of a file."""
    rows = store.db.rows(f"SELECT {_COLUMNS} FROM line WHERE path = ? ORDER BY position", path)
    return tuple(
        BoundLine(
            **{
                **dict(row),
                "attributes": attributes_from_json(row["attributes"]),
                "fresh": bool(row["fresh"]),
            }
        )
        for row in rows
    )


def save(store: Store, path: str, old: Reading, new: Reading) -> None:
    """Replace the reading `old`; only lines that differ are written."""
    with store.db.transaction() as db:
        for position, line in enumerate(new):
            if position < len(old) and old[position] == line:
                continue
            values = (
                line.number, line.raw, line.text, line.kind, line.identity,
                attributes_to_json(line.attributes), line.problem, line.accepted, line.fresh, line.job_id,
            )  # fmt: skip
            marks = ", ".join("?" * (2 + len(values)))
            db.execute(
                f"INSERT OR REPLACE INTO line (path, position, {_COLUMNS}) VALUES ({marks})",
                (path, position, *values),
            )
        db.execute("DELETE FROM line WHERE path = ? AND position >= ?", (path, len(new)))


def set_problem(store: Store, path: str, problem: str | None) -> None:
    """Why the file cannot be read now; None = it can."""
    with store.db.transaction() as db:
        db.execute("UPDATE jobs_file SET problem = ? WHERE path = ?", (problem, path))


def facts_of(store: Store, reading: Reading) -> dict[int, JobFact]:
    """How the jobs of a reading stand."""
    rows = store.db.rows(
        "SELECT id, state, outcome, held_by FROM job WHERE id IN"
        " (SELECT job_id FROM line WHERE job_id IS NOT NULL)"
    )
    wanted = {line.job_id for line in reading}
    return {row["id"]: job_fact(row) for row in rows if row["id"] in wanted}


def newest_facts(store: Store, identities: frozenset[str]) -> Mapping[str, JobFact]:
    """For each identity that has ever been a job, the newest one."""
    return {identity: job_fact(row) for identity, row in store.newest_of(identities).items()}


def job_fact(row: sqlite3.Row) -> JobFact:
    """How a job stands, from its row."""
    outcome = Outcome(row["outcome"]) if row["outcome"] else None
    return JobFact(row["id"], JobState(row["state"]), outcome, row["held_by"])


def queued_places(store: Store, job_ids: tuple[int, ...]) -> dict[int, int]:
    """The places of those of these jobs that are queued."""
    wanted = set(job_ids)
    rows = store.db.rows("SELECT id, place FROM job WHERE state = 'queued'")
    return {row["id"]: row["place"] for row in rows if row["id"] in wanted}
