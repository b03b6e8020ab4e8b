"""Places queued jobs on GPUs in queue order. Later jobs bypass a job that does not fit (backfill)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Action, DropReservation, RecordBypassed, SetWaitReason
from gpu_scheduler.core.scheduling.departure import leaving_attempts
from gpu_scheduler.core.scheduling.facts import Facts, Gpu, PendingGroup, QueuedJob, ReservedJob
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve
from gpu_scheduler.core.scheduling.order import order, queue_key
from gpu_scheduler.core.scheduling.placement import could_fit
from gpu_scheduler.core.scheduling.preemption import (
    NoPreemption,
    Preemption,
    find_preemption,
    may_preempt,
    preempt,
)
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations


def place_jobs(facts: Facts) -> list[Action]:
    """Starts every waiting job that fits now, in queue order, and records why the other jobs wait.

    The jobs for which GPUs are reserved come first. If a job does not fit, jobs behind it that fit bypass it
    (backfill). Each bypassed job is recorded. At most one job of a round preempts others.
    """
    why_not = _general_wait_reason(facts)
    if why_not is not None:
        return _wait_reasons(facts.pending_groups, {id(group): why_not for group in facts.pending_groups})
    if not facts.all_sampled:
        return []
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    needs = {group.resources: need_of(group.resources, facts) for group in facts.pending_groups}
    actions = _place_reserved_jobs(facts, gpus)
    reasons: dict[int, WaitReason] = {}
    waiting: list[int] = []
    has_preempted = False
    for job, group in order(facts.pending_groups):
        if id(group) in reasons:
            continue
        need = needs[group.resources]
        answer = gpus.place(need, group.resources.allowed)
        if isinstance(answer, WaitReason):
            reasons[id(group)] = answer
            preempting = [] if has_preempted else _preempt(job, group.resources, answer, facts, gpus)
            actions += preempting
            has_preempted = has_preempted or bool(preempting)
            if not job.bypassed and not preempting and not answer.is_infeasible:
                waiting.append(job.job_id)
            continue
        actions += [RecordBypassed(passed) for passed in waiting]
        waiting.clear()
        actions.append(gpus.start(job.job_id, answer, need))
        if group.has_more and job is group.jobs[-1]:
            break  # the group's next job, which this round has not read, may precede all remaining jobs
    return actions + _wait_reasons(facts.pending_groups, reasons)


def _place_reserved_jobs(facts: Facts, gpus: RoundAllocations) -> list[Action]:
    """Starts the jobs that fit on their reserved GPUs, and keeps these GPUs for the other reserved jobs.

    A job that cannot start although its victims have left, and all other attempts that were leaving, loses
    its reservation.
    """
    actions: list[Action] = []
    # All of them are kept before the first job is placed, so that none takes what is reserved for another.
    needs = _keep_reserved_gpus(facts, gpus)
    for reserved in sorted(facts.reserved_jobs, key=lambda one: queue_key(one.job)):
        job_id = reserved.job.job_id
        answer = gpus.place_reserved(job_id, needs[job_id], reserved.resources.allowed)
        if reserved.may_start and not isinstance(answer, WaitReason):
            actions.append(gpus.start(job_id, answer, needs[job_id]))
        elif not _is_awaited(reserved, needs[job_id], facts, gpus):
            gpus.release(job_id)
            actions.append(DropReservation(job_id))
    return actions


def _keep_reserved_gpus(facts: Facts, gpus: RoundAllocations) -> dict[int, Need]:
    """Keeps the GPUs that are reserved, and returns the need of each job for which they are, by its id."""
    needs = {one.job.job_id: need_of(one.resources, facts) for one in facts.reserved_jobs}
    for reserved in facts.reserved_jobs:
        gpus.reserve(reserved.job.job_id, reserved.gpus, needs[reserved.job.job_id])
    return needs


def judged_gpus(facts: Facts, need: Need, job_id: int) -> list[GpuAvailability]:
    """Returns each GPU as the next round judges it for a job with this need."""
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    _keep_reserved_gpus(facts, gpus)
    return gpus.views(need, job_id)


def possible_preemption(
    facts: Facts, need: Need, job: QueuedJob, resources: ResourceSpec
) -> Preemption | NoPreemption | None:
    """Returns whom the next round preempts for a queued job, or why nobody; None if it need or may not."""
    if not may_preempt(job.priority, resources, facts.settings):
        return None
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    _keep_reserved_gpus(facts, gpus)
    answer = gpus.place(need, resources.allowed)
    if not isinstance(answer, WaitReason) or answer.is_infeasible:
        return None
    return find_preemption(job, need, resources.allowed, facts, gpus.leaving, gpus.vacancies())


def _is_awaited(reserved: ReservedJob, need: Need, facts: Facts, gpus: RoundAllocations) -> bool:
    """Returns whether attempts on which a reservation counts have not left yet."""
    job_id = reserved.job.job_id
    has_victims = any(
        one.preempted_for == job_id and one.attempt_id in gpus.leaving for one in facts.attempts
    )
    return has_victims or (reserved.may_start and gpus.fits_later(job_id, need, reserved.resources.allowed))


def _preempt(
    job: QueuedJob, resources: ResourceSpec, reason: WaitReason, facts: Facts, gpus: RoundAllocations
) -> list[Action]:
    """Preempts other jobs for a job that waits for this reason, if it may do so and if that helps."""
    if reason.is_infeasible or not may_preempt(job.priority, resources, facts.settings):
        return []
    need = reason.need
    assert need is not None
    found = find_preemption(job, need, resources.allowed, facts, gpus.leaving, gpus.vacancies())
    if isinstance(found, NoPreemption):
        return []
    gpus.reserve(job.job_id, found.gpus, need)
    return preempt(job.job_id, found, facts)


def need_of(resources: ResourceSpec, facts: Facts) -> Need:
    """Returns the current need of a job with these resources.

    Learned memory applies only if some GPU would still have room for another job. Otherwise the job counts as
    one that declares nothing.
    """
    need = resolve(resources, facts.config, facts.learned_mib)
    if resources.workload_class in facts.learned_mib and not _leaves_room(need, resources, facts):
        need = resolve(resources, facts.config)
    return replace(need, exclusive=True) if facts.settings.exclusive else need


def _leaves_room(need: Need, resources: ResourceSpec, facts: Facts) -> bool:
    limits = facts.settings
    beside = replace(limits, margin_mib=limits.margin_mib + limits.idle_threshold_mib)
    return any(
        could_fit(need, gpu.sample.total_mib if gpu.sample else None, beside)
        for gpu in allowed_gpus(resources, facts)
    )


def allowed_gpus(resources: ResourceSpec, facts: Facts) -> list[Gpu]:
    """Returns the managed GPUs that a job with these resources may use."""
    return [gpu for gpu in facts.gpus if resources.allowed is None or gpu.index in resources.allowed]


def _general_wait_reason(facts: Facts) -> WaitReason | None:
    """Returns the reason why no job can start, whatever it needs; None if jobs can start."""
    if facts.storage_issue is not None:
        return WaitReason(WaitKind.STORAGE, facts.storage_issue)
    return None if facts.probe_error is None else WaitReason(WaitKind.GPUS_UNREADABLE, facts.probe_error)


def _wait_reasons(groups: tuple[PendingGroup, ...], reasons: Mapping[int, WaitReason]) -> list[Action]:
    return [
        SetWaitReason(group.resources.key(), reasons[id(group)])
        for group in groups
        if reasons.get(id(group), group.reason) != group.reason
    ]
