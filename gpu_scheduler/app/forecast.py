"""Forecasts when the jobs of the queue start and end, with or without a running scheduler.

Also tells which items of a Redis queue would start at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.app.gpu_views import foreign_claims, read_locks
from gpu_scheduler.app.job_views import context_of, health_issues_of, job_view, with_progress
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.round_facts import round_facts
from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.app.store_access import open_store, scheduler_pid_of
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import ACTIVE, JobState
from gpu_scheduler.core.scheduling.actions import Reserve, Start
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.forecast import Forecast, JobForecast, WaitingJob, forecast
from gpu_scheduler.core.scheduling.history import UNKNOWN, Estimate, RunTimeKey
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, with_start_interval
from gpu_scheduler.store.attempt_history import RunTimesReader
from gpu_scheduler.store.job_lists import open_jobs, state_counts
from gpu_scheduler.store.pending_groups import waiting_jobs
from gpu_scheduler.store.store import Store

#: Number of queued jobs that are forecast unless all are asked for. More take longer than a second.
MAX_JOBS = 1000
#: The requests after which a waiting job does not start.
_LEAVING = ("cancel", "hold")
#: The position of the first item of a Redis queue, behind all jobs of its priority.
_BEHIND = 1 << 60


class ForecastJob(Struct, frozen=True):
    """A running or waiting job. forecast: None if it has none; gpus: the indices of its expected GPUs."""

    job: JobView
    forecast: JobForecast | None
    gpus: tuple[int, ...] = ()


class ForecastView(Struct, frozen=True):
    """The forecast at `now` (seconds since 1970): first the running jobs, then the waiting ones in order.

    scheduler_pid: None if no scheduler is running. idle_share: the part of the GPU time until idle_until,
    when the last waiting job starts, in which no job runs on a GPU; None if no job has to wait. omitted: the
    number of queued jobs behind those that were forecast. health_issues: those that block starts. pooled: the
    estimate with which the jobs count that have none of their own.
    """

    now: float
    scheduler_pid: int | None = None
    jobs: tuple[ForecastJob, ...] = ()
    idle_share: float | None = None
    idle_until: float | None = None
    omitted: int = 0
    health_issues: tuple[HealthIssue, ...] = ()
    pooled: Estimate = UNKNOWN


class _Queue(Struct, frozen=True):
    """The queue at one moment.

    jobs: the running, queued and held ones; ending: the ids of attempts whose commands have ended, although
    that is not recorded yet.
    """

    facts: Facts
    jobs: Sequence[JobView]
    waiting: Sequence[WaitingJob]
    ending: Sequence[int]
    indices: Mapping[str, int]
    omitted: int


def forecast_queue(location: Location, *, all_jobs: bool = False) -> ForecastView:
    """Returns the forecast. Raises StoreNotFoundError before the first start.

    all_jobs: whether to forecast more than the first MAX_JOBS queued jobs.
    """
    with open_store(location, read_only=True) as store:
        pid = scheduler_pid_of(store)
        queue = _read_queue(store, pid, None if all_jobs else MAX_JOBS)
        now = queue.facts.now.wall
        jobs = with_progress(store, queue.jobs, now)
        issues = tuple(issue for issue in health_issues_of(store) if issue.blocks_starts)
        pooled = RunTimesReader(store).run_times(store.marks()).pooled()
    found = forecast(_with_remaining_times(queue.facts, jobs), queue.waiting, queue.ending, pooled)
    shown = _forecast_jobs(jobs, queue, found)
    return ForecastView(now, pid, shown, found.idle_share, found.idle_until, queue.omitted, issues, pooled)


def _read_queue(store: Store, pid: int | None, limit: int | None) -> _Queue:
    locks = read_locks(store)
    with store.snapshot():
        active = store.active_attempts()
        queued = open_jobs(store, (JobState.QUEUED,), limit)
        records = [*open_jobs(store, tuple(ACTIVE)), *queued, *open_jobs(store, (JobState.HELD,), limit)]
        newest = store.newest_attempts(job.id for job in records)
        context = context_of(store, (job.id for job in records), active, is_up=pid is not None)
        waiting = waiting_jobs(store, context.now, limit)
        attempts = [context.open_attempts.get(one.id) or observe_attempt(store, one) for one in active]
        facts = round_facts(store, attempts, context.now, foreign_claims(store, locks, attempts, pid))
        count = state_counts(store).get(JobState.QUEUED, 0)
    jobs = [job_view(job, newest.get(job.id), context) for job in records]
    leaving = {job_id for job_id, verb in context.open_requests.items() if verb in _LEAVING}
    running = {job.record.id for job in jobs if job.record.state in ACTIVE}
    return _Queue(
        facts,
        [job for job in jobs if job.record.state is not JobState.FINISHED],
        [one for one in waiting if one.job.job_id not in leaving],
        [one.id for one in attempts if one.state.is_open and one.job_id not in running],
        context.indices,
        count - len(queued),
    )


def items_to_start(store: Store, items: Sequence[tuple[JobSpec, float]]) -> list[int]:
    """Returns the indices of the items that the next round would start here, or for which it would preempt.

    items: those of a Redis queue, in their order, each with the time of its submission. The jobs of this
    queue count too, those that are not confirmed included.
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


def _with_remaining_times(facts: Facts, jobs: Iterable[JobView]) -> Facts:
    """Returns the facts with the time that each running job still takes, as far as its progress shows it."""
    left = {job.record.id: job.progress.remaining_s for job in jobs if job.progress is not None}
    attempts = tuple(one.seen(remaining_s=left.get(one.job_id)) for one in facts.attempts)
    return replace(facts, attempts=attempts)


def _forecast_jobs(jobs: Iterable[JobView], queue: _Queue, found: Forecast) -> tuple[ForecastJob, ...]:
    """Returns the jobs with their forecasts, in the order of their starts; those without one come last."""
    only_gpus = {one.job.job_id for one in queue.waiting if not one.parents}
    shown = []
    for job in jobs:
        expected = found.jobs.get(job.record.id)
        if expected is None and job.record.id in only_gpus:
            job = job._replace(wait=found.reasons.get(job.record.spec_key, job.wait))
        gpus = () if expected is None else expected.gpus
        shown.append(ForecastJob(job, expected, tuple(sorted(queue.indices.get(uuid, -1) for uuid in gpus))))
    return tuple(sorted(shown, key=_order))


def _order(shown: ForecastJob) -> tuple[bool, bool, float]:
    expected, is_waiting = shown.forecast, shown.job.record.state not in ACTIVE
    return expected is None, is_waiting, math.inf if expected is None else expected.start_at
