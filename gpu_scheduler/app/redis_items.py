"""Serves the agent of a Redis queue: which items would start here, and the jobs of those that it took."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.app.forecast import MAX_JOBS
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.round_facts import round_facts
from gpu_scheduler.app.status import StatusQuery, read_report
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, requested_verbs, scheduler_pid_of
from gpu_scheduler.app.stored_claims import foreign_claims, read_locks
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState, Outcome
from gpu_scheduler.core.model.wait_reason import WaitKind
from gpu_scheduler.core.scheduling.actions import Reserve, Start
from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, with_start_interval
from gpu_scheduler.core.scheduling.run_times import RunTimeKey
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.store.forecasts import waiting_jobs
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.taken_items import TakenItem, newest_job_of, set_item

#: The place of the first item in the queue, behind all jobs of its priority.
_BEHIND = 1 << 60


@dataclass(frozen=True)
class TakenJob:
    """The job of an item: its status as the source names it, and what the agent may do with it.

    is_gated: it waits for its confirmation, which is not requested yet. may_return: it is queued and has
    never been started.
    """

    status: str
    gpus: tuple[int, ...]
    pid: int | None
    is_gated: bool
    may_return: bool


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


def jobs_of(store: Store, job_ids: Collection[int]) -> Mapping[int, TakenJob]:
    """Returns these jobs, by id; those that no longer exist are missing."""
    known = [one for one in job_ids if store.job(one) is not None]
    if not known:
        return {}
    indices = store.gpu_indices()
    views = read_report(store, StatusQuery(jobs=tuple(known))).jobs
    verbs = requested_verbs(store)
    return {
        view.record.id: _taken_job(view, indices, "confirm" in verbs.get(view.record.id, ()))
        for view in views
    }


def _taken_job(view: JobView, indices: Mapping[str, int], is_requested: bool) -> TakenJob:
    job, attempt = view.record, view.attempt
    status = "running" if job.state in ACTIVE else "queued"
    if job.state is JobState.FINISHED:
        status = "completed" if job.outcome is Outcome.COMPLETED else "failed"
    is_gated = not is_requested and job.line_wait is not None and job.line_wait.kind is WaitKind.NOT_CONFIRMED
    uuids = attempt.gpus if attempt is not None and status != "queued" else ()
    return TakenJob(
        status, tuple(sorted(indices[one] for one in uuids if one in indices)), view.pid,
        is_gated and job.state in WAITING,
        job.state is JobState.QUEUED and attempt is None,
    )  # fmt: skip


def request(store: Store, verb: str, jobs: Collection[int]) -> None:
    """Requests `confirm`, `unconfirm` or `cancel` for jobs, except those of which this is requested."""
    known = requested_verbs(store)
    wanted = [one for one in jobs if known.get(one, [""])[-1] != verb]
    with store.db.transaction():
        for job_id in wanted:
            add_request(store, verb, str(job_id), "redis", **({"grace_s": None} if verb == "cancel" else {}))
    if wanted:
        store.data_dir.ring_doorbell()


def give_up(store: Store, item: TakenItem) -> None:
    """Requests the cancel of a job that must not start here, and records that its item is gone."""
    with store.db.transaction():
        request(store, "cancel", [item.job_id])
        set_item(store, item, "gone")


def job_of_item(location: Location, redis_id: str) -> int | None:
    """Returns the newest job of an item of a Redis queue; None if this queue has never taken it."""
    try:
        with open_store(location, read_only=True) as store:
            return newest_job_of(store, redis_id)
    except StoreNotFoundError:
        return None
