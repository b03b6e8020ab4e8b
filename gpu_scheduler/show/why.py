"""Collects the facts that explain why a job does not start, or why it failed.

This works without a running scheduler and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.attempts.job_logs import read_tail
from gpu_scheduler.attempts.job_progress import ProgressReader, progress_source, with_remaining_times
from gpu_scheduler.attempts.observe import observe_attempt
from gpu_scheduler.core.command.build import environment_of
from gpu_scheduler.core.explain.log_end import is_fragmented, rendered_lines
from gpu_scheduler.core.model.event import Event, EventKind
from gpu_scheduler.core.model.finding import Finding, HealthIssue
from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Attempt, Job
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.core.model.states import FAILED, WAITING, AttemptState, JobState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.forecast import (
    QueueOutlook,
    judged_gpus,
    possible_preemption,
    queue_outlook,
)
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.placement import Ledger, counts_as_idle
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption
from gpu_scheduler.core.scheduling.settings import Limits, QueueOrder
from gpu_scheduler.health import job_checks as checks
from gpu_scheduler.health.job_checks import conda_sh_of
from gpu_scheduler.show import job_views
from gpu_scheduler.show.gpu_views import foreign_claims, read_locks
from gpu_scheduler.show.job_refs import JobRef, job_record, resolve_job
from gpu_scheduler.show.job_views import (
    DependencyFacts,
    JobView,
    context_of,
    dependency_facts,
    health_issues_of,
    with_progress,
)
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.round_facts import CurrentNeed, current_need, round_facts
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.attempt_history import RunTimesReader
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.job_lists import jobs_ahead_of
from gpu_scheduler.store.jobs_files import LineLocation, MalformedLineRecord, line_of, malformed_lines
from gpu_scheduler.store.pending_groups import queued_job_of
from gpu_scheduler.store.store import Store
from gpu_scheduler.system.gpu_claims import ForeignClaims

if TYPE_CHECKING:
    from gpu_scheduler.core.explain.progress import JobProgress


#: Another job on the GPU also counts if it ended at most this many seconds earlier, because both jobs may
#: have failed for the same reason.
_RECENT_S = 10.0


class OomCase(Struct, frozen=True):
    """The GPUs of a job when it ran out of memory.

    gpu_count: the number of its GPUs; had_gpus_alone: whether no other process used them; at_limit: whether
    the job declared as much memory as a GPU can provide; larger_gpus: the indices of the GPUs that the job
    may use and that have more memory than its own GPUs; is_fragmented: whether PyTorch held much memory that
    it could not use, and the job does not set the variable against that.
    """

    gpu_count: int = 1
    had_gpus_alone: bool = False
    at_limit: bool = False
    larger_gpus: tuple[int, ...] = ()
    is_fragmented: bool = False


def _oom_case(inspected: _Inspection) -> OomCase | None:
    """Returns the facts about a job that ran out of GPU memory; None for any other job."""
    store, job, attempt = inspected.store, inspected.view.record, inspected.attempt
    if job.outcome not in FAILED or job.reason is None or attempt is None or not attempt.gpus:
        return None
    if job.reason.failure is not FailureKind.CUDA_OOM:
        return None
    spec, ended_at = inspected.record.spec, job.finished_at or inspected.now.wall
    limits, managed = store.recorded_options(), store.gpus()
    allowed = [gpu for gpu in managed if spec.allowed is None or gpu.index in spec.allowed]
    own_mib = max((gpu.total_mib or 0 for gpu in managed if gpu.uuid in attempt.gpus), default=0)
    foreign_mib = max((_foreign_mib(gpu) for gpu in allowed if gpu.uuid in attempt.gpus), default=0)
    # A job that had ended before the attempt began does not count as a neighbor.
    since = max(ended_at - _RECENT_S, attempt.created_at)
    is_set = any("expandable_segments" in value for _, value in spec.env)
    return OomCase(
        gpu_count=len(attempt.gpus),
        had_gpus_alone=counts_as_idle(foreign_mib, limits)
        and not store.was_gpu_shared(attempt, since, ended_at),
        at_limit=_is_at_limit(attempt, allowed, limits),
        larger_gpus=tuple(gpu.index for gpu in allowed if own_mib and (gpu.total_mib or 0) > own_mib),
        is_fragmented=not is_set and is_fragmented(read_tail(attempt.log)),
    )


def _is_at_limit(attempt: Attempt, allowed: Sequence[Gpu], limits: Limits) -> bool:
    """Returns whether the attempt declared as much memory per GPU as that many allowed GPUs can provide."""
    sizes = sorted((gpu.total_mib for gpu in allowed if gpu.total_mib), reverse=True)
    count = len(attempt.gpus)
    if attempt.vram is None or len(sizes) < count:
        return False
    return attempt.vram >= sizes[count - 1] - limits.margin_mib - limits.idle_threshold_mib


def _foreign_mib(gpu: Gpu) -> int:
    """Returns the MiB that foreign processes other than displays used on the GPU in the last sample."""
    displays = {process.pid for process in gpu.last.processes or () if process.graphics_only}
    return sum(mib for (pid, _), mib in gpu.foreign_peaks.items() if pid not in displays)


#: Maximum number of lines shown from a failed job's log.
MAX_LOG_LINES = 10
#: Maximum number of a job's events that are shown.
_MAX_EVENTS = 3
#: Maximum number of jobs ahead in the queue that are listed.
_MAX_JOBS_NAMED = 5
#: A malformed line at most this many lines away from a job's line counts as nearby.
_NEARBY_LINES = 3


class PlacementFacts(Struct, frozen=True):
    """The GPUs as they are now, and as placement judges them.

    judged: the same GPUs; those that only a reservation for another job closes, as they will be then.
    preemption: whom the job preempts next, or why nobody; None if it may or need not preempt, or does so.
    queue: its overtakes and its reservation; None if it is not in the queue, or if none are ever made.
    idle_budget: that of the scheduler. engine: that of the job, which chooses its GPUs; None if none.
    holders: the ids of the scheduler's jobs on each GPU, by UUID; sampled_at: the time of the newest sample
    in seconds since 1970, None if there is no sample.
    """

    gpus: Sequence[Ledger]
    judged: Sequence[Ledger]
    preemption: Preemption | NoPreemption | None
    queue: QueueOutlook | None
    idle_budget: float
    holders: Mapping[str, tuple[int, ...]]
    limits: Limits
    sampled_at: float | None
    engine: str | None = None


class LineFacts(Struct, frozen=True):
    """The facts about a job's line.

    location: where the line is, None if it was removed; nearby: the malformed lines around it; malformed:
    the number of malformed lines in the file.
    """

    location: LineLocation | None
    nearby: Sequence[MalformedLineRecord]
    malformed: int


class WaitingFacts(Struct, frozen=True):
    """The facts about a job that waits.

    environment: findings about its folder, environment and script; ahead: the number of queued jobs before it
    and the ids of the first ones, None if the job is held or waits for other jobs; retry_in_s: the seconds
    until its next launch is allowed, None if it is allowed now.
    """

    health_issues: tuple[HealthIssue, ...]
    need: CurrentNeed
    placement: PlacementFacts
    environment: tuple[Finding, ...]
    ahead: tuple[int, Sequence[int]] | None
    retry_in_s: float | None
    line: LineFacts


class Diagnosis(Struct, frozen=True):
    """The facts that explain the state of a job at `now` (seconds since 1970).

    scheduler_pid: None if no scheduler is running; waiting: set only for a job that waits; oom: set only for
    a job that ran out of GPU memory; attempt_folder: the folder of the newest attempt; events: the job's last
    events; log_end: the last lines of a failed job's log; tolerance: the fraction by which
    an accurate declaration may be off.
    """

    now: float
    job: JobView
    scheduler_pid: int | None
    waiting: WaitingFacts | None
    dependencies: DependencyFacts
    oom: OomCase | None
    attempt_folder: str | None
    log_exists: bool
    log_end: tuple[str, ...]
    events: tuple[Event, ...]
    tolerance: float

    @property
    def has_failed(self) -> bool:
        """True if the job failed, or is held because it was interrupted."""
        return _has_failed(self.job)


class _Inspection(Struct, frozen=True):
    """One job with its records.

    attempts: all active attempts of all jobs, in their current state; foreign: the claims of other programs.
    """

    store: Store
    record: Job
    attempt: Attempt | None
    view: JobView
    attempts: tuple[ActiveAttempt, ...]
    dependencies: DependencyFacts
    foreign: ForeignClaims
    now: Now

    @property
    def is_in_queue(self) -> bool:
        """True if the job is queued and does not wait for other jobs."""
        return self.view.record.state is JobState.QUEUED and not self.record.unmet_parents


def diagnose(location: Location, job: JobRef) -> Diagnosis:
    """Returns the facts about a job. Raises SchedulerError if there is no such job."""
    with open_store(location, read_only=True) as store:
        pid = scheduler_pid_of(store)
        inspected = _inspect(store, resolve_job(store, job), pid)
        view, attempt = inspected.view, inspected.attempt
        events = [one for one in events_of_job(store, view.record.id) if one.kind != EventKind.RUNNING]
        return Diagnosis(
            now=inspected.now.wall,
            job=with_progress(store, [view], inspected.now.wall)[0],
            scheduler_pid=pid,
            waiting=_waiting_facts(inspected) if view.record.state in WAITING else None,
            dependencies=inspected.dependencies,
            oom=_oom_case(inspected),
            attempt_folder=None if attempt is None else str(store.data_dir.attempt_folder(attempt)),
            log_exists=view.log is not None and os.path.exists(view.log),
            log_end=tuple(rendered_lines(read_tail(view.log))[-MAX_LOG_LINES:]) if _has_failed(view) else (),
            events=tuple(events[-_MAX_EVENTS:]),
            tolerance=store.recorded_options().tolerance,
        )


def _has_failed(job: JobView) -> bool:
    return job.record.outcome in FAILED or job.record.is_interrupted


def _inspect(store: Store, job_id: int, scheduler_pid: int | None) -> _Inspection:
    locks = read_locks(store)
    with store.snapshot():
        record = job_record(store, job_id)
        active = store.active_attempts()
        context = context_of(store, [job_id], active, is_up=scheduler_pid is not None)
        newest = store.newest_attempts([job_id]).get(job_id)
        view = job_views.job_view(record, newest, context)
        attempts = tuple(context.open_attempts.get(one.id) or observe_attempt(store, one) for one in active)
        dependencies = dependency_facts(store, record, context)
    foreign = foreign_claims(store, locks, attempts, scheduler_pid)
    return _Inspection(store, record, newest, view, attempts, dependencies, foreign, context.now)


def _waiting_facts(inspected: _Inspection) -> WaitingFacts:
    store, record, now = inspected.store, inspected.record, inspected.now
    at = record.not_before_boot
    conda_sh = conda_sh_of(scheduler_pid_of(store), store.recorded_options().conda_sh)
    conda = environment_of(record.spec, conda_sh).conda
    need = current_need(store, record)
    return WaitingFacts(
        health_issues=health_issues_of(store),
        need=need,
        placement=_placement_facts(inspected, need.need),
        environment=(
            *checks.environment(record.spec, conda, conda_sh, is_of_file=record.is_of_file),
            checks.script(record.spec),
        ),
        ahead=jobs_ahead_of(store, record, _MAX_JOBS_NAMED) if inspected.is_in_queue else None,
        retry_in_s=None if at is None or record.boot_id != now.boot_id else at - now.boot,
        line=_line_facts(store, record),
    )


def _placement_facts(inspected: _Inspection, need: Need) -> PlacementFacts:
    store, record = inspected.store, inspected.record
    records, options = store.gpus(), store.recorded_options()
    sampled = max((gpu.sampled_at for gpu in records if gpu.sampled_at is not None), default=None)
    engine = ResourceSpec.from_key(record.spec_key).engine(options.on)
    if not records or engine is not None:
        return PlacementFacts((), (), None, None, options.idle_budget, {}, options, sampled, engine)
    facts, job = _round_facts(inspected), queued_job_of(store, record.id)
    holding = [one for one in facts.attempts if one.state.holds_gpus]
    preemption = queue = None
    if inspected.is_in_queue and all(one.job.job_id != record.id for one in facts.reserved_jobs):
        resources = ResourceSpec.from_key(record.spec_key)
        preemption = possible_preemption(facts, need, job, resources)
        stored = facts.queue_reservation
        # Nothing is reserved for a job before its line is valid again.
        if record.line_wait is None or (stored is not None and stored.job.job_id == record.id):
            run_times = RunTimesReader(store).run_times(store.marks())
            queue = queue_outlook(facts, need, job, resources, run_times)
    return PlacementFacts(
        gpus=tuple(ledger_of(gpu, holding, facts.settings) for gpu in facts.gpus),
        judged=tuple(judged_gpus(facts, need, job, record.spec.allowed)),
        preemption=preemption,
        queue=queue,
        idle_budget=options.idle_budget,
        holders={
            gpu.uuid: tuple(sorted({one.job_id for one in holding if gpu.uuid in one.gpus}))
            for gpu in facts.gpus
        },
        limits=options,
        sampled_at=sampled,
    )


def _round_facts(inspected: _Inspection) -> Facts:
    """Returns the facts with which the next round places the job.

    They contain the time that is left of each running attempt, as far as its progress shows it, if GPUs are
    ever reserved by queue order.
    """
    store = inspected.store
    facts = round_facts(store, inspected.attempts, inspected.now, inspected.foreign)
    if facts.settings.queue_order is not QueueOrder.RESERVE:
        return facts
    return replace(facts, attempts=with_remaining_times(facts.attempts, _progress(facts, store), facts.now))


def _progress(facts: Facts, store: Store) -> dict[int, JobProgress]:
    """Returns the progress of the running attempts, by attempt id."""
    reader, found = ProgressReader(), {}
    running = {one.id for one in facts.attempts if one.state is AttemptState.RUNNING}
    for record in store.active_attempts():
        job = store.job(record.job_id) if record.id in running else None
        if job is not None:
            found[record.id] = reader.read(progress_source(store, job.spec, record), facts.now.wall)
    return found


def _line_facts(store: Store, record: Job) -> LineFacts:
    line = line_of(store, record.id)
    path = record.source.partition(":")[2]
    malformed = [one for one in malformed_lines(store) if one.path == path]
    near = [one for one in malformed if line is not None and abs(one.number - line.number) <= _NEARBY_LINES]
    return LineFacts(line, near, len(malformed))
