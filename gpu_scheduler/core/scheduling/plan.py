"""Plans one round: facts in, actions out. `plan` is the only place that combines the separate decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling import requests
from gpu_scheduler.core.scheduling.accounting import Allocation, allocated_mib, allocated_share
from gpu_scheduler.core.scheduling.actions import (
    Action,
    RecordBypassed,
    RecordMemoryReleased,
    RecordWindowClosed,
    SetWaitReason,
    Start,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu, PendingGroup
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability
from gpu_scheduler.core.scheduling.gpu_use import availability, display_memory, unattributed_memory
from gpu_scheduler.core.scheduling.misplaced import misplaced_processes
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve
from gpu_scheduler.core.scheduling.order import order
from gpu_scheduler.core.scheduling.placement import could_fit, place
from gpu_scheduler.core.scheduling.reconcile import reconcile
from gpu_scheduler.core.scheduling.release import check_memory_release, release_allocation
from gpu_scheduler.core.scheduling.retry import GpuInventory
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.core.scheduling.usage import record_measurements, with_recorded_peaks


def plan(facts: Facts) -> list[Action]:
    """Returns the actions of this round.

    Requests come first and alone: a cancel must be in the store before its attempt is reconciled.
    Measurements come before the end of the attempt that they belong to.
    Jobs are placed only in a round that changes no allocation otherwise, so that every placement uses the
    stored state.
    """
    actions: list[Action] = requests.answer_requests(facts)
    if actions:
        return actions
    measurements = record_measurements(facts)
    actions += measurements
    for attempt in with_recorded_peaks(facts.attempts, measurements):
        if attempt.state.is_open:
            inventory = _gpu_inventory(attempt, facts)
            actions += reconcile(
                attempt, facts.now, facts.settings, inventory, starts_blocked=facts.storage_issue is not None
            )
        elif attempt.state is AttemptState.ENDED:
            actions += release_allocation(attempt, facts.now, facts.settings)
        else:
            actions += check_memory_release(
                attempt, _memory_samples(attempt, facts), facts.now, facts.settings
            )
    actions += misplaced_processes(facts)
    actions += _closed_windows(facts)
    if not all(isinstance(action, RecordMemoryReleased) for action in actions):
        return actions
    released = {action.attempt_id for action in actions if isinstance(action, RecordMemoryReleased)}
    remaining = tuple(attempt for attempt in facts.attempts if attempt.attempt_id not in released)
    return actions + ([] if requests.is_ending(facts) else _place_jobs(replace(facts, attempts=remaining)))


def _closed_windows(facts: Facts) -> list[Action]:
    """Records, once per attempt, the Screen windows that were closed while their jobs continue."""
    return [
        RecordWindowClosed(attempt.attempt_id)
        for attempt in facts.attempts
        if attempt.state.is_open
        and attempt.status.window_open is False
        and not attempt.window_closed_recorded
    ]


def need_of(resources: ResourceSpec, facts: Facts) -> Need:
    """Returns the current need of a job with these resources.

    Learned memory applies only if it leaves room for another job on some GPU; otherwise the job declares
    nothing.
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
        for gpu in _allowed_gpus(resources, facts)
    )


def _allowed_gpus(resources: ResourceSpec, facts: Facts) -> list[Gpu]:
    return [gpu for gpu in facts.gpus if resources.allowed is None or gpu.index in resources.allowed]


def _gpu_inventory(attempt: Attempt, facts: Facts) -> GpuInventory:
    """Returns the memory that the GPUs can provide to one job: all except the margin, displays, unattributed
    memory and its possible variation."""
    sizes = {gpu.uuid: (gpu.sample and gpu.sample.total_mib) or gpu.total_mib for gpu in facts.gpus}
    totals = {uuid: total for uuid, total in sizes.items() if total}
    limits, count = facts.settings, max(1, len(attempt.gpus))
    free = [
        totals[gpu.uuid] - display_memory(gpu, limits)
        for gpu in _allowed_gpus(attempt.resources, facts)
        if gpu.uuid in totals
    ]
    if len(free) < count:
        return GpuInventory(totals)
    kept = limits.margin_mib + limits.idle_threshold_mib + max(attempt.baseline_mib.values(), default=0)
    return GpuInventory(totals, sorted(free, reverse=True)[count - 1] - kept)


def _place_jobs(facts: Facts) -> list[Action]:
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
            views[uuid] = _with_allocation(views[uuid], need, facts.settings)
        if group.has_more and job is group.jobs[-1]:
            break  # the next job of its group, which this round has not read, may precede all others
    return starts + _wait_reasons(facts.pending_groups, reasons)


def _general_wait_reason(facts: Facts) -> WaitReason | None:
    """Returns the reason why no job at all can start, or None."""
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


def _memory_samples(attempt: Attempt, facts: Facts) -> list[tuple[float | None, int | None]]:
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    samples: list[tuple[float | None, int | None]] = []
    for uuid in attempt.gpus:
        gpu = gpus.get(uuid)
        # An unmanaged GPU is not sampled and gets no jobs, so there is nothing to wait for.
        samples.append(
            (gpu.sampled_at, unattributed_memory(gpu, facts.attempts, facts.settings))
            if gpu
            else (facts.now.boot, None)
        )
    return samples


def _baseline(uuids: tuple[str, ...], facts: Facts) -> tuple[tuple[str, int], ...]:
    chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
    limits = facts.settings
    return tuple((gpu.uuid, unattributed_memory(gpu, facts.attempts, limits) or 0) for gpu in chosen)


def _with_allocation(gpu: GpuAvailability, need: Need, limits: Limits) -> GpuAvailability:
    allocation = Allocation(need.share, need.vram, need.whole)
    memory = gpu.committed_mib
    if memory is not None and gpu.total_mib is not None:
        memory += allocated_mib(allocation, gpu.total_mib, limits.spike_buffer)
    share = gpu.allocated_share + allocated_share(allocation, gpu.total_mib, limits.spike_buffer)
    return replace(gpu, allocated_share=share, committed_mib=memory, occupied=True)


def _wait_reasons(groups: tuple[PendingGroup, ...], reasons: Mapping[int, WaitReason]) -> list[Action]:
    return [
        SetWaitReason(group.resources.key(), reasons[id(group)])
        for group in groups
        if reasons.get(id(group), group.reason) != group.reason
    ]
