"""Reads the jobs files and their lines from the store."""

from __future__ import annotations

from typing import NamedTuple

from gpu_scheduler.store.store import Store


class JobsFileRecord(NamedTuple):
    """A jobs file. cwd: working directory of its lines; problem: why it cannot be read, None = it can."""

    path: str
    cwd: str
    problem: str | None


class LineLocation(NamedTuple):
    """The jobs file and the line number of a job."""

    path: str
    number: int


class MalformedLineRecord(NamedTuple):
    """A malformed line of a jobs file. problem: the fault; accepted_form: a valid form, if one is known."""

    path: str
    number: int
    text: str
    problem: str
    accepted_form: str | None


def malformed_lines(store: Store) -> list[MalformedLineRecord]:
    """Returns the malformed lines of the last readings, by file and line."""
    rows = store.db.rows(
        "SELECT path, number, text, problem, accepted_form FROM line WHERE problem IS NOT NULL"
        " ORDER BY path, position"
    )
    return [MalformedLineRecord(*row) for row in rows]


def line_of(store: Store, job_id: int) -> LineLocation | None:
    """Returns the location of a job's line; None if it has none."""
    row = store.db.row("SELECT path, number FROM line WHERE job_id = ? ORDER BY position LIMIT 1", job_id)
    return None if row is None else LineLocation(*row)


def jobs_files(store: Store) -> list[JobsFileRecord]:
    """Returns the jobs files."""
    rows = store.db.rows("SELECT path, cwd, problem FROM jobs_file ORDER BY path")
    return [JobsFileRecord(*row) for row in rows]


def find_jobs_file(store: Store, path: str) -> JobsFileRecord | None:
    """Returns a jobs file; None if the scheduler has not read it."""
    row = store.db.row("SELECT path, cwd, problem FROM jobs_file WHERE path = ?", path)
    return None if row is None else JobsFileRecord(*row)
