"""Lists the jobs for which GPUs are reserved, and the jobs that are preempted for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.store.pending_groups import IS_STARTABLE, QUEUED_JOB_COLUMNS, queued_job
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.now import Now
    from gpu_scheduler.core.scheduling.facts import QueueReservation, ReservedJob


class QueueReservationRecord(NamedTuple):
    """The reservation by queue order.

    gpus: UUIDs. start_at: when the job is expected to start, in seconds since 1970. overtakes: how often it
    had been overtaken.
    """

    job_id: int
    gpus: tuple[str, ...]
    start_at: float
    overtakes: int


def queue_reservation_record(store: Store) -> QueueReservationRecord | None:
    """Returns the reservation by queue order, or None."""
    rows = [
        tuple(row)
        for row in store.db.rows(
            "SELECT job_id, gpu, start_at, overtakes FROM reservation WHERE start_at IS NOT NULL"
        )
    ]
    if not rows:
        return None
    job_id, _, start_at, overtakes = rows[0]
    return QueueReservationRecord(job_id, tuple(gpu for _, gpu, *_ in rows), start_at, overtakes)


def reserved_jobs(store: Store, now: Now) -> list[ReservedJob]:
    """Returns the queued jobs for which others are preempted and GPUs are therefore reserved."""
    from gpu_scheduler.core.scheduling.facts import ReservedJob
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    rows = store.db.rows(
        f"SELECT {QUEUED_JOB_COLUMNS}, spec_key,"
        " (SELECT json_group_array(gpu) FROM reservation WHERE job_id = job.id),"
        f" {IS_STARTABLE}"
        " FROM job WHERE id IN (SELECT job_id FROM reservation WHERE start_at IS NULL)",
        now.boot, now.boot_id,
    )  # fmt: skip
    return [
        ReservedJob(
            queued_job(row[:-3]),
            ResourceSpec.from_key(row[-3]),
            tuple(json.loads(row[-2])),
            bool(row[-1]),
        )
        for row in map(tuple, rows)
    ]


def queue_reservation(store: Store) -> QueueReservation | None:
    """Returns the reservation by queue order, or None."""
    from gpu_scheduler.core.scheduling.facts import QueueReservation
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    row = store.db.row(
        f"SELECT {QUEUED_JOB_COLUMNS}, spec_key,"
        " (SELECT json_group_array(gpu) FROM reservation WHERE job_id = job.id),"
        " (SELECT max(start_at) FROM reservation WHERE job_id = job.id),"
        " (SELECT max(overtakes) FROM reservation WHERE job_id = job.id),"
        " source_missing AND json_extract(line_wait, '$.kind') IN (?, ?)"
        " FROM job WHERE id IN (SELECT job_id FROM reservation WHERE start_at IS NOT NULL)",
        WaitKind.LINE_REMOVED.value, WaitKind.LINE_CHANGED.value,
    )  # fmt: skip
    if row is None:
        return None
    *job, spec_key, gpus, start_at, overtakes, is_delayed = tuple(row)
    return QueueReservation(
        queued_job(tuple(job)),
        ResourceSpec.from_key(spec_key),
        tuple(sorted(json.loads(gpus))),
        start_at,
        overtakes,
        bool(is_delayed),
    )


def reserved_gpus(store: Store) -> Mapping[str, tuple[int, ...]]:
    """Returns the jobs for which each reserved GPU is reserved, by the UUID of the GPU."""
    found: dict[str, tuple[int, ...]] = {}
    for uuid, job_id in store.db.rows("SELECT gpu, job_id FROM reservation ORDER BY job_id"):
        found[uuid] = (*found.get(uuid, ()), job_id)
    return found


def victims_by_job(store: Store) -> Mapping[int, tuple[int, ...]]:
    """Returns, for each job that preempts others, the jobs that are preempted for it and hold GPUs still."""
    rows = store.db.rows(
        "SELECT DISTINCT reservation.job_id, attempt.job_id FROM reservation LEFT JOIN attempt"
        " ON attempt.preempted_for = reservation.job_id AND attempt.state <> 'closed'"
        " WHERE reservation.start_at IS NULL"
        " ORDER BY attempt.job_id"
    )
    victims: dict[int, tuple[int, ...]] = {}
    for job_id, victim in rows:
        victims[job_id] = victims.get(job_id, ()) + (() if victim is None else (victim,))
    return victims
