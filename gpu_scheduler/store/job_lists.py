"""Lists and counts jobs, and reads and replaces the dependencies between them.

Dependencies are facts; only the loop acts on them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable
from typing import Literal

from msgspec import Struct

from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import UNRESOLVED, Dependency, DependencyKind, Parent, is_pattern
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
    return store.db.column(f"SELECT max(id) FROM job WHERE {where} GROUP BY name ORDER BY 1", *values)


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
    return store.db.column("SELECT id FROM job WHERE id BETWEEN ? AND ? ORDER BY id", numbers[0], numbers[-1])


def job_ids_of_source(store: Store, source: str) -> list[int]:
    """Returns the ids of the jobs with this source, in ascending order."""
    return store.db.column("SELECT id FROM job WHERE source = ? ORDER BY id", source)


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
    nearest = store.db.column(f"SELECT id {where} ORDER BY priority, position, id LIMIT ?", *key, limit)
    return store.db.value(f"SELECT count(*) {where}", *key), nearest


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
    return _count(store, "TRUE")


def state_counts(store: Store) -> dict[str, int]:
    """Returns the number of jobs in each state, omitting states without jobs."""
    return dict(map(tuple, store.db.rows("SELECT state, jobs FROM job_count WHERE jobs > 0")))


def unsuccessful_counts(store: Store, *, with_cleared: bool = False) -> dict[str, int]:
    """Returns the number of finished jobs with each outcome except `completed`."""
    where = "state = 'finished'" if with_cleared else _LISTED
    sql = f"SELECT outcome, count(*) FROM job WHERE {where} AND outcome <> 'completed' GROUP BY outcome"
    return dict(map(tuple, store.db.rows(sql)))


def cleared_count(store: Store) -> int:
    """Returns the number of jobs that `clear` took out of the lists."""
    return _count(store, "cleared_at IS NOT NULL")


def listed_count(store: Store) -> int:
    """Returns the number of finished jobs that are not cleared."""
    return _count(store, _LISTED)


def _count(store: Store, where: str) -> int:
    count: int = store.db.value(f"SELECT count(*) FROM job WHERE {where}")
    return count


def interrupted_jobs(store: Store) -> list[Job]:
    """Returns the jobs that are held because their last attempts were interrupted, oldest first."""
    return _jobs(store, "job WHERE state = 'held' AND held_by = 'interrupted' ORDER BY id")


class JobFilter(Struct, frozen=True):
    """Selects jobs that match every value that is given.

    states, outcomes: match one of these. name: a name, a group or a pattern. source: the exact source. text:
    part of the name or, if in_lines, of the line (ASCII letters in any case); or the id.
    """

    states: tuple[JobState, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    name: str | None = None
    source: str | None = None
    text: str | None = None
    in_lines: bool = True


#: The columns by which jobs are listed, and how the next one compares with the last one.
_ORDERS = {
    "newest": (("id",), "<"), "queue": (("priority", "position", "id"), ">"),
    "finished": (("finished_at", "id"), "<"),
}  # fmt: skip
JobOrder = Literal["newest", "queue", "finished"]


def list_jobs(
    store: Store, wanted: JobFilter, cursor: int | None, limit: int, order: JobOrder = "newest"
) -> list[Job]:
    """Returns at most `limit` jobs, cleared ones too: the newest, the first in the queue, or the last ended.

    cursor: the id of the job before the first one; with `newest` any id.
    """
    parts: list[tuple[str, tuple[str | int, ...]]] = [("TRUE", ())]
    for column, chosen in (("state", wanted.states), ("outcome", wanted.outcomes)):
        if chosen:
            marks = ", ".join("?" * len(chosen))
            parts.append((f"{column} IN ({marks})", tuple(one.value for one in chosen)))
    if wanted.states and (JobState.FINISHED not in wanted.states or len(wanted.states) == 1):
        # For the partial indexes, which SQLite uses only if it sees their condition.
        is_finished = JobState.FINISHED in wanted.states
        parts.append((f"state {'=' if is_finished else '<>'} 'finished'", ()))
    if wanted.name is not None:
        parts.append(_meaning(store, wanted.name))
    if wanted.source is not None:
        parts.append(("source = ?", (wanted.source,)))
    if wanted.text is not None:
        searched = "coalesce(name, '') || char(10) || text" if wanted.in_lines else "name"
        number = int(wanted.text) if re.fullmatch("[0-9]{1,15}", wanted.text) else 0
        parts.append((f"instr(lower({searched}), lower(?)) OR id = ?", (wanted.text, number)))
    columns, comparison = _ORDERS[order]
    if cursor is not None:
        last = "?" if order == "newest" else f"(SELECT {', '.join(columns)} FROM job WHERE id = ?)"
        parts.append((f"({', '.join(columns)}) {comparison} {last}", (cursor,)))
    direction = " DESC" if comparison == "<" else ""
    by = ", ".join(f"{column}{direction}" for column in columns)
    where = " AND ".join(f"({text})" for text, _ in parts)
    values = [value for _, some in parts for value in some]
    return _jobs(store, f"job WHERE {where} ORDER BY {by} LIMIT ?", *values, limit)


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


# The dependencies between jobs.


# A look-up is several times as fast as a call of the Enum.
_STATES, _OUTCOMES = {one.value: one for one in JobState}, {one.value: one for one in Outcome}
_KINDS = {one.value: one for one in DependencyKind}


def parents_of(store: Store, job_ids: Iterable[int]) -> dict[int, tuple[Parent, ...]]:
    """Returns the parents of these jobs, sorted by id, by job id. Omits jobs without parents.

    One query serves all jobs, because `status` may list 100,000 of them.
    """
    found: dict[int, list[Parent]] = {}
    for job_id, parent_id, name, state, outcome, kind, reference in store.db.rows(
        "SELECT job_id, parent_id, name, state, outcome, dependency.kind, reference FROM dependency"
        " LEFT JOIN job ON job.id = parent_id WHERE job_id IN (SELECT value FROM json_each(?))"
        " ORDER BY job_id, parent_id",
        json.dumps(list(job_ids)),
    ):
        found.setdefault(job_id, []).append(
            Parent(parent_id, name, _STATES.get(state), _OUTCOMES.get(outcome), _KINDS[kind], reference)
        )
    return {job_id: tuple(parents) for job_id, parents in found.items()}


def unresolved_jobs_of_file(store: Store, path: str) -> list[int]:
    """Returns the jobs with a line in this jobs file that have a reference to no job."""
    return store.db.column(
        "SELECT DISTINCT job_id FROM dependency WHERE parent_id = ?"
        " AND EXISTS (SELECT 1 FROM line WHERE line.job_id = dependency.job_id AND path = ?)",
        UNRESOLVED, path,
    )  # fmt: skip


def children(store: Store, job_id: int) -> list[int]:
    """Returns the ids of the jobs that depend on this job, in ascending order."""
    sql = "SELECT DISTINCT job_id FROM dependency WHERE parent_id = ? ORDER BY job_id"
    return store.db.column(sql, job_id)


def dependencies_of(store: Store, job_ids: Iterable[int]) -> dict[int, set[Dependency]]:
    """Returns the dependencies of these jobs, by job id. Omits jobs without dependencies."""
    found: dict[int, set[Dependency]] = {}
    for job_id, parent_id, kind, reference in store.db.rows(
        "SELECT job_id, parent_id, kind, reference FROM dependency"
        " WHERE job_id IN (SELECT value FROM json_each(?))",
        json.dumps(list(job_ids)),
    ):
        found.setdefault(job_id, set()).add(Dependency(parent_id, _KINDS[kind], reference))
    return found


#: Finds some jobs, which a parameter lists, and all jobs that these wait for, directly or indirectly.
_ABOVE = (
    "WITH RECURSIVE above (id) AS (SELECT value FROM json_each(?) UNION"
    " SELECT parent_id FROM above JOIN dependency ON job_id = above.id)"
)


def is_ancestor(store: Store, job_id: int, of: Iterable[int]) -> bool:
    """Returns whether a job is one of the jobs `of`, or one that they wait for, directly or indirectly."""
    return (
        store.db.row(f"{_ABOVE} SELECT 1 FROM above WHERE id = ?", json.dumps(list(of)), job_id) is not None
    )


def edges_above(store: Store, job_ids: Iterable[int]) -> dict[int, set[int]]:
    """Returns the parents of these jobs and of all jobs that they wait for, by job id."""
    found: dict[int, set[int]] = {}
    sql = f"{_ABOVE} SELECT job_id, parent_id FROM above JOIN dependency ON job_id = above.id"
    for job_id, parent_id in store.db.rows(sql, json.dumps(list(job_ids))):
        found.setdefault(job_id, set()).add(parent_id)
    return found


def dependent_jobs_of_file(store: Store, path: str) -> list[int]:
    """Returns the jobs with a line in this jobs file that depend on other jobs."""
    if store.db.row("SELECT 1 FROM dependency LIMIT 1") is None:
        return []
    return store.db.column(
        "SELECT job_id FROM line WHERE path = ? AND job_id IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM dependency WHERE dependency.job_id = line.job_id)",
        path,
    )


def remove_dependencies(
    db: sqlite3.Connection, job_id: int, parents: Iterable[tuple[int, DependencyKind]]
) -> None:
    """Removes the dependencies of a job on these parents, in the caller's transaction."""
    db.executemany(
        "DELETE FROM dependency WHERE job_id = ? AND parent_id = ? AND kind = ?",
        [(job_id, parent_id, kind.value) for parent_id, kind in parents],
    )


