"""Reads the jobs whose start can be forecast."""

from __future__ import annotations

import json

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.forecast import WaitingJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.pending_groups import QUEUED_JOB_COLUMNS, queued_job
from gpu_scheduler.store.store import Store

#: The condition for a queued job to start without the help of a user, if its parents complete.
#: The redundant condition lets SQLite use the index job_open.
_STARTS_BY_ITSELF = (
    "state = 'queued' AND state <> 'finished' AND failed_parents = 0 AND source_missing = 0"
    " AND adopted IS NULL"
)


def waiting_jobs(store: Store, now: Now, limit: int | None = None) -> list[WaitingJob]:
    """Returns the first `limit` queued jobs, in queue order, that start without the help of a user.

    They wait for GPUs, for other jobs, or for the delay after a failed launch.
    """
    rows = store.db.rows(
        f"SELECT {QUEUED_JOB_COLUMNS}, spec_key,"
        " CASE WHEN boot_id = ? THEN coalesce(not_before_boot, 0) ELSE 0 END,"
        " CASE WHEN unmet_parents > 0 THEN (SELECT json_group_array(parent_id) FROM dependency"
        " LEFT JOIN job AS parent ON parent.id = parent_id"
        " WHERE job_id = job.id AND parent.state IS NOT 'finished') END"
        f" FROM job WHERE {_STARTS_BY_ITSELF} ORDER BY priority, position, id LIMIT ?",
        now.boot_id, -1 if limit is None else limit,
    )  # fmt: skip
    found = []
    for row in rows:
        *job, spec_key, not_before, parents = tuple(row)
        found.append(
            WaitingJob(
                queued_job(tuple(job)),
                ResourceSpec.from_key(spec_key),
                () if parents is None else tuple(json.loads(parents)),
                now.wall + not_before - now.boot if not_before > now.boot else 0.0,
            )
        )
    return found
