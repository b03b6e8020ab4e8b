"""Reads the jobs whose start can be forecast, and how far earlier forecasts were off."""

from __future__ import annotations

import json

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.actions import JobTimes
from gpu_scheduler.core.scheduling.forecast import WaitingJob
from gpu_scheduler.core.scheduling.hindsight import Hindsight
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.store.pending_groups import QUEUED_JOB_COLUMNS, queued_job
from gpu_scheduler.store.store import Store

#: Number of completed jobs whose forecasts are judged.
_JUDGED = 200
#: The condition for a queued job to start without the help of a user, if its parents complete.
#: The redundant condition lets SQLite use the index job_open.
_STARTS_BY_ITSELF = (
    "state = 'queued' AND state <> 'finished' AND failed_parents = 0 AND source_missing = 0"
    " AND adopted IS NULL"
)


def waiting_jobs(
    store: Store,
    now: Now,
    limit: int | None = None,
    max_parents: int | None = None,
    *,
    with_unconfirmed: bool = False,
) -> list[WaitingJob]:
    """Returns the first `limit` queued jobs, in queue order, that start without the help of a user.

    They wait for GPUs, for other jobs, or for the delay after a failed launch. Omits the jobs that wait for
    more than `max_parents` others. with_unconfirmed: include the jobs from a Redis queue that are not
    confirmed yet.
    """
    starts = _STARTS_BY_ITSELF
    if with_unconfirmed:
        gate = "(source_missing = 0 OR json_extract(line_wait, '$.kind') = 'not confirmed')"
        starts = starts.replace("source_missing = 0", gate)
    rows = store.db.rows(
        f"SELECT {QUEUED_JOB_COLUMNS}, spec_key,"
        " CASE WHEN boot_id = ? THEN coalesce(not_before_boot, 0) ELSE 0 END,"
        " CASE WHEN unmet_parents > 0 THEN (SELECT json_group_array(parent_id) FROM dependency"
        " LEFT JOIN job AS parent ON parent.id = parent_id"
        " WHERE job_id = job.id AND parent.state IS NOT 'finished') END"
        f" FROM job WHERE {starts} AND unmet_parents <= coalesce(?, unmet_parents)"
        " ORDER BY priority, position, id LIMIT ?",
        now.boot_id, max_parents, -1 if limit is None else limit,
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


def newest_job(store: Store) -> int:
    """Returns the id of the newest job; 0 if there is none."""
    row = store.db.row("SELECT coalesce(max(id), 0) AS id FROM job")
    assert row is not None
    newest: int = row["id"]
    return newest


def jobs_without_forecast(store: Store, after: int, since: float) -> set[int]:
    """Returns the queued jobs without a stored forecast that are newer than the job `after`.

    since: the earliest time in wall seconds at which they were submitted.
    """
    rows = store.db.rows(
        "SELECT id FROM job WHERE id > ? AND state = 'queued' AND state <> 'finished' AND created_at >= ?"
        " AND NOT EXISTS (SELECT 1 FROM forecast WHERE job_id = job.id)",
        after, since,
    )  # fmt: skip
    return {row["id"] for row in rows}


def hindsight(store: Store) -> Hindsight:
    """Returns how far the forecasts of the newest completed jobs were off."""
    rows = store.db.rows(
        "SELECT forecast.start_at, forecast.end_at, finished_at,"
        " (SELECT min(coalesce(started_at, attempt.created_at)) FROM attempt WHERE job_id = job.id)"
        " AS started_at"
        " FROM forecast JOIN job ON job.id = job_id WHERE state = 'finished' AND outcome = 'completed'"
        " ORDER BY finished_at DESC LIMIT ?",
        _JUDGED,
    )
    return Hindsight.of(
        [
            (JobTimes(row["start_at"], row["end_at"]), JobTimes(row["started_at"], row["finished_at"]))
            for row in rows
            if row["started_at"] is not None
        ]
    )
