"""Reads and replaces the dependencies between jobs. They are facts; only the loop acts on them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable

from gpu_scheduler.core.model.job_spec import UNRESOLVED, Dependency, DependencyKind, Parent
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.store.store import Store

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
    rows = store.db.rows(
        "SELECT DISTINCT job_id FROM dependency WHERE parent_id = ?"
        " AND EXISTS (SELECT 1 FROM line WHERE line.job_id = dependency.job_id AND path = ?)",
        UNRESOLVED,
        path,
    )
    return [row["job_id"] for row in rows]


def children(store: Store, job_id: int) -> list[int]:
    """Returns the ids of the jobs that depend on this job, in ascending order."""
    rows = store.db.rows("SELECT DISTINCT job_id FROM dependency WHERE parent_id = ? ORDER BY job_id", job_id)
    return [row["job_id"] for row in rows]


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


def is_ancestor(store: Store, job_id: int, of: Iterable[int]) -> bool:
    """Returns whether a job is one of the jobs `of`, or one that they wait for, directly or indirectly."""
    row = store.db.row(
        "WITH RECURSIVE above (id) AS (SELECT value FROM json_each(?) UNION"
        " SELECT parent_id FROM above JOIN dependency ON job_id = above.id)"
        " SELECT 1 FROM above WHERE id = ?",
        json.dumps(list(of)), job_id,
    )  # fmt: skip
    return row is not None


def edges_above(store: Store, job_ids: Iterable[int]) -> dict[int, set[int]]:
    """Returns the parents of these jobs and of all jobs that they wait for, by job id."""
    found: dict[int, set[int]] = {}
    for job_id, parent_id in store.db.rows(
        "WITH RECURSIVE above (id) AS (SELECT value FROM json_each(?) UNION"
        " SELECT parent_id FROM above JOIN dependency ON job_id = above.id)"
        " SELECT job_id, parent_id FROM above JOIN dependency ON job_id = above.id",
        json.dumps(list(job_ids)),
    ):
        found.setdefault(job_id, set()).add(parent_id)
    return found


def dependent_jobs_of_file(store: Store, path: str) -> list[int]:
    """Returns the jobs with a line in this jobs file that depend on other jobs."""
    if store.db.row("SELECT 1 FROM dependency LIMIT 1") is None:
        return []
    rows = store.db.rows(
        "SELECT job_id FROM line WHERE path = ? AND job_id IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM dependency WHERE dependency.job_id = line.job_id)",
        path,
    )
    return [row["job_id"] for row in rows]


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
    row = store.db.row(
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
    return None if row is None else int(row["id"])


def failed_ancestors(store: Store, job_id: int, limit: int) -> list[int]:
    """Returns the ids of the first `limit` jobs because of whose ends a job is skipped, in ascending order.

    If a parent was itself skipped, these are the jobs because of which the parent was skipped.
    """
    rows = store.db.rows(
        "WITH RECURSIVE failed (id, outcome) AS (SELECT ?, 'skipped' UNION"
        " SELECT parent.id, parent.outcome FROM failed"
        " JOIN dependency ON job_id = failed.id AND dependency.kind = 'completed'"
        " JOIN job AS parent ON parent.id = parent_id WHERE failed.outcome = 'skipped'"
        " AND parent.state = 'finished' AND parent.outcome NOT IN ('completed', 'ended')"
        f" LIMIT {_MAX_VISITED}) SELECT id FROM failed WHERE outcome <> 'skipped' ORDER BY id LIMIT ?",
        job_id,
        limit,
    )
    return [row["id"] for row in rows]
