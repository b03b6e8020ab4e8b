"""Finds the GPUs to reserve for an overtaken job, when they will be free for it, and what that costs.

The end of each attempt is estimated. On each GPU, attempts are taken off both accounts in the order of their
ends until the job fits. Nothing is ended for the job. Foreign memory stays, and a GPU that is paused, lost or
quarantined is never free. Until they are free, these GPUs are idle as far as nothing is allocated on them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.scheduling.accounting import allocated_share
from gpu_scheduler.core.scheduling.actions import Action, RecordGpuTime
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s
from gpu_scheduler.core.scheduling.run_times import key_of


class ExpectedEnd(Struct, frozen=True):
    """When an attempt is expected to leave its GPUs.

    in_s: seconds from now; infinite if it may never leave. is_known: whether that is more than a guess.
    """

    in_s: float
    is_known: bool


class PlannedReservation(Struct, frozen=True):
    """The GPUs to reserve for a job, as sorted UUIDs.

    start_in_s: the seconds until all of them are expected to be free for it. leaving: the ids of the attempts
    that are expected to have ended by then. cost_s: the GPU-seconds for which they will be idle until then,
    unless jobs that end in time use them: the share that no attempt holds, which grows as attempts leave.
    """

    gpus: tuple[str, ...]
    start_in_s: float
    leaving: frozenset[int]
    cost_s: float


def may_begin(cost_s: float, budget_left_s: float, waited_s: float, idle_budget: float) -> bool:
    """Returns whether a reservation may begin for a job that has been overtaken often enough.

    Its cost must fit into what is left of the idle budget. If something is left, a cost of at most this part
    of the time that the job has waited will do too. All times are in GPU-seconds.
    """
    return cost_s <= budget_left_s or (budget_left_s >= 0 and cost_s <= idle_budget * waited_s)


def expected_ends(facts: Facts) -> dict[int, ExpectedEnd]:
    """Returns when each attempt is expected to leave its GPUs, by its id."""
    return {one.id: _expected_end(one, facts) for one in facts.attempts}


def _expected_end(attempt: ActiveAttempt, facts: Facts) -> ExpectedEnd:
    in_s = departure_s(attempt, facts.now, facts.settings)
    if in_s is not None:
        return ExpectedEnd(in_s, is_known=True)
    estimate = facts.run_times.estimate(key_of(attempt))
    age_s = 0.0 if attempt.started_at is None else max(0.0, facts.now.wall - attempt.started_at)
    if attempt.observed.remaining_s is not None:
        limit_s = math.inf if estimate.timeout_s is None else max(0.0, estimate.timeout_s - age_s)
        return ExpectedEnd(min(attempt.observed.remaining_s, limit_s), is_known=True)
    return ExpectedEnd(estimate.remaining_s(age_s), estimate.predicted_s is not None)


def plan_reservation(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[Ledger], ends: Mapping[int, ExpectedEnd]
) -> PlannedReservation | None:
    """Returns the GPUs that are free first for a job with this need; None if too few will ever be.

    Of GPUs that are free at the same time, it reserves those with the most free share, then those with the
    lowest index.
    """
    found: list[tuple[float, int, int, Ledger]] = []
    for gpu in gpus:
        if allowed is not None and gpu.index not in allowed:
            continue
        gone = attempts_to_leave(gpu, need, ends)
        if gone is not None:
            free_in_s = max((ends[one].in_s for one in gone), default=0.0)
            found.append((free_in_s, gpu.allocated_share, gpu.index, gpu))
    if len(found) < need.count or not need.count:
        return None
    chosen = sorted(found, key=lambda one: one[:3])[: need.count]
    start_in_s = chosen[-1][0]
    return PlannedReservation(
        tuple(sorted(gpu.uuid for *_, gpu in chosen)),
        start_in_s,
        frozenset(one for one, end in ends.items() if end.in_s <= start_in_s),
        sum(_idle_s(gpu, start_in_s, ends) for *_, gpu in chosen),
    )


def _idle_s(gpu: Ledger, until_s: float, ends: Mapping[int, ExpectedEnd]) -> float:
    """Returns the GPU-seconds until then that no attempt on a GPU uses, if nothing starts there."""
    free = (WHOLE - gpu.allocated_share) * until_s
    freed = sum(one.share * max(0.0, until_s - ends[key].in_s) for key, one in gpu.holdings.items())
    return max(0.0, free + freed) / WHOLE


def attempts_to_leave(gpu: Ledger, need: Need, ends: Mapping[int, ExpectedEnd]) -> frozenset[int] | None:
    """Returns the attempts whose end a job with this need must wait for on a GPU; None if it never fits."""
    here = sorted((one for one in gpu.holdings if ends[one].in_s < math.inf), key=lambda one: ends[one].in_s)
    # The more attempts have left, the more jobs fit.
    number = bisect_left(range(len(here) + 1), True, key=lambda left: gpu.minus(here[:left]).accepts(need))
    return frozenset(here[:number]) if number <= len(here) else None


# Counts the GPU time that attempts got, and that a reservation by queue order kept idle.


#: GPU time is recorded at least this often, in seconds, and whenever allocations change.
_INTERVAL_S = 60.0


def count_gpu_time(facts: Facts, *, allocations_change: bool) -> list[Action]:
    """Records the GPU time since it was last counted, if allocations change now or enough time has passed.

    While nothing is allocated or reserved, nothing needs to be recorded until an allocation changes.
    """
    counted = facts.gpu_time
    if counted is None:
        return []
    now = facts.now.wall
    if counted.counted_until is None or now < counted.counted_until:
        return [RecordGpuTime(0.0, 0.0, now)]  # begin to count; the clock may have been set back
    seconds = now - counted.counted_until
    if seconds < _INTERVAL_S and not (allocations_change and seconds > 0):
        return []
    reserved = () if facts.queue_reservation is None else facts.queue_reservation.gpus
    shares = {gpu.uuid: min(WHOLE, _allocated_share(gpu, facts)) for gpu in facts.gpus}
    delivered = sum(shares.values())
    idle = sum(WHOLE - share for uuid, share in shares.items() if uuid in reserved)
    if not (delivered or idle or allocations_change):
        return []
    return [RecordGpuTime(seconds * delivered / WHOLE, seconds * idle / WHOLE, now)]


def _allocated_share(gpu: Gpu, facts: Facts) -> int:
    total, spike = gpu.sample.total_mib if gpu.sample else None, facts.settings.spike_buffer
    holders = [one for one in facts.attempts if gpu.uuid in one.gpus and one.state.holds_gpus]
    return sum(allocated_share(one.allocation_on(gpu.uuid), total, spike) for one in holders)
