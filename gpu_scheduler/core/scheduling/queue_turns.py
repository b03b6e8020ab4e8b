"""Decides where the queue waits in line with other programs, and what it keeps (docs/design.md, Turns)."""

from __future__ import annotations

from collections.abc import Collection

from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_admission import claim_size
from gpu_scheduler.core.scheduling.needs import could_fit
from gpu_scheduler.core.scheduling.pending_queue import GroupLimits, allowed_gpus, in_queue_order, need_of

#: Maximum number of groups, the first of the queue, among which a round looks for a job that waits in line.
_MAX_GROUPS = 32


def reserved_gpus(facts: Facts) -> set[str]:
    """Returns the GPUs that are reserved for jobs of the queue."""
    reservations = [*facts.reserved_jobs, *([facts.queue_reservation] if facts.queue_reservation else ())]
    return {uuid for one in reservations for uuid in one.gpus}


def freed_by_hand(facts: Facts) -> set[str]:
    """Returns the GPUs of the attempts that the user preempts."""
    stops = [(one, one.open_stop) for one in facts.attempts if one.state.is_open]
    by_hand = [one for one, stop in stops if stop and stop.cause == "preempted" and stop.preemptor is None]
    return {uuid for attempt in by_hand for uuid in attempt.gpus}


def claimed_gpus(facts: Facts) -> set[str]:
    """Returns the GPUs of which one program claims the whole."""
    totals = {gpu.uuid: gpu.total_mib for gpu in facts.gpus}
    own = [(one, uuid) for one in facts.attempts if one.state.is_open for uuid in one.gpus]
    return {
        *(gpu.uuid for gpu in facts.gpus if any(one.mib is None and not one.is_turn for one in gpu.claims)),
        *(uuid for one, uuid in own if claim_size(one.allocation(uuid), totals.get(uuid)) is None),
    }


def queue_since(waiting_since: float, facts: Facts) -> float:
    """Returns since when the queue waits as one program, in seconds since boot.

    With each start, it begins to wait anew. waiting_since: when its first job that fits began to wait, in
    wall seconds. A time more than a minute ahead does not count: the clock was set back.
    """
    times = [waiting_since, *(one.started_at for one in facts.overtakes.starts[-1:])]
    since = max((time for time in times if time <= facts.now.wall + 60), default=0.0)
    return facts.now.boot - (facts.now.wall - since)


def queue_line(facts: Facts, gpus: Collection[str], most: int = 1) -> dict[str, float]:
    """Returns for which of these GPUs, which are in use, the queue waits in line, and since when.

    most: the number of GPUs of the largest job that counts. A job for several GPUs does not wait in line
    before it fits, so that it keeps none of them idle.
    """
    found: dict[str, float] = {}
    if not gpus or facts.storage_issue is not None or facts.probe_error is not None:
        return found
    groups = GroupLimits(facts)
    for group in in_queue_order(facts.pending_groups)[:_MAX_GROUPS]:
        if groups.refusal(group.resources) is not None:
            continue
        need, limits = need_of(group.resources, facts), facts.settings
        for gpu in allowed_gpus(group.resources, facts) if need.count <= most else ():
            is_left_out = gpu.paused or gpu.suspicion is not None or gpu.uuid not in gpus
            sample = None if is_left_out else gpu.sample
            if sample and sample.fault is None and could_fit(need, sample.total_mib, limits):
                found.setdefault(gpu.uuid, queue_since(group.jobs[0].waiting_since, facts))
    return found
