"""Explains what the rule of the queue order means for one waiting job: its overtakes and its reservation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import queue_key
from gpu_scheduler.core.scheduling.queue_placement import gpus_for
from gpu_scheduler.core.scheduling.queue_reservation import (
    ExpectedEnd,
    PlannedReservation,
    attempts_to_leave,
    expected_ends,
    plan_reservation,
)
from gpu_scheduler.core.scheduling.queue_walk import UNKNOWN_END_FACTOR, waiting_since
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.run_times import Estimate, Prediction, RunTimes
from gpu_scheduler.core.scheduling.settings import QueueOrder


class EndBasis(Enum):
    """The source of an expected end."""

    ENDING = "ending"
    PROGRESS = "progress"
    RUN_TIMES = "run times"
    GUESS = "guess"


@dataclass(frozen=True)
class AwaitedEnd:
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


@dataclass(frozen=True)
class QueueOutlook:
    """The state of a waiting job with respect to the queue order.

    overtakes: how often it has been overtaken; needed: after how many overtakes GPUs are reserved for it.
    is_guess: whether nothing is known about the end of a job on these GPUs, so that more of them are needed.
    is_possible: whether enough GPUs are expected to be free for it at some time. is_over_budget: whether
    reserved GPUs have been idle for too long. first_job: the job before it in the queue that has the
    reservation; None if there is none. reservation: its own; gpus: the indices of the reserved GPUs. awaited:
    the jobs that must leave them. estimate: how long the job itself takes.
    """

    overtakes: int
    needed: int
    is_guess: bool
    is_possible: bool
    is_over_budget: bool
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
    settings, stored, told = facts.settings, facts.queue_reservation, facts.gpu_time
    if settings.queue_order is not QueueOrder.RESERVE or not need.count:
        return None
    gpus = gpus_for(job, facts)
    ends = expected_ends(gpus.facts)
    planned = plan_reservation(need, resources.allowed, gpus.vacancies(), ends)
    own = stored if stored is not None and stored.job.job_id == job.job_id else None
    is_behind = own is None and stored is not None and queue_key(stored.job) < queue_key(job)
    is_guess = planned is not None and planned.has_unknown_holder
    return QueueOutlook(
        facts.overtakes.count(job, waiting_since(job, resources, need, facts))
        if own is None
        else own.overtakes,
        settings.aging * (UNKNOWN_END_FACTOR if is_guess else 1),
        is_guess,
        planned is not None,
        stored is None and told is not None and told.exceeds(settings.idle_budget),
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
    for gpu in gpus.vacancies():
        if gpu.uuid in planned.gpus:
            for attempt_id in attempts_to_leave(gpu, need, ends) or ():
                where.setdefault(attempt_id, []).append(gpu.index)
    facts = gpus.facts
    found = [
        AwaitedEnd(
            one.job_id,
            tuple(sorted(where[one.attempt_id])),
            ends[one.attempt_id].in_s,
            0.0 if one.started_at is None else max(0.0, facts.now.wall - one.started_at),
            _basis(one, ends[one.attempt_id], facts),
            None if one.run_time is None else run_times.prediction(one.run_time),
            None if one.run_time is None else one.run_time.timeout_s,
        )
        for one in facts.attempts
        if one.attempt_id in where
    ]
    return tuple(sorted(found, key=lambda one: (one.in_s, one.job_id)))


def _basis(attempt: Attempt, end: ExpectedEnd, facts: Facts) -> EndBasis:
    if departure_s(attempt, facts.now, facts.settings) is not None:
        return EndBasis.ENDING
    if attempt.remaining_s is not None:
        return EndBasis.PROGRESS
    return EndBasis.RUN_TIMES if end.is_known else EndBasis.GUESS
