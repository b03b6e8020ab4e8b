"""Plans one round: facts in, actions out. `plan` is the only place that combines the separate decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpu_scheduler.core import wishes
from gpu_scheduler.core.actions import Action, Cooled, PassedOver, Start, Wait
from gpu_scheduler.core.facts import Attempt, Facts, Gpu, Line
from gpu_scheduler.core.gpuview import displays, unclaimed_memory, view
from gpu_scheduler.core.ledger import Booking, memory_of, share_of
from gpu_scheduler.core.measuring import measure, measured
from gpu_scheduler.core.needs import Ask, Need, resolve
from gpu_scheduler.core.order import order
from gpu_scheduler.core.placement import GpuView, Limits, Reason, could_fit, place
from gpu_scheduler.core.retrying import Cards
from gpu_scheduler.core.settle import cooled, release, settle
from gpu_scheduler.core.strays import strays
from gpu_scheduler.core.windows import closed_windows

_UNKNOWN: Mapping[Ask, Need] = {}


def plan(facts: Facts) -> list[Action]:
    """Returns the actions of this round.

    Requests come first and alone: a cancel must be in the store before its attempt is reconciled.
    Measurements come before the end of the attempt that they belong to.
    Jobs are placed only in a round that changes no allocation otherwise, so that every placement uses the
    stored state.
    """
    actions: list[Action] = wishes.plan(facts)
    if actions:
        return actions
    measurements = measure(facts)
    actions += measurements
    for attempt in measured(facts.attempts, measurements):
        if attempt.outcome is None:
            inventory = _cards(attempt, facts)
            actions += settle(attempt, facts.now, facts.settings, inventory, held=facts.trouble is not None)
        elif attempt.released_at is None:
            actions += release(attempt, facts.now, facts.settings)
        else:
            actions += cooled(attempt, _memory(attempt, facts), facts.now, facts.settings)
    actions += strays(facts)
    actions += closed_windows(facts)
    if not all(isinstance(action, Cooled) for action in actions):
        return actions
    released = {action.attempt_id for action in actions if isinstance(action, Cooled)}
    remaining = tuple(attempt for attempt in facts.attempts if attempt.attempt_id not in released)
    return actions + ([] if wishes.is_ending(facts) else _place(replace(facts, attempts=remaining)))


def need_of(ask: Ask, facts: Facts) -> Need:
    """Returns the present need of a job with these resources.

    Learned memory applies only if it leaves room for another job on some GPU; otherwise the job declares
    nothing.
    """
    need = resolve(ask, facts.config, facts.learned)
    if ask.family in facts.learned and not _leaves_room(need, ask, facts):
        need = resolve(ask, facts.config)
    return replace(need, exclusive=True) if facts.settings.exclusive else need


def _leaves_room(need: Need, ask: Ask, facts: Facts) -> bool:
    limits = facts.settings.limits
    beside = replace(limits, margin_mib=limits.margin_mib + limits.idle_mib)
    return any(
        could_fit(need, gpu.sample.total_mib if gpu.sample else None, beside) for gpu in _usable(ask, facts)
    )


def _usable(ask: Ask, facts: Facts) -> list[Gpu]:
    return [gpu for gpu in facts.gpus if ask.allowed is None or gpu.index in ask.allowed]


def _cards(attempt: Attempt, facts: Facts) -> Cards:
    """Returns what the GPUs can give to one job: everything except the margin, displays, unattributed memory
    and the amount by which that may vary."""
    sizes = {gpu.uuid: (gpu.sample and gpu.sample.total_mib) or gpu.total_mib for gpu in facts.gpus}
    totals = {uuid: total for uuid, total in sizes.items() if total}
    limits, count = facts.settings.limits, max(1, len(attempt.gpus))
    free = [
        totals[gpu.uuid] - displays(gpu, limits) for gpu in _usable(attempt.ask, facts) if gpu.uuid in totals
    ]
    if len(free) < count:
        return Cards(totals)
    kept = limits.margin_mib + limits.idle_mib + max(attempt.baseline_mib.values(), default=0)
    return Cards(totals, sorted(free, reverse=True)[count - 1] - kept)


def _place(facts: Facts) -> list[Action]:
    why_not = facts.trouble or facts.blind
    if why_not is not None:
        return _reasons(facts.lines, {id(group): Reason(why_not) for group in facts.lines})
    if not facts.complete:
        return []
    views = {gpu.uuid: view(gpu, facts) for gpu in facts.gpus}
    needs = {group.ask: need_of(group.ask, facts) for group in facts.lines}
    starts: list[Action] = []
    reasons: dict[int, Reason] = {}
    waiting: list[int] = []
    for job, group in order(facts.lines):
        if id(group) in reasons:
            continue
        need = needs[group.ask]
        answer = place(need, group.ask.allowed, list(views.values()), facts.settings.limits)
        if isinstance(answer, Reason):
            reasons[id(group)] = answer
            if not job.passed_over and not answer.infeasible:
                waiting.append(job.job_id)
            continue
        starts += [PassedOver(passed) for passed in waiting]
        waiting.clear()
        starts.append(_start(job.job_id, answer, need, facts))
        for uuid in answer:
            views[uuid] = _booked(views[uuid], need, facts.settings.limits)
        if group.more and job is group.jobs[-1]:
            break  # the next job of its group, unknown in this round, may precede all others
    return starts + _reasons(facts.lines, reasons, needs)


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


def _memory(attempt: Attempt, facts: Facts) -> list[tuple[float | None, int | None]]:
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    samples: list[tuple[float | None, int | None]] = []
    for uuid in attempt.gpus:
        gpu = gpus.get(uuid)
        # An unmanaged GPU is not sampled and gets no jobs, so there is nothing to wait for.
        samples.append(
            (gpu.sampled_at, unclaimed_memory(gpu, facts.attempts, facts.settings.limits))
            if gpu
            else (facts.now.boot, None)
        )
    return samples


def _baseline(uuids: tuple[str, ...], facts: Facts) -> tuple[tuple[str, int], ...]:
    chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
    limits = facts.settings.limits
    return tuple((gpu.uuid, unclaimed_memory(gpu, facts.attempts, limits) or 0) for gpu in chosen)


def _booked(gpu: GpuView, need: Need, limits: Limits) -> GpuView:
    allocation = Booking(need.share, need.vram, need.whole)
    memory = gpu.memory_mib
    if memory is not None and gpu.total_mib is not None:
        memory += memory_of(allocation, gpu.total_mib, limits.spike)
    share = gpu.booked + share_of(allocation, gpu.total_mib, limits.spike)
    return replace(gpu, booked=share, memory_mib=memory, taken=True)


def _reasons(
    lines: tuple[Line, ...], reasons: dict[int, Reason], needs: Mapping[Ask, Need] = _UNKNOWN
) -> list[Action]:
    changed: list[Action] = []
    for group in lines:
        reason = reasons.get(id(group))
        if reason is not None and reason.text != group.reason:
            changed.append(Wait(group.ask.key(), reason.text, reason.infeasible, needs.get(group.ask)))
    return changed
