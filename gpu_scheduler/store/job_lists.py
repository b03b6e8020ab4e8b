"""Lists and counts jobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from msgspec import Struct

from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import is_pattern
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.store.records import JOBS
from gpu_scheduler.store.store import Store

#: The condition of the index `job_listed`, which leaves out the cleared jobs.
_LISTED = "state = 'finished' AND cleared_at IS NULL"


def _jobs(store: Store, sql: str, *values: object) -> list[Job]:
    """Returns the jobs that a query on the table `job` selects. sql: the part of the query after FROM."""
    return list(map(JOBS.record, store.db.rows(f"SELECT {JOBS.columns} FROM {sql}", *values)))


def open_jobs(store: Store, states: Collection[JobState], limit: int | None = None) -> list[Job]:
    """Returns the jobs in these states, which must not include `finished`, in queue order."""
    marks = ", ".join("?" * len(states))
    return _jobs(
        store,
        f"job WHERE state <> 'finished' AND state IN ({marks}) ORDER BY priority, position, id LIMIT ?",
        *(state.value for state in states),
        -1 if limit is None else limit,
    )


def finished_jobs(
    store: Store, limit: int | None = None, *, only_failed: bool = False, with_cleared: bool = False
) -> list[Job]:
    """Returns the finished jobs, most recently finished first."""
    where = "state = 'finished'" if with_cleared else _LISTED
    outcomes = " AND outcome IN (SELECT value FROM json_each(?))" if only_failed else ""
    return _jobs(
        store,
        f"job WHERE {where}{outcomes} ORDER BY finished_at DESC, id DESC LIMIT ?",
        *([json.dumps(sorted(FAILED))] if only_failed else []),
        -1 if limit is None else limit,
    )


def jobs_meant(store: Store, reference: str) -> list[Job]:
    """Returns the jobs that a name, a group or a pattern means, by id; an empty list if it means none.

    These are, for each such name, the open jobs with this name or, if none is open, the one that ended last.
    A group and a pattern leave out cleared jobs.
    """
    where, values = _meaning(store, reference)
    by_name: dict[str | None, list[Job]] = {}
    for job in _jobs(store, f"job WHERE {where} ORDER BY coalesce(finished_at, 0.0), id", *values):
        by_name.setdefault(job.name, []).append(job)
    found = []
    for jobs in by_name.values():
        found += [job for job in jobs if job.state is not JobState.FINISHED] or jobs[-1:]
    return sorted(found, key=lambda job: job.id)


def newest_jobs_meant(store: Store, reference: str, other_than: int = 0) -> list[int]:
    """Returns the newest job with each name that a reference means, except the job `other_than`, by id."""
    where, values = _meaning(store, reference, other_than)
    rows = store.db.rows(f"SELECT max(id) AS id FROM job WHERE {where} GROUP BY name ORDER BY 1", *values)
    return [row["id"] for row in rows]


def _meaning(store: Store, reference: str, other_than: int = 0) -> tuple[str, tuple[str | int, ...]]:
    """Returns the condition for the jobs that a name, a group or a pattern means, with its values.

    An exact name wins over a group, and a group over a pattern.
    """
    pattern = reference.replace("[!", "[^") if is_pattern(reference) else ""
    conditions: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("name = ?", (reference,)),
        ("name >= ? AND name < ? AND cleared_at IS NULL", (f"{reference}/", f"{reference}0")),  # 0 follows /
        ("name GLOB ? AND cleared_at IS NULL", (pattern,)),
    )
    for where, values in conditions:
        if store.db.row(f"SELECT 1 FROM job WHERE {where} AND id <> ? LIMIT 1", *values, other_than):
            break
    return f"{where} AND id <> ?", (*values, other_than)


def job_exists(store: Store, reference: str) -> bool:
    """Returns whether a reference means a job: its id, its name, its group or a pattern.

    A number is always an id.
    """
    if reference.isdigit():
        return store.db.row("SELECT 1 FROM job WHERE id = CAST(? AS INTEGER)", reference) is not None
    where, values = _meaning(store, reference)
    return store.db.row(f"SELECT 1 FROM job WHERE {where} LIMIT 1", *values) is not None


def job_ids_in(store: Store, numbers: range) -> list[int]:
    """Returns the ids of the existing jobs in this range."""
    rows = store.db.rows("SELECT id FROM job WHERE id BETWEEN ? AND ? ORDER BY id", numbers[0], numbers[-1])
    return [row["id"] for row in rows]


def job_ids_of_source(store: Store, source: str) -> list[int]:
    """Returns the ids of the jobs with this source, in ascending order."""
    return [row["id"] for row in store.db.rows("SELECT id FROM job WHERE source = ? ORDER BY id", source)]


def jobs_of_file(store: Store, path: str) -> list[Job]:
    """Returns all unfinished jobs and all jobs with a line in this jobs file."""
    return _jobs(
        store, "job WHERE state <> 'finished' OR id IN (SELECT job_id FROM line WHERE path = ?)", path
    )


def jobs_ahead_of(store: Store, job: Job, limit: int) -> tuple[int, list[int]]:
    """Returns the number of queued jobs ahead of this one, and the ids of the first `limit` of them.

    Omits the jobs that wait for other jobs.
    """
    # The redundant condition lets SQLite use the index job_open.
    where = (
        "FROM job WHERE state = 'queued' AND state <> 'finished' AND unmet_parents = 0 AND adopted IS NULL"
        " AND (priority, position, id) < (?, ?, ?)"
    )
    key = (job.priority, job.position, job.id)
    count = store.db.row(f"SELECT count(*) AS n {where}", *key)
    rows = store.db.rows(f"SELECT id {where} ORDER BY priority, position, id LIMIT ?", *key, limit)
    return (count["n"] if count else 0), [row["id"] for row in rows]


def newest_jobs(store: Store, identities: Iterable[str]) -> dict[str, Job]:
    """Returns the newest job with each of these identities, from any source, by identity."""
    found = _jobs(
        store,
        "json_each(?) AS wanted JOIN job ON job.id = (SELECT max(id) FROM job WHERE identity = wanted.value)",
        json.dumps(list(identities)),
    )
    return {job.identity: job for job in found}


def newest_names(store: Store, limit: int) -> dict[int, str | None]:
    """Returns the names of the newest jobs that are not cleared, by id, the newest first."""
    sql = "SELECT id, name FROM job WHERE cleared_at IS NULL ORDER BY id DESC LIMIT ?"
    return {job_id: name for job_id, name in store.db.rows(sql, limit)}


def job_count(store: Store) -> int:
    """Returns the number of jobs."""
    count: int = store.db.rows("SELECT count(*) AS n FROM job")[0]["n"]
    return count


def state_counts(store: Store) -> dict[str, int]:
    """Returns the number of jobs in each state, omitting states without jobs."""
    rows = store.db.rows("SELECT state, jobs FROM job_count WHERE jobs > 0")
    return {row["state"]: row["jobs"] for row in rows}


def unsuccessful_counts(store: Store, *, with_cleared: bool = False) -> dict[str, int]:
    """Returns the number of finished jobs with each outcome except `completed`."""
    where = "state = 'finished'" if with_cleared else _LISTED
    rows = store.db.rows(
        f"SELECT outcome, count(*) AS n FROM job WHERE {where} AND outcome <> 'completed' GROUP BY outcome"
    )
    return {row["outcome"]: row["n"] for row in rows}


def cleared_count(store: Store) -> int:
    """Returns the number of jobs that `clear` took out of the lists."""
    count: int = store.db.rows("SELECT count(*) AS n FROM job WHERE cleared_at IS NOT NULL")[0]["n"]
    return count


def listed_count(store: Store) -> int:
    """Returns the number of finished jobs that are not cleared."""
    count: int = store.db.rows(f"SELECT count(*) AS n FROM job WHERE {_LISTED}")[0]["n"]
    return count


def interrupted_jobs(store: Store) -> list[Job]:
    """Returns the jobs that are held because their last attempts were interrupted, oldest first."""
    return _jobs(store, "job WHERE state = 'held' AND held_by = 'interrupted' ORDER BY id")


class JobFilter(Struct, frozen=True):
    """Selects jobs that match every value that is given.

    states, outcomes: match one of these. name: a name, a group or a pattern. source: the exact source.
    """

    states: tuple[JobState, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    name: str | None = None
    source: str | None = None


def jobs_before(store: Store, wanted: JobFilter, before: int | None, limit: int) -> list[Job]:
    """Returns the jobs with the highest ids below `before`, newest first, cleared ones too."""
    parts: list[tuple[str, tuple[str | int, ...]]] = [("TRUE", ())]
    for column, chosen in (("state", wanted.states), ("outcome", wanted.outcomes)):
        if chosen:
            marks = ", ".join("?" * len(chosen))
            parts.append((f"{column} IN ({marks})", tuple(one.value for one in chosen)))
    if wanted.name is not None:
        parts.append(_meaning(store, wanted.name))
    if wanted.source is not None:
        parts.append(("source = ?", (wanted.source,)))
    if before is not None:
        parts.append(("id < ?", (before,)))
    where = " AND ".join(f"({text})" for text, _ in parts)
    values = [value for _, some in parts for value in some]
    return _jobs(store, f"job WHERE {where} ORDER BY id DESC LIMIT ?", *values, limit)


# Reads the jobs that are adopted processes (docs/design.md, Adopted processes).


def jobs_to_watch(store: Store) -> list[Job]:
    """Returns the queued jobs whose adopted process no runner watches, oldest first."""
    return _jobs(store, "job WHERE state = 'queued' AND adopted IS NOT NULL ORDER BY id")


def adopted_job_of(store: Store, pid: int, start_ticks: int, boot_id: str) -> int | None:
    """Returns the job that is this process; None if there is none.

    start_ticks: the start of the process in kernel ticks since the boot that boot_id identifies.
    """
    for job in jobs_to_watch(store):
        one = job.adopted
        if one is not None and (one.pid, one.start_ticks, one.boot_id) == (pid, start_ticks, boot_id):
            return job.id
    for attempt in store.active_attempts():
        identity = (attempt.watched_pid, attempt.watched_ticks, attempt.boot_id)
        if attempt.state.is_open and identity == (pid, start_ticks, boot_id):
            return attempt.job_id
    return None
