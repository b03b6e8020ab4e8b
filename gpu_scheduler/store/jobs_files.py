"""Reads the jobs files and their lines from the store."""

from __future__ import annotations

from typing import NamedTuple

from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.store.store import Store


class JobsFileRecord(NamedTuple):
    """A jobs file. cwd: the working directory of its lines; problem: why it cannot be read, or None."""

    path: str
    cwd: str
    problem: str | None


class LineLocation(NamedTuple):
    """The jobs file that contains a job's line, and the number of the line."""

    path: str
    number: int


class MalformedLineRecord(NamedTuple):
    """A malformed line of a jobs file. problem: what is wrong; accepted_form: a valid form, or None."""

    path: str
    number: int
    text: str
    problem: str
    accepted_form: str | None


def malformed_lines(store: Store) -> list[MalformedLineRecord]:
    """Returns the malformed lines in the last readings, sorted by file and line."""
    rows = store.db.rows(
        "SELECT path, number, text, problem, accepted_form FROM line WHERE problem IS NOT NULL"
        " ORDER BY path, position"
    )
    return [MalformedLineRecord(*row) for row in rows]


def line_of(store: Store, job_id: int) -> LineLocation | None:
    """Returns the location of a job's line, or None if the job has no line."""
    row = store.db.row("SELECT path, number FROM line WHERE job_id = ? ORDER BY position LIMIT 1", job_id)
    return None if row is None else LineLocation(*row)


def jobs_files(store: Store) -> list[JobsFileRecord]:
    """Returns all jobs files that the scheduler has read, sorted by path."""
    rows = store.db.rows("SELECT path, cwd, problem FROM jobs_file ORDER BY path")
    return [JobsFileRecord(*row) for row in rows]


def find_jobs_file(store: Store, path: str) -> JobsFileRecord | None:
    """Returns the record of a jobs file, or None if the scheduler has not read the file."""
    row = store.db.row("SELECT path, cwd, problem FROM jobs_file WHERE path = ?", path)
    return None if row is None else JobsFileRecord(*row)


def newest_job_of(store: Store, identity: str) -> tuple[int, JobState, Outcome | None] | None:
    """Returns the id, state and outcome of the newest job with this identity; None if there is none."""
    where = "WHERE identity = ? ORDER BY id DESC LIMIT 1"
    row = store.db.row(f"SELECT id, state, outcome FROM job {where}", identity)
    return (
        row
        if row is None
        else (row["id"], JobState(row["state"]), row["outcome"] and Outcome(row["outcome"]))
    )
