"""Lists the jobs for which GPUs are reserved, and the jobs that are preempted for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_scheduler.store.pending_groups import IS_STARTABLE
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.now import Now
    from gpu_scheduler.core.scheduling.facts import ReservedJob


def reserved_jobs(store: Store, now: Now) -> list[ReservedJob]:
    """Returns the queued jobs for which GPUs are reserved."""
    from gpu_scheduler.core.scheduling.facts import QueuedJob, ReservedJob
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    rows = store.db.rows(
        "SELECT id, priority, position, bypassed_at, spec_key,"
        " (SELECT json_group_array(gpu) FROM reservation WHERE job_id = job.id),"
        f" {IS_STARTABLE}"
        " FROM job WHERE id IN (SELECT job_id FROM reservation)",
        now.boot, now.boot_id,
    )  # fmt: skip
    return [
        ReservedJob(
            QueuedJob(id, priority, position, since is not None),
            ResourceSpec.from_key(spec_key),
            tuple(json.loads(gpus)),
            bool(may_start),
        )
        for id, priority, position, since, spec_key, gpus, may_start in rows
    ]


def reserved_gpus(store: Store) -> frozenset[str]:
    """Returns the UUIDs of the GPUs that are reserved for a job."""
    return frozenset(uuid for (uuid,) in store.db.rows("SELECT DISTINCT gpu FROM reservation"))


def victims_by_job(store: Store) -> Mapping[int, tuple[int, ...]]:
    """Returns, for each job with a reservation, the jobs that are preempted for it and hold GPUs still."""
    rows = store.db.rows(
        "SELECT DISTINCT reservation.job_id, attempt.job_id FROM reservation LEFT JOIN attempt"
        " ON attempt.preempted_for = reservation.job_id AND attempt.state <> 'closed'"
        " ORDER BY attempt.job_id"
    )
    victims: dict[int, tuple[int, ...]] = {}
    for job_id, victim in rows:
        victims[job_id] = victims.get(job_id, ()) + (() if victim is None else (victim,))
    return victims