# Finds, among the jobs that a job waits for directly or indirectly, those that need the user.


#: Maximum number of jobs that one search visits. The nearest ones come first.
_MAX_VISITED = 100_000


def ancestor_that_needs_user(store: Store, job_id: int, infeasible: Collection[str]) -> int | None:
    """Returns the nearest job for which this job waits and that cannot start unless the user does something.

    Such a job is held, infeasible or waits for its line, or a job that it names does not exist. infeasible:
    the spec keys of jobs that can never fit.
    """
    found: int | None = store.db.value(
        "WITH RECURSIVE above (id) AS (SELECT parent_id FROM dependency WHERE job_id = ?1 UNION"
        " SELECT parent_id FROM above JOIN job AS child ON child.id = above.id"
        " AND child.state = 'queued' AND child.unmet_parents > 0"
        f" JOIN dependency ON job_id = above.id LIMIT {_MAX_VISITED})"
        " SELECT id FROM above CROSS JOIN job USING (id) WHERE state = 'held' OR (state = 'queued' AND ("
        " source_missing OR EXISTS (SELECT 1 FROM dependency WHERE job_id = job.id AND parent_id = 0)"
        " OR (unmet_parents = 0 AND adopted IS NULL"
        " AND spec_key IN (SELECT value FROM json_each(?2))))) LIMIT 1",
        job_id,
        json.dumps(sorted(infeasible)),
    )
    return found


def failed_ancestors(store: Store, job_id: int, limit: int) -> list[int]:
    """Returns the ids of the first `limit` jobs because of whose ends a job is skipped, in ascending order.

    If a parent was itself skipped, these are the jobs because of which the parent was skipped.
    """
    return store.db.column(
        "WITH RECURSIVE failed (id, outcome) AS (SELECT ?, 'skipped' UNION"
        " SELECT parent.id, parent.outcome FROM failed"
        " JOIN dependency ON job_id = failed.id AND dependency.kind = 'completed'"
        " JOIN job AS parent ON parent.id = parent_id WHERE failed.outcome = 'skipped'"
        " AND parent.state = 'finished' AND parent.outcome NOT IN ('completed', 'ended')"
        f" LIMIT {_MAX_VISITED}) SELECT id FROM failed WHERE outcome <> 'skipped' ORDER BY id LIMIT ?",
        job_id, limit,
    )  # fmt: skip
