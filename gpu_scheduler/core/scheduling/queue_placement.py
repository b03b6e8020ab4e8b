"""Places waiting jobs: first those that preempt others, then the rest of the queue in order.

The jobs without a GPU come last, so that they take no place of a group from the others. Nothing else connects
both: whatever GPUs do, the former start, and the latter are placed as if there were no former.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Action, DropReservation, SetWaitReason, Start
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob, ReservedJob
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability
from gpu_scheduler.core.scheduling.gpu_use import availability_beside
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import GroupLimits, PendingQueue, need_of, queue_key
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption, find_preemption, may_preempt
from gpu_scheduler.core.scheduling.queue_reservation import expected_ends, plan_reservation
from gpu_scheduler.core.scheduling.queue_walk import (
    MAX_EXPLAINED,
    QueueWalk,
    groups_to_explain,
    wait_reasons,
)
from gpu_scheduler.core.scheduling.reconcile_attempt import leaving_attempts
from gpu_scheduler.core.scheduling.retry import has_tries_left, without_failed_gpus
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.suspects import is_due

#: Number of groups, the first of the queue, in which a round looks for a job that tries a suspect GPU, or for
#: one whose start waits for `--start-interval`.
_MAX_TRYING = 512


def place_jobs(facts: Facts) -> list[Action]:
    """Starts every waiting job that fits now, in queue order, and records why the other jobs wait.

    The jobs that preempt others come first, on the GPUs that are reserved for them. At most one job of a
    round begins to preempt others, and at most one job has GPUs reserved by queue order.
    """
    queue = PendingQueue.of(facts.pending_groups)
    if not (queue or queue.without_gpus or facts.reserved_jobs or facts.queue_reservation):
        return []
    if facts.storage_issue is not None:
        why_not = WaitReason(WaitKind.STORAGE, facts.storage_issue)
        handles = [*groups_to_explain(queue, facts.now), *islice(queue.without_gpus, MAX_EXPLAINED)]
        return wait_reasons(queue, dict.fromkeys(handles, why_not))
    limits = GroupLimits(facts)
    return _place_on_gpus(facts, queue, limits) + _start_without_gpus(queue, limits)


def _place_on_gpus(facts: Facts, queue: PendingQueue, limits: GroupLimits) -> list[Action]:
    if facts.probe_error is not None:
        why_not = WaitReason(WaitKind.GPUS_UNREADABLE, facts.probe_error)
        return wait_reasons(queue, dict.fromkeys(groups_to_explain(queue, facts.now), why_not))
    if not facts.all_sampled:
        return []
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    actions = _place_reserved_jobs(facts, gpus, limits)
    has_started = any(isinstance(one, Start) for one in actions)
    actions += QueueWalk(facts, gpus, limits, has_started=has_started).place()
    if any(isinstance(one, Start) for one in actions):
        return actions
    return actions + _try_suspect(facts, queue, gpus, limits)


def _start_without_gpus(queue: PendingQueue, limits: GroupLimits) -> list[Action]:
    """Starts the jobs that need no GPU, in queue order, as far as the limits allow."""
    actions: list[Action] = []
    reasons: dict[str, WaitReason] = {}
    groups = queue.without_gpus.items()
    for _, handle, job in sorted((queue_key(job), handle, job) for handle, one in groups for job in one.jobs):
        group = queue.group(handle)
        refusal = limits.refusal(group.resources)
        if refusal is not None:
            reasons.setdefault(handle, refusal)
            continue
        actions.append(Start(job.job_id, (), 0, waiting_since=job.waiting_since))
        limits.take(group.resources)
        if group.has_more and job is group.jobs[-1]:
            break  # its next job, which this round has not read, may precede the rest
    return actions + wait_reasons(queue, reasons)[:MAX_EXPLAINED]


def start_wait_s(facts: Facts) -> float:
    """Returns the seconds until `--start-interval` allows the next start; 0 if it may take place now."""
    age_s = facts.now.wall - facts.overtakes.starts[-1].started_at if facts.overtakes.starts else -1.0
    # If the clock was set back, nothing is known about the time of the last start.
    return max(0.0, facts.settings.start_interval_s - age_s) if age_s >= 0 else 0.0


def with_start_interval(actions: list[Action], facts: Facts) -> list[Action]:
    """Returns the actions of `place_jobs` with the starts that `--start-interval` allows: at most the first.

    Forecasts do not count the interval, so `place_jobs` itself does not know it.
    """
    starts = [one for one in actions if isinstance(one, Start) and one.gpus]
    if not starts or not facts.settings.start_interval_s:
        return actions
    wait_s = start_wait_s(facts)
    held = {one.job_id for one in (starts if wait_s else starts[1:])}
    kept = [one for one in actions if not (isinstance(one, Start) and one.job_id in held)]
    if not wait_s:
        return kept  # the next round, which follows at once, says why the other jobs wait
    why = WaitReason(WaitKind.START_INTERVAL, f"{facts.settings.start_interval_s:g}")
    groups = [
        group
        for group in islice(facts.pending_groups, _MAX_TRYING)
        if not held.isdisjoint(job.job_id for job in group.jobs)
    ]
    keys = {group.resources.key(): group.reason for group in groups}
    kept = [one for one in kept if not (isinstance(one, SetWaitReason) and one.spec_key in keys)]
    return kept + [SetWaitReason(key, why) for key, reason in keys.items() if reason != why]


def _try_suspect(
    facts: Facts, queue: PendingQueue, gpus: RoundAllocations, limits: GroupLimits
) -> list[Action]:
    """Starts a job with tries left, which found no other GPU, on a suspect GPU that is due for a trial."""
    for gpu in (one for one in facts.gpus if is_due(one, facts)):
        view = availability_beside(replace(gpu, suspicion=None), facts.attempts_on(gpu.uuid), facts.settings)
        for group in islice(queue, _MAX_TRYING):
            need = need_of(group.resources, facts)
            answer = place(need, group.resources.allowed, [view], facts.settings)
            if isinstance(answer, WaitReason) or limits.refusal(group.resources) is not None:
                continue
            for job in group.jobs:
                if has_tries_left(job, facts.settings):
                    return [gpus.start(job.job_id, answer, need)]
    return []


def _place_reserved_jobs(facts: Facts, gpus: RoundAllocations, limits: GroupLimits) -> list[Action]:
    """Starts the jobs that fit on their reserved GPUs, and keeps these GPUs for the other reserved jobs.

    A job that cannot start although its victims have left, and all other attempts that were leaving, loses
    its reservation. So does one whose group is full.
    """
    actions: list[Action] = []
    # All of them are kept before the first job is placed, so that none takes what is reserved for another.
    needs = _keep_reserved_gpus(facts, gpus)
    for reserved in sorted(facts.reserved_jobs, key=lambda one: queue_key(one.job)):
        job_id = reserved.job.job_id
        answer = gpus.place_reserved(job_id, needs[job_id], reserved.resources.allowed)
        if limits.refusal(reserved.resources) is None:
            if reserved.may_start and not isinstance(answer, WaitReason):
                actions.append(gpus.start(job_id, answer, needs[job_id]))
                limits.take(reserved.resources)
                continue
            if _is_awaited(reserved, needs[job_id], facts, gpus):
                limits.take(reserved.resources)
                continue
        gpus.release(job_id)
        actions.append(DropReservation(job_id))
    return actions


def _keep_reserved_gpus(facts: Facts, gpus: RoundAllocations) -> dict[int, Need]:
    """Keeps the GPUs that are reserved, and returns the need of each job for which they are, by its id."""
    needs = {one.job.job_id: need_of(one.resources, facts) for one in facts.reserved_jobs}
    for reserved in facts.reserved_jobs:
        gpus.reserve(reserved.job.job_id, reserved.gpus, needs[reserved.job.job_id])
    return needs


def judged_gpus(
    facts: Facts, need: Need, job: QueuedJob, allowed: tuple[int, ...] | None = None
) -> list[GpuAvailability]:
    """Returns each GPU as the next round judges it for a queued job with this need."""
    views = gpus_for(job, facts).views(need, job.job_id, _upper_s(job, facts))
    return without_failed_gpus(views, job, need, allowed, facts)


def possible_preemption(
    facts: Facts, need: Need, job: QueuedJob, resources: ResourceSpec
) -> Preemption | NoPreemption | None:
    """Returns whom the next round preempts for a queued job, or why nobody; None if it need or may not."""
    if not may_preempt(job.priority, resources, facts.settings) or GroupLimits(facts).refusal(resources):
        return None
    gpus, upper_s = gpus_for(job, facts), _upper_s(job, facts)
    answer = gpus.place(need, resources.allowed, upper_s)
    if not isinstance(answer, WaitReason) or answer.is_infeasible:
        return None
    usable = gpus.preemptible(need, upper_s + facts.settings.preempt_grace_s)
    return find_preemption(job, need, resources.allowed, facts, gpus.leaving, usable)


def gpus_for(job: QueuedJob, facts: Facts) -> RoundAllocations:
    """Returns the GPUs with the reservations that a queued job meets in the next round."""
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    _keep_reserved_gpus(facts, gpus)
    stored = facts.queue_reservation
    if stored is not None and queue_key(stored.job) < queue_key(job):
        wanted = need_of(stored.resources, facts)
        ends = expected_ends(gpus.facts)
        planned = plan_reservation(wanted, stored.resources.allowed, gpus.vacancies(), ends)
        if planned is not None:
            gpus.reserve_in_order(stored.job.job_id, wanted, planned, stored.start_at, stored.overtakes)
    return gpus


def _upper_s(job: QueuedJob, facts: Facts) -> float:
    return facts.run_times.estimate(job.run_time).upper_s


def _is_awaited(reserved: ReservedJob, need: Need, facts: Facts, gpus: RoundAllocations) -> bool:
    """Returns whether attempts on which a reservation counts have not left yet."""
    job_id = reserved.job.job_id
    has_victims = any(
        one.preempted_for == job_id and one.attempt_id in gpus.leaving for one in facts.attempts
    )
    return has_victims or (reserved.may_start and gpus.fits_later(job_id, need, reserved.resources.allowed))
