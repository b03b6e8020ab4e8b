"""Finds, among the jobs that a job waits for directly or indirectly, those that need the user."""

from __future__ import annotations

import json
from collections.abc import Collection

from gpu_scheduler.store.store import Store

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
