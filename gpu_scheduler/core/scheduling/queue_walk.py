"""Walks the queue once, in order: starts the jobs that fit, and reserves GPUs for one that does not.

A job that does not fit is overtaken by later ones that do (backfill). Once it has been overtaken too often,
GPUs are reserved for it: the first such job gets the reservation, and only the jobs behind it must leave the
reserved GPUs free for it. The order of the queue never changes. The rule is in docs/design.md, Queue order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import Action, SetQueueReservation, SetWaitReason
from gpu_scheduler.core.scheduling.effective_need import allowed_gpus, need_of
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import order
from gpu_scheduler.core.scheduling.preemption import NoPreemption, find_preemption, may_preempt, preempt
from gpu_scheduler.core.scheduling.queue_reservation import (
    ExpectedEnd,
    PlannedReservation,
    expected_ends,
    plan_reservation,
)
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.settings import QueueOrder

#: The overtakes needed, as a multiple of `--aging`, if nothing is known about the end of an attempt on which
#: the reservation would depend.
UNKNOWN_END_FACTOR = 16
#: The expected start of a job is shown as a multiple of this number of seconds, so that it rarely changes.
_START_STEP_S = 300.0
#: Maximum number of different reservations that a round plans, besides that of the job in the store.
_MAX_PLANS = 16


class QueueWalk:
    """One walk through the queue. has_started: whether this round has already started a job."""

    def __init__(self, facts: Facts, gpus: RoundAllocations, *, has_started: bool) -> None:
        self._facts = facts
        self._gpus = gpus
        self._actions: list[Action] = []
        self._reasons: dict[int, WaitReason] = {}
        self._full: set[int] = set()
        self._has_started = has_started
        self._has_preempted = False
        self._is_over = False
        self._may_reserve = facts.settings.queue_order is QueueOrder.RESERVE
        self._reservation = SetQueueReservation(None)
        self._plans: dict[tuple[Need, tuple[int, ...] | None], PlannedReservation | None] = {}
        self._ends: Mapping[int, ExpectedEnd] | None = None

    def place(self) -> list[Action]:
        """Returns the starts, at most one preemption, and the changes of the reservation and wait reasons."""
        groups = self._facts.pending_groups
        needs = {group.resources: need_of(group.resources, self._facts) for group in groups}
        for job, group in order(groups):
            self._visit(job, group, needs[group.resources])
            if self._is_over:
                break
        else:
            self._actions += self._changed_reservation()
        return self._actions + wait_reasons(groups, self._reasons)

    def _visit(self, job: QueuedJob, group: PendingGroup, need: Need) -> None:
        if id(group) not in self._full:
            upper_s = self._upper_s(job)
            answer = self._gpus.place(need, group.resources.allowed, upper_s)
            if not isinstance(answer, WaitReason):
                self._start(job, group, need, answer, upper_s)
                return
            self._reasons.setdefault(id(group), answer)
            if self._is_full(group, need):
                self._full.add(id(group))
                if self._preempt(job, group.resources, answer, upper_s):
                    return
        if self._may_reserve and not self._reasons[id(group)].is_infeasible:
            self._consider(job, group.resources, need)

    def _start(
        self, job: QueuedJob, group: PendingGroup, need: Need, gpus: tuple[str, ...], upper_s: float
    ) -> None:
        self._actions.append(self._gpus.start(job.job_id, gpus, need, upper_s))
        self._has_started = True
        if group.has_more and job is group.jobs[-1]:
            self._is_over = True  # the group's next job, which this round has not read, may precede the rest

    def _upper_s(self, job: QueuedJob) -> float:
        if not self._gpus.has_queue_reservation:
            return math.inf
        return self._facts.run_times.estimate(job.run_time).upper_s

    def _is_full(self, group: PendingGroup, need: Need) -> bool:
        """Returns whether no job of a group fits, even if it ends before the reserved GPUs are needed."""
        if not self._gpus.has_queue_reservation:
            return True
        return isinstance(self._gpus.place(need, group.resources.allowed, 0.0), WaitReason)

    def _preempt(self, job: QueuedJob, resources: ResourceSpec, reason: WaitReason, upper_s: float) -> bool:
        """Preempts other jobs for a job that waits for this reason, if it may do so and if that helps."""
        facts, gpus = self._facts, self._gpus
        may = may_preempt(job.priority, resources, facts.settings)
        if self._has_preempted or reason.is_infeasible or not may:
            return False
        need = reason.need
        assert need is not None
        usable = gpus.preemptible(need, upper_s + facts.settings.preempt_grace_s)
        found = find_preemption(job, need, resources.allowed, facts, gpus.leaving, usable)
        if isinstance(found, NoPreemption):
            return False
        gpus.reserve(job.job_id, found.gpus, need)
        self._actions += preempt(job.job_id, found, facts)
        self._has_preempted = True
        self._plans.clear()
        return True

    def _consider(self, job: QueuedJob, resources: ResourceSpec, need: Need) -> None:
        """Reserves GPUs for a job that does not fit, if it has been overtaken too often.

        At most one job of the queue gets them. The job in the store keeps its reservation, until an earlier
        job gets one.
        """
        facts, stored = self._facts, self._facts.queue_reservation
        is_stored = stored is not None and stored.job.job_id == job.job_id
        aging = facts.settings.aging
        # The first condition is cheap, and nearly always false.
        if not is_stored and not facts.overtakes.reaches(job, job.waiting_since, aging):
            return
        since = waiting_since(job, resources, need, facts)
        if not is_stored and not facts.overtakes.reaches(job, since, aging):
            return
        told = facts.gpu_time
        if stored is None and told is not None and told.exceeds(facts.settings.idle_budget):
            self._may_reserve = False
            return
        if self._has_started:
            self._is_over = True  # the next round knows when the jobs that this round starts will end
            return
        planned = self._planned(need, resources.allowed, is_stored=is_stored)
        if planned is None:
            return
        needed = aging * UNKNOWN_END_FACTOR if planned.has_unknown_holder else aging
        if not is_stored and not facts.overtakes.reaches(job, since, needed):
            return
        start_at = math.ceil((facts.now.wall + planned.start_in_s) / _START_STEP_S) * _START_STEP_S
        overtakes = stored.overtakes if is_stored and stored else facts.overtakes.count(job, since)
        self._gpus.reserve_in_order(job.job_id, need, planned, start_at, overtakes)
        self._reservation = SetQueueReservation(job.job_id, planned.gpus, start_at, overtakes)
        self._may_reserve = False

    def _planned(
        self, need: Need, allowed: tuple[int, ...] | None, *, is_stored: bool
    ) -> PlannedReservation | None:
        if (need, allowed) not in self._plans:
            if len(self._plans) >= _MAX_PLANS and not is_stored:
                return None
            if self._ends is None:
                self._ends = expected_ends(self._gpus.facts)
            planned = plan_reservation(need, allowed, self._gpus.vacancies(), self._ends)
            self._plans[need, allowed] = planned
        return self._plans[need, allowed]

    def _changed_reservation(self) -> list[Action]:
        stored, wanted = self._facts.queue_reservation, self._reservation
        if stored is None:
            return [] if wanted.job_id is None else [wanted]
        kept = SetQueueReservation(stored.job.job_id, stored.gpus, stored.start_at, stored.overtakes)
        return [] if wanted == kept else [wanted]


def waiting_since(job: QueuedJob, resources: ResourceSpec, need: Need, facts: Facts) -> float:
    """Returns since when a job could have run but for other jobs, in wall seconds; infinite if it cannot.

    That is since it was queued or its last parent finished, and since enough of the GPUs that it may use are
    managed, not paused and without a fault.
    """
    usable = sorted(
        gpu.usable_since
        for gpu in allowed_gpus(resources, facts)
        if not gpu.paused and (gpu.sample is None or gpu.sample.fault is None)
    )
    if len(usable) < need.count:
        return math.inf
    return max(job.waiting_since, usable[need.count - 1])


def wait_reasons(groups: tuple[PendingGroup, ...], reasons: Mapping[int, WaitReason]) -> list[Action]:
    """Returns the changes of the wait reasons. reasons: by the identity of the group."""
    return [
        SetWaitReason(group.resources.key(), reasons[id(group)])
        for group in groups
        if reasons.get(id(group), group.reason) != group.reason
    ]
