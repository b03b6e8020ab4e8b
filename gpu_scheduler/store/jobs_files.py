"""Stores the last reading of each jobs file, line by line.

It also stores the working directory of each file's lines, and why the file cannot be read, if it cannot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.jobsfile.reading import Line, Reading
    from gpu_scheduler.core.model.job import Job


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
    sql = "SELECT id, state, outcome FROM job WHERE identity = ? ORDER BY id DESC LIMIT 1"
    for job_id, state, outcome in store.db.rows(sql, identity):
        return job_id, JobState(state), outcome and Outcome(outcome)
    return None


# The last reading of a jobs file.


#: The distance between the positions of adjacent lines.
_POSITION_STEP = 1 << 20
#: A position greater than that of any line.
_MAX_POSITION = 1 << 62
_COLUMNS = "number, raw, text, kind, identity, attributes, problem, accepted_form, is_typo, job_id"


def working_folder(store: Store, path: str, cwd: str) -> str:
    """Returns the working directory recorded for the file's lines. Records `cwd` first if there is none."""
    with store.db.transaction() as db:
        db.execute("INSERT OR IGNORE INTO jobs_file (path, cwd) VALUES (?, ?)", (path, cwd))
        found: str = db.execute("SELECT cwd FROM jobs_file WHERE path = ?", (path,)).fetchone()["cwd"]
    return found


def load_reading(store: Store, path: str) -> Reading:
    """Returns the last reading of a jobs file."""
    from gpu_scheduler.core.jobsfile.reading import Line, attributes_from_json

    rows = store.db.connection.execute(
        f"SELECT {_COLUMNS} FROM line WHERE path = ? ORDER BY position", (path,)
    )
    return tuple(
        Line(
            number, raw, text, kind, identity, attributes_from_json(attributes), problem, accepted,
            bool(fresh), job_id,
        )
        for number, raw, text, kind, identity, attributes, problem, accepted, fresh, job_id in rows
    )  # fmt: skip


def save_reading(store: Store, path: str, old: Reading, new: Reading) -> None:
    """Replaces the reading `old` with `new`.

    Writes only the lines that differ. Positions have gaps, so the lines after an inserted line keep their
    positions.
    """
    from gpu_scheduler.core.jobsfile.reading import attributes_to_json

    most = min(len(old), len(new))
    head = 0
    while head < most and (new[head] is old[head] or new[head] == old[head]):
        head += 1
    down = new[-1].number - old[-1].number if old and new else 0
    tail = 0
    while tail < most - head and _is_same_row(new[-1 - tail], old[-1 - tail], down):
        tail += 1
    with store.db.transaction() as db:
        before = _position_of_line(db, path, head - 1, len(old)) if head else -_POSITION_STEP
        behind = _position_of_line(db, path, len(old) - tail, len(old)) if tail else None
        if behind is not None and behind - before <= len(new) - tail - head:
            behind, tail = None, 0  # the gap is too small
        if tail and down:
            sql = "UPDATE line SET number = number + ? WHERE path = ? AND position >= ?"
            db.execute(sql, (down, path, behind))
        last = _MAX_POSITION if behind is None else behind
        db.execute("DELETE FROM line WHERE path = ? AND position > ? AND position < ?", (path, before, last))
        lines = new[head : len(new) - tail]
        step = _POSITION_STEP if behind is None else (behind - before) // (len(lines) + 1)
        rows = (
            (
                path, before + step * n, line.number, line.raw, line.text, line.kind, line.identity,
                attributes_to_json(line.attributes), line.problem, line.accepted_form, line.is_typo,
                line.job_id,
            )
            for n, line in enumerate(lines, 1)
        )  # fmt: skip
        marks = ", ".join("?" * 12)
        db.executemany(f"INSERT INTO line (path, position, {_COLUMNS}) VALUES ({marks})", rows)


def _is_same_row(new: Line, old: Line, down: int) -> bool:
    return new.job_id == old.job_id and new.is_identical_to(old, down)


def _position_of_line(db: sqlite3.Connection, path: str, index: int, count: int) -> int:
    """Returns the position of the line with this index among `count` lines, searching from the nearer end."""
    order, skipped = ("DESC", count - 1 - index) if index > count // 2 else ("ASC", index)
    sql = f"SELECT position FROM line WHERE path = ? ORDER BY position {order} LIMIT 1 OFFSET ?"
    found: int = db.execute(sql, (path, skipped)).fetchone()[0]
    return found


def set_problem(store: Store, path: str, problem: str | None) -> None:
    """Records why the file cannot be read, or None if it can be read."""
    store.db.write("UPDATE jobs_file SET problem = ? WHERE path = ?", problem, path)


def line_waits(store: Store, path: str) -> dict[int, WaitReason]:
    """Returns the last recorded reason why each waiting job of a file waits for its line, by job id."""
    sql = "SELECT id, line_wait FROM job WHERE source_missing AND line_wait IS NOT NULL AND source = ?"
    rows = store.db.rows(sql, f"file:{path}")
    return {job_id: WaitReason.from_json(wait) for job_id, wait in rows}


class JobsOfReading(Mapping[int, "Job"]):
    """Maps the job ids of a reading to the jobs, which are read from the store on each access."""

    def __init__(self, store: Store, reading: Reading) -> None:
        self._store, self._reading = store, reading

    def __getitem__(self, job_id: int) -> Job:
        found = self._store.job(job_id)
        if found is None:
            raise KeyError(job_id)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(line.job_id for line in self._reading if line.job_id is not None))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def queue_positions(store: Store, job_ids: tuple[int, ...]) -> dict[int, int]:
    """Returns the queue position of each of these jobs that is queued, by job id."""
    wanted = set(job_ids)
    rows = store.db.rows(
        "SELECT id, position FROM job WHERE state = 'queued' AND state <> 'finished'"
    )  # the redundant condition lets SQLite use the index job_open
    return {row["id"]: row["position"] for row in rows if row["id"] in wanted}
