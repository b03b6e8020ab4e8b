"""Tells what the next round does with one waiting job: its GPUs, its overtakes and its reservation."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import GroupLimits, need_of, queue_key
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption, find_preemption, may_preempt
from gpu_scheduler.core.scheduling.queue_placement import budget_left_s, keep_reserved_gpus, waiting_since
from gpu_scheduler.core.scheduling.queue_reservation import (
    ExpectedEnd,
    PlannedReservation,
    attempts_to_leave,
    expected_ends,
    may_begin,
    plan_reservation,
)
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s, leaving_attempts
from gpu_scheduler.core.scheduling.retry import without_failed_gpus
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.run_times import Estimate, Prediction, RunTimes, key_of
from gpu_scheduler.core.scheduling.settings import QueueOrder


class EndBasis(Enum):
    """The source of an expected end."""

    ENDING = "ending"
    PROGRESS = "progress"
    RUN_TIMES = "run times"
    GUESS = "guess"


class AwaitedEnd(Struct, frozen=True):
    """A running job that must leave reserved GPUs first.

    gpus: the indices of these GPUs. in_s: the seconds until its expected end. age_s: for how long it has run.
    prediction: the usual time of earlier runs, None if there are too few. timeout_s: its time limit.
    """

    job_id: int
    gpus: tuple[int, ...]
    in_s: float
    age_s: float
    basis: EndBasis
    prediction: Prediction | None
    timeout_s: float | None


class QueueOutlook(Struct, frozen=True):
    """The state of a waiting job with respect to the queue order.

    overtakes: how often it has been overtaken; needed: after how many overtakes GPUs may be reserved for it.
    cost_s: the GPU-seconds for which they would be idle; None if it is not known when enough of them will be
    free. budget_left_s: for how many GPU-seconds reserved GPUs may still be idle. may_begin: whether the cost
    is small enough. first_job: the job before it in the queue that has the reservation; None if there is
    none. reservation: its own; gpus: the indices of the reserved GPUs. awaited: the jobs that must leave
    them. estimate: how long the job itself takes.
    """

    overtakes: int
    needed: int
    cost_s: float | None
    budget_left_s: float
    may_begin: bool
    first_job: int | None
    reservation: QueueReservation | None
    gpus: tuple[int, ...]
    awaited: tuple[AwaitedEnd, ...]
    estimate: Estimate


def queue_outlook(
    facts: Facts, need: Need, job: QueuedJob, resources: ResourceSpec, run_times: RunTimes
) -> QueueOutlook | None:
    """Returns the outlook of a queued job; None if no GPUs are ever reserved by queue order.

    run_times: those on which the estimates in the facts are based.
    """
    settings, stored = facts.settings, facts.queue_reservation
    if settings.queue_order is not QueueOrder.RESERVE or not need.count:
        return None
    gpus = gpus_for(job, facts)
    ends = expected_ends(gpus.facts)
    planned = plan_reservation(need, resources.allowed, gpus.ledgers(), ends)
    own = stored if stored is not None and stored.job.job_id == job.job_id else None
    is_behind = own is None and stored is not None and queue_key(stored.job) < queue_key(job)
    since = waiting_since(job, resources, need, facts)
    left_s, waited_s = budget_left_s(facts), need.count * (facts.now.wall - since)
    return QueueOutlook(
        facts.overtakes.count(job.place, job.submitted_at, since) if own is None else own.overtakes,
        settings.aging,
        None if planned is None else planned.cost_s,
        left_s,
        planned is not None and may_begin(planned.cost_s, left_s, waited_s, settings.idle_budget),
        stored.job.job_id if is_behind and stored is not None else None,
        own,
        () if own is None else tuple(sorted(gpu.index for gpu in facts.gpus if gpu.uuid in own.gpus)),
        () if own is None or planned is None else _awaited(need, planned, gpus, ends, run_times),
        facts.run_times.estimate(job.run_time),
    )


def _awaited(
    need: Need,
    planned: PlannedReservation,
    gpus: RoundAllocations,
    ends: dict[int, ExpectedEnd],
    run_times: RunTimes,
) -> tuple[AwaitedEnd, ...]:
    """Returns the jobs that must leave the reserved GPUs, the first end first."""
    where: dict[int, list[int]] = {}
    for gpu in gpus.ledgers():
        if gpu.uuid in planned.gpus:
            for attempt_id in attempts_to_leave(gpu, need, ends) or ():
                where.setdefault(attempt_id, []).append(gpu.index)
    facts = gpus.facts
    found = [
        AwaitedEnd(
            one.job_id,
            tuple(sorted(where[one.id])),
            ends[one.id].in_s,
            0.0 if one.started_at is None else max(0.0, facts.now.wall - one.started_at),
            _basis(one, ends[one.id], facts),
            None if (key := key_of(one)) is None else run_times.prediction(key),
            None if key is None else key.timeout_s,
        )
        for one in facts.attempts
        if one.id in where
    ]
    return tuple(sorted(found, key=lambda one: (one.in_s, one.job_id)))


def _basis(attempt: ActiveAttempt, end: ExpectedEnd, facts: Facts) -> EndBasis:
    if departure_s(attempt, facts.now, facts.settings) is not None:
        return EndBasis.ENDING
    if attempt.observed.remaining_s is not None:
        return EndBasis.PROGRESS
    return EndBasis.RUN_TIMES if end.is_known else EndBasis.GUESS


def judged_gpus(
    facts: Facts, need: Need, job: QueuedJob, allowed: tuple[int, ...] | None = None
) -> list[Ledger]:
    """Returns each GPU as the next round judges it for a queued job with this need."""
    judged = gpus_for(job, facts).judged(need, job.job_id, _upper_s(job, facts))
    return without_failed_gpus(judged, job, need, allowed, facts)


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
    keep_reserved_gpus(facts, gpus)
    stored = facts.queue_reservation
    if stored is not None and queue_key(stored.job) < queue_key(job):
        wanted = need_of(stored.resources, facts)
        ends = expected_ends(gpus.facts)
        planned = plan_reservation(wanted, stored.resources.allowed, gpus.ledgers(), ends)
        if planned is not None:
            gpus.reserve_in_order(stored.job.job_id, wanted, planned, stored.start_at, stored.overtakes)
    return gpus


def _upper_s(job: QueuedJob, facts: Facts) -> float:
    return facts.run_times.estimate(job.run_time).upper_s
