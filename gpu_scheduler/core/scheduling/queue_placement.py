"""Places queued jobs on GPUs in queue order. Later jobs bypass a job that does not fit (backfill)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Action, RecordBypassed, SetWaitReason, Start
from gpu_scheduler.core.scheduling.facts import Facts, Gpu, PendingGroup
from gpu_scheduler.core.scheduling.gpu_admission import with_allocation
from gpu_scheduler.core.scheduling.gpu_use import availability, unattributed_memory
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve
from gpu_scheduler.core.scheduling.order import order
from gpu_scheduler.core.scheduling.placement import could_fit, place


def place_jobs(facts: Facts) -> list[Action]:
    """Starts every waiting job that fits now, in queue order, and records why the other jobs wait.

    If a job does not fit, jobs behind it that fit bypass it (backfill). Each bypassed job is recorded.
    """
    why_not = _general_wait_reason(facts)
    if why_not is not None:
        return _wait_reasons(facts.pending_groups, {id(group): why_not for group in facts.pending_groups})
    if not facts.all_sampled:
        return []
    views = {gpu.uuid: availability(gpu, facts) for gpu in facts.gpus}
    needs = {group.resources: need_of(group.resources, facts) for group in facts.pending_groups}
    starts: list[Action] = []
    reasons: dict[int, WaitReason] = {}
    waiting: list[int] = []
    for job, group in order(facts.pending_groups):
        if id(group) in reasons:
            continue
        need = needs[group.resources]
        answer = place(need, group.resources.allowed, list(views.values()), facts.settings)
        if isinstance(answer, WaitReason):
            reasons[id(group)] = answer
            if not job.bypassed and not answer.is_infeasible:
                waiting.append(job.job_id)
            continue
        starts += [RecordBypassed(passed) for passed in waiting]
        waiting.clear()
        starts.append(_start(job.job_id, answer, need, facts))
        for uuid in answer:
            views[uuid] = with_allocation(views[uuid], need, facts.settings)
        if group.has_more and job is group.jobs[-1]:
            break  # the group's next job, which this round has not read, may precede all remaining jobs
    return starts + _wait_reasons(facts.pending_groups, reasons)


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


def _start(job_id: int, uuids: tuple[str, ...], need: Need, facts: Facts) -> Start:
    return Start(
        job_id,
        uuids,
        need.share,
        _baseline(uuids, facts),
        need.vram,
        need.whole,
        need.learned,
        need.assumed,
    )


def _baseline(uuids: tuple[str, ...], facts: Facts) -> tuple[tuple[str, int], ...]:
    chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
    limits = facts.settings
    return tuple((gpu.uuid, unattributed_memory(gpu, facts.attempts, limits) or 0) for gpu in chosen)


def _wait_reasons(groups: tuple[PendingGroup, ...], reasons: Mapping[int, WaitReason]) -> list[Action]:
    return [
        SetWaitReason(group.resources.key(), reasons[id(group)])
        for group in groups
        if reasons.get(id(group), group.reason) != group.reason
    ]
