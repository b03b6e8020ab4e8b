"""Reads the dependencies between jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from gpu_scheduler.core.model.dependency import Dependency, DependencyKind
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.dependencies import ParentStatus, parent_status
from gpu_scheduler.store.store import Store


class Parent(NamedTuple):
    """A parent of a job. state, outcome: those of the parent; state is None if the parent is unknown."""

    id: int
    name: str | None
    state: JobState | None
    outcome: Outcome | None
    kind: DependencyKind
    reference: str

    @property
    def status(self) -> ParentStatus:
        """The effect of this parent on the job."""
        return parent_status(self.kind, self.state, self.outcome)


def parents(store: Store, job_id: int) -> list[Parent]:
    """Returns the parents of a job, sorted by id."""
    rows = store.db.rows(
        "SELECT parent_id, name, state, outcome, dependency.kind, reference FROM dependency"
        " LEFT JOIN job ON job.id = parent_id WHERE job_id = ? ORDER BY parent_id",
        job_id,
    )
    return [
        Parent(
            parent_id, name, JobState(state) if state else None, Outcome(outcome) if outcome else None,
            DependencyKind(kind), reference,
        )
        for parent_id, name, state, outcome, kind, reference in rows
    ]  # fmt: skip


def children(store: Store, job_id: int) -> list[int]:
    """Returns the ids of the jobs that depend on this job, in ascending order."""
    rows = store.db.rows("SELECT job_id FROM dependency WHERE parent_id = ? ORDER BY job_id", job_id)
    return [row["job_id"] for row in rows]


def dependencies_of(store: Store, job_ids: Iterable[int]) -> dict[int, set[Dependency]]:
    """Returns the dependencies of these jobs, by job id. Omits jobs without dependencies."""
    found: dict[int, set[Dependency]] = {}
    for job_id, parent_id, kind, reference in store.db.rows(
        "SELECT job_id, parent_id, kind, reference FROM dependency"
        " WHERE job_id IN (SELECT value FROM json_each(?))",
        json.dumps(list(job_ids)),
    ):
        found.setdefault(job_id, set()).add(Dependency(parent_id, DependencyKind(kind), reference))
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


def has_unsettled_dependencies(store: Store) -> bool:
    """Returns whether a job is to be skipped or queued again because of its parents."""
    row = store.db.row(
        "SELECT EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND failed_parents > 0)"
        " OR EXISTS (SELECT 1 FROM job WHERE state = 'finished' AND outcome = 'skipped'"
        " AND failed_parents = 0)"
    )
    return row is not None and bool(row[0])
