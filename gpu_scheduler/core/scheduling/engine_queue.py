"""Decides which queued jobs are handed over to an engine, and why the others wait.

An engine chooses the node, the GPU and the moment. The queue keeps its order nevertheless, because only a few
jobs wait in an engine at a time: priority, hold, set and cancel apply to all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_scheduler.core.model.job_spec import ENGINES, NOT_ON_ENGINES
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import EngineState, Facts, PendingGroup
from gpu_scheduler.core.scheduling.pending_queue import GroupLimits, queue_key

#: Seconds of silence after which the agent of an engine counts as not working.
SILENT_S = 60.0


def by_engine(
    groups: Iterable[PendingGroup], default: str
) -> tuple[tuple[PendingGroup, ...], Mapping[str, tuple[PendingGroup, ...]]]:
    """Returns the groups for this machine, and those for each engine. default: that of `start --on`."""
    local: list[PendingGroup] = []
    others: dict[str, tuple[PendingGroup, ...]] = {}
    for group in groups:
        engine = group.resources.engine(default)
        if engine is None:
            local.append(group)
        else:
            others[engine] = (*others.get(engine, ()), group)
    return tuple(local), others


def hand_over(facts: Facts) -> list[act.Action]:
    """Starts the next jobs of each engine, and records why the others wait."""
    if not facts.engine_groups:
        return []
    limits = GroupLimits(facts)
    return [
        one for name, groups in facts.engine_groups.items() for one in _hand_over(name, groups, facts, limits)
    ]


def waiting_in(engine: str, facts: Facts) -> int:
    """Returns the number of attempts that were handed over to an engine and have not begun there."""
    return sum(
        one.executor == engine and one.state.is_open and one.status.claim in ("none", "accepted")
        for one in facts.attempts
    )


def _hand_over(
    name: str, groups: tuple[PendingGroup, ...], facts: Facts, limits: GroupLimits
) -> list[act.Action]:
    actions: list[act.Action] = []
    reasons: dict[int, WaitReason] = {}
    state, waiting = facts.engines.get(name), waiting_in(name, facts)
    visits = ((queue_key(job), n, job) for n, group in enumerate(groups) for job in group.jobs)
    for _, n, job in sorted(visits, key=lambda one: one[:2]):
        group = groups[n]
        refusal = _refusal(name, group, state, facts) or limits.refusal(group.resources, is_local=False)
        if refusal is None and waiting >= facts.settings.slurm_limit:
            refusal = WaitReason(WaitKind.ENGINE_FULL, name, running=waiting)
        if refusal is not None:
            reasons.setdefault(n, refusal)
            continue
        actions.append(act.Start(job.job_id, (), 0, waiting_since=job.waiting_since, engine=name))
        limits.take(group.resources, is_local=False)
        waiting += 1
        if group.has_more and job is group.jobs[-1]:
            break  # its next job, which this round has not read, may precede the rest
    changed = {n: why for n, why in reasons.items() if why != groups[n].reason}
    return [*actions, *(act.SetWaitReason(groups[n].resources.key(), why) for n, why in changed.items())]


def _refusal(name: str, group: PendingGroup, state: EngineState | None, facts: Facts) -> WaitReason | None:
    """Returns why no job of a group may be handed over now, whatever else waits; None if one may."""
    resources = group.resources
    if name not in ENGINES or state is None:
        return WaitReason(WaitKind.NO_ENGINE, name)
    if facts.storage_issue is not None:
        return WaitReason(WaitKind.STORAGE, facts.storage_issue)
    if state.at is None or facts.now.wall - state.at > SILENT_S:
        return WaitReason(WaitKind.ENGINE_SILENT, name)
    taken = [word for word in NOT_ON_ENGINES if getattr(resources, word)]
    if taken:
        cause = f"{name.capitalize()} cannot honour {' and '.join(taken)}; use on=local, or leave that out"
        return WaitReason(WaitKind.ENGINE_REFUSES, cause)
    answer = state.answers.get(resources.key())
    unusable = state.problem or (answer.problem if answer is not None else None)
    if answer is not None and answer.problem is not None and answer.is_final:
        return WaitReason(WaitKind.ENGINE_REFUSES, f"{name.capitalize()}: {answer.problem}")
    if unusable is not None:
        return WaitReason(WaitKind.ENGINE_UNUSABLE, f"{name.capitalize()}: {unusable}")
    return None if answer is not None else WaitReason(WaitKind.ENGINE_ASKED, name)
