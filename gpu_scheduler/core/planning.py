"""One round: facts in, actions out. `plan` is the only place where the parts of a decision meet."""

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
    """The actions of this round.

    Wishes go first and alone: a cancel must be on the record before anything is decided about its attempt.
    What was measured goes before the end of the attempt that it is of.
    Jobs are placed when nothing else changed what is booked, so that every placement is made on the record as
    it stands.
    """
    actions: list[Action] = wishes.plan(facts)
    if actions:
        return actions
    notes = measure(facts)
    actions += notes
    for attempt in measured(facts.attempts, notes):
        if attempt.outcome is None:
            cards = _cards(attempt, facts)
            actions += settle(attempt, facts.now, facts.settings, cards, held=facts.trouble is not None)
        elif attempt.released_at is None:
            actions += release(attempt, facts.now, facts.settings)
        else:
            actions += cooled(attempt, _memory(attempt, facts), facts.now, facts.settings)
    actions += strays(facts)
    actions += closed_windows(facts)
    if not all(isinstance(action, Cooled) for action in actions):
        return actions
    cool = {action.attempt_id for action in actions if isinstance(action, Cooled)}
    rest = tuple(attempt for attempt in facts.attempts if attempt.attempt_id not in cool)
    return actions + ([] if wishes.is_ending(facts) else _place(replace(facts, attempts=rest)))


def need_of(ask: Ask, facts: Facts) -> Need:
    """What a job with this Ask needs now.

    Memory that was learned is of use only where it leaves something of a GPU; else the job declares nothing.
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
    """What the GPUs can give to one job: all but the margin, displays, what a GPU holds of nobody's, and how
    much that may change by."""
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
        return _reasons(facts.lines, {id(line): Reason(why_not) for line in facts.lines})
    if not facts.complete:
        return []
    views = {gpu.uuid: view(gpu, facts) for gpu in facts.gpus}
    needs = {line.ask: need_of(line.ask, facts) for line in facts.lines}
    starts: list[Action] = []
    reasons: dict[int, Reason] = {}
    waiting: list[int] = []
    for job, line in order(facts.lines):
        if id(line) in reasons:
            continue
        need = needs[line.ask]
        answer = place(need, line.ask.allowed, list(views.values()), facts.settings.limits)
        if isinstance(answer, Reason):
            reasons[id(line)] = answer
            if not job.passed_over and not answer.infeasible:
                waiting.append(job.job_id)
            continue
        starts += [PassedOver(passed) for passed in waiting]
        waiting.clear()
        starts.append(_start(job.job_id, answer, need, facts))
        for uuid in answer:
            views[uuid] = _booked(views[uuid], need, facts.settings.limits)
        if line.more and job is line.jobs[-1]:
            break  # its next job, not known in this round, may come before all others
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
    seen: list[tuple[float | None, int | None]] = []
    for uuid in attempt.gpus:
        gpu = gpus.get(uuid)
        # One that is not managed is not sampled, and nothing is placed on it: nobody waits for it.
        seen.append(
            (gpu.sampled_at, unclaimed_memory(gpu, facts.attempts, facts.settings.limits))
            if gpu
            else (facts.now.boot, None)
        )
    return seen


def _baseline(uuids: tuple[str, ...], facts: Facts) -> tuple[tuple[str, int], ...]:
    chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
    limits = facts.settings.limits
    return tuple((gpu.uuid, unclaimed_memory(gpu, facts.attempts, limits) or 0) for gpu in chosen)


def _booked(gpu: GpuView, need: Need, limits: Limits) -> GpuView:
    booking = Booking(need.share, need.vram, need.whole)
    memory = gpu.memory_mib
    if memory is not None and gpu.total_mib is not None:
        memory += memory_of(booking, gpu.total_mib, limits.spike)
    booked = gpu.booked + share_of(booking, gpu.total_mib, limits.spike)
    return replace(gpu, booked=booked, memory_mib=memory, taken=True)


def _reasons(
    lines: tuple[Line, ...], reasons: dict[int, Reason], needs: Mapping[Ask, Need] = _UNKNOWN
) -> list[Action]:
    changed: list[Action] = []
    for line in lines:
        reason = reasons.get(id(line))
        if reason is not None and reason.text != line.reason:
            changed.append(Wait(line.ask.key(), reason.text, reason.infeasible, needs.get(line.ask)))
    return changed
