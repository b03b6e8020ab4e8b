"""Tells which items of a Redis queue would start here, and which jobs those are that were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.app.forecast import MAX_JOBS
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.round_facts import round_facts
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.app.stored_claims import foreign_claims, read_locks
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.actions import Reserve, Start
from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, with_start_interval
from gpu_scheduler.core.scheduling.run_times import RunTimeKey
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.store.forecasts import waiting_jobs
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import newest_job_of

#: The place of the first item in the queue, behind all jobs of its priority.
_BEHIND = 1 << 60


def items_to_start(store: Store, items: Sequence[tuple[JobSpec, float]]) -> list[int]:
    """Returns the indices of the items that the next round would start here, or for which it would preempt.

    items: in their order, each with the time of its submission. The jobs of this queue count too, those that
    are not confirmed included.
    """
    pid = scheduler_pid_of(store)
    if pid is None or not items:
        return []
    locks, now = read_locks(store), Clock().now()
    with store.snapshot():
        attempts = [observe_attempt(store, one) for one in store.active_attempts()]
        facts = round_facts(store, attempts, now, foreign_claims(store, locks, attempts, pid))
        waiting = waiting_jobs(store, now, MAX_JOBS, 0, with_unconfirmed=True)
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    jobs = [
        (one.job, one.resources)
        for one in waiting
        if one.not_before <= now.wall and one.job.job_id not in reserved
    ]
    for index, (spec, at) in enumerate(items):
        key = RunTimeKey(spec.identity, spec.to_json())
        job = QueuedJob(-1 - index, spec.priority or 0, _BEHIND + index, at, now.wall, key)
        jobs.append((job, ResourceSpec.of(spec, learn_needs=store.learning)))
    groups: dict[ResourceSpec, list[QueuedJob]] = {}
    for job, resources in sorted(jobs, key=lambda one: queue_key(one[0])):
        groups.setdefault(resources, []).append(job)
    pending = tuple(PendingGroup(resources, tuple(found)) for resources, found in groups.items())
    facts = replace(facts, pending_groups=pending)
    actions = with_start_interval(place_jobs(facts), facts)
    return sorted(-1 - one.job_id for one in actions if isinstance(one, (Start, Reserve)) and one.job_id < 0)


def job_of_item(location: Location, redis_id: str) -> int | None:
    """Returns the newest job of an item of a Redis queue; None if this queue has never taken it."""
    try:
        with open_store(location, read_only=True) as store:
            return newest_job_of(store, redis_id)
    except StoreNotFoundError:
        return None
