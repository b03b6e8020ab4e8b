"""One round: facts in, actions out. `plan` is the only place where the parts of a decision meet."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core import wishes
from gpu_scheduler.core.actions import Action, Cooled, PassedOver, Start, Wait
from gpu_scheduler.core.facts import Attempt, Facts, Line
from gpu_scheduler.core.gpuview import unclaimed_memory, view
from gpu_scheduler.core.needs import Need, resolve
from gpu_scheduler.core.order import order
from gpu_scheduler.core.placement import GpuView, Reason, place
from gpu_scheduler.core.settle import cooled, release, settle
from gpu_scheduler.core.strays import strays


def plan(facts: Facts) -> list[Action]:
    """The actions of this round.

    Wishes go first and alone: a cancel must be on the record before anything is decided about its attempt.
    Jobs are placed when nothing else changed what is booked, so that every placement is made on the record as
    it stands.
    """
    actions: list[Action] = wishes.plan(facts)
    if actions:
        return actions
    for attempt in facts.attempts:
        if attempt.outcome is None:
            actions += settle(attempt, facts.now, facts.settings, held=facts.trouble is not None)
        elif attempt.released_at is None:
            actions += release(attempt, facts.now, facts.settings)
        else:
            actions += cooled(attempt, _memory(attempt, facts), facts.now, facts.settings)
    actions += strays(facts)
    if not all(isinstance(action, Cooled) for action in actions):
        return actions
    cool = {action.attempt_id for action in actions if isinstance(action, Cooled)}
    rest = tuple(attempt for attempt in facts.attempts if attempt.attempt_id not in cool)
    return actions + ([] if wishes.is_ending(facts) else _place(replace(facts, attempts=rest)))


def _place(facts: Facts) -> list[Action]:
    why_not = facts.trouble or facts.blind
    if why_not is not None:
        return _reasons(facts.lines, {id(line): Reason(why_not) for line in facts.lines})
    if not facts.complete:
        return []
    views = {gpu.uuid: view(gpu, facts) for gpu in facts.gpus}
    needs = {line.ask: resolve(line.ask, facts.config) for line in facts.lines}
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
        starts.append(Start(job.job_id, answer, need.share, _baseline(answer, facts)))
        for uuid in answer:
            views[uuid] = _booked(views[uuid], need)
        if line.more and job is line.jobs[-1]:
            break  # its next job, not known in this round, may come before all others
    return starts + _reasons(facts.lines, reasons)


def _memory(attempt: Attempt, facts: Facts) -> list[tuple[float | None, int | None]]:
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    seen: list[tuple[float | None, int | None]] = []
    for uuid in attempt.gpus:
        gpu = gpus.get(uuid)
        # One that is not managed is not sampled, and nothing is placed on it: nobody waits for it.
        seen.append(
            (gpu.sampled_at, unclaimed_memory(gpu, facts.attempts)) if gpu else (facts.now.boot, None)
        )
    return seen


def _baseline(uuids: tuple[str, ...], facts: Facts) -> tuple[tuple[str, int], ...]:
    chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
    return tuple((gpu.uuid, unclaimed_memory(gpu, facts.attempts) or 0) for gpu in chosen)


def _booked(gpu: GpuView, need: Need) -> GpuView:
    return replace(gpu, booked=gpu.booked + need.share)


def _reasons(lines: tuple[Line, ...], reasons: dict[int, Reason]) -> list[Action]:
    changed: list[Action] = []
    for line in lines:
        reason = reasons.get(id(line))
        if reason is not None and reason.text != line.reason:
            changed.append(Wait(line.ask.key(), reason.text, reason.infeasible))
    return changed
