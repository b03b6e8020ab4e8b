"""Places waiting jobs: first those that preempt others, then the rest of the queue in one walk, in order.

A job that does not fit is overtaken by later ones that do (backfill). Once it has been overtaken too often,
GPUs are reserved for it: the first such job gets the reservation, and only the jobs behind it must leave the
reserved GPUs free for it. The order of the queue never changes. The rule is in docs/design.md, Queue order.

The jobs without a GPU come last, so that they take no place of a group from the others. Nothing else connects
both: whatever GPUs do, the former start, and the latter are placed as if there were no former.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, QueueReservation, ReservedJob
from gpu_scheduler.core.scheduling.gpu_faults import is_due
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import (
    GroupLimits,
    GroupRequest,
    RequestKind,
    allowed_gpus,
    in_queue_order,
    need_of,
    queue_key,
    request_of,
)
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.preemption import NoPreemption, find_preemption, may_preempt, preempt
from gpu_scheduler.core.scheduling.reconcile_attempt import leaving_attempts
from gpu_scheduler.core.scheduling.round_allocations import (
    ExpectedEnd,
    PlannedReservation,
    RoundAllocations,
    expected_ends,
    may_begin,
    plan_reservation,
    without_failed_gpus,
)
from gpu_scheduler.core.scheduling.settings import QueueOrder

#: Maximum number of groups whose wait reasons a round determines, the first ones that do not fit.
MAX_EXPLAINED = 128
# With 10,000 different requests, a round takes 20 to 40 ms within these limits, and without the one
#
# - 1.1 s, if all jobs may preempt and that helps none;
# - 360 ms, if 2,000 have been overtaken too often and the reservation of each would cost too much;
# - 70 ms, and 300 ms the first time, if all have an estimate and reserved GPUs are idle;
# - 100 ms, if a suspect GPU is due for a trial and no job has tries left.

#: Maximum number of groups for which a round looks for others to preempt.
_MAX_PREEMPTING = 128
#: Maximum number of different reservations that a round plans, besides that of the job in the store.
_MAX_PLANS = 512
#: Maximum number of jobs for which a round estimates whether they end before reserved GPUs are needed.
_MAX_ESTIMATES = 512
#: Number of groups, the first of the queue, in which a round looks for a job that tries a suspect GPU.
_MAX_TRYING = 512
#: The expected start of a job is shown as a multiple of this number of seconds, so that it rarely changes.
_START_STEP_S = 300.0
#: The reason of a group behind those that a round explains, in place of one that may be old.
_NOT_TRIED = WaitReason(WaitKind.NOT_TRIED)
#: More than the size of any request.
_NO_SIZE = 1 << 62


def place_jobs(facts: Facts) -> list[act.Action]:
    """Starts every waiting job that fits now, in queue order, and records why the other jobs wait.

    The jobs that preempt others come first, on the GPUs that are reserved for them. At most one job of a
    round begins to preempt others, and at most one job has GPUs reserved by queue order.
    """
    if not (facts.pending_groups or facts.reserved_jobs or facts.queue_reservation):
        return []
    if facts.storage_issue is not None:
        every = [*in_queue_order(facts.pending_groups), *_without_gpus(facts)]
        return _all_wait(every, WaitReason(WaitKind.STORAGE, facts.storage_issue))
    limits = GroupLimits(facts)
    return _place_on_gpus(facts, limits) + _start_without_gpus(facts, limits)


def _place_on_gpus(facts: Facts, limits: GroupLimits) -> list[act.Action]:
    groups = in_queue_order(facts.pending_groups)
    if facts.probe_error is not None:
        return _all_wait(groups, WaitReason(WaitKind.GPUS_UNREADABLE, facts.probe_error))
    if not facts.all_sampled:
        return []
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    walk = _Walk(facts, groups, gpus, limits, _place_reserved_jobs(facts, gpus, limits))
    actions = walk.place()
    if walk.has_started:
        return actions
    return actions + _try_suspect(facts, groups, gpus, limits)


def _without_gpus(facts: Facts) -> list[PendingGroup]:
    return [one for one in facts.pending_groups if not one.resources.needs_gpus]


def _start_without_gpus(facts: Facts, limits: GroupLimits) -> list[act.Action]:
    """Starts the jobs that need no GPU, in queue order, as far as the limits allow."""
    actions: list[act.Action] = []
    reasons: dict[int, WaitReason] = {}
    groups = _without_gpus(facts)
    visits = ((queue_key(job), n, job) for n, group in enumerate(groups) for job in group.jobs)
    for _, n, job in sorted(visits, key=lambda one: one[:2]):
        group = groups[n]
        refusal = limits.refusal(group.resources)
        if refusal is not None:
            reasons.setdefault(n, refusal)
            continue
        actions.append(act.Start(job.job_id, (), 0, waiting_since=job.waiting_since))
        limits.take(group.resources)
        if group.has_more and job is group.jobs[-1]:
            break  # its next job, which this round has not read, may precede the rest
    return actions + _wait_reasons((groups[n], reason) for n, reason in reasons.items())


def _all_wait(groups: list[PendingGroup], why: WaitReason) -> list[act.Action]:
    """Returns the changes of the wait reasons if no job of these groups can start."""
    first, others = groups[:MAX_EXPLAINED], groups[MAX_EXPLAINED:]
    return _wait_reasons(
        [*((one, why) for one in first), *((one, _NOT_TRIED) for one in others if one.reason)]
    )


def _wait_reasons(reasons: Iterable[tuple[PendingGroup, WaitReason]]) -> list[act.Action]:
    """Returns the changes of the wait reasons."""
    return [
        act.SetWaitReason(group.resources.key(), reason)
        for group, reason in reasons
        if reason != group.reason
    ]


class _Walk:
    """One walk through the queue. actions: those of this round so far.

    It visits the first job of each group, and the next one if that may start, preempt others or get the
    reservation. A walk only gives GPUs away. So for each kind of request, once one has been refused, those
    that are at least as large are not tried.
    """

    def __init__(
        self,
        facts: Facts,
        groups: list[PendingGroup],
        gpus: RoundAllocations,
        limits: GroupLimits,
        actions: list[act.Action],
    ) -> None:
        self._facts = facts
        self._groups = groups
        self._gpus = gpus
        self._limits = limits
        self._actions = actions
        #: The next jobs of groups, by queue key: each with the index of its group and its own in the group.
        self._next: list[tuple[tuple[int, int, int], int, int]] = []
        #: The smallest size that was refused to a job that ends in time and to one that does not.
        self._refused: dict[bool, dict[RequestKind, int]] = {True: {}, False: {}}
        self._reasons: dict[int, WaitReason] = {}
        self._has_preempted = False
        self._is_over = False
        self._budget_left_s = budget_left_s(facts)
        self._may_reserve = facts.settings.queue_order is QueueOrder.RESERVE and self._budget_left_s >= 0
        self._reservation: QueueReservation | None = None
        self._plans: dict[tuple[Need, tuple[int, ...] | None], PlannedReservation | None] = {}
        self._ends: Mapping[int, ExpectedEnd] | None = None
        #: The groups and priorities for which preempting others does not help.
        self._not_helped: set[tuple[int, int]] = set()
        self._plans_left, self._estimates_left = _MAX_PLANS, _MAX_ESTIMATES
        self._examinations_left = {True: MAX_EXPLAINED, False: MAX_EXPLAINED}

    @property
    def has_started(self) -> bool:
        """True if this round has already started a job that needs GPUs."""
        return any(isinstance(one, act.Start) for one in self._actions)

    def place(self) -> list[act.Action]:
        """Returns the starts, at most one preemption, and the changes of the reservation and wait reasons."""
        stored, after_all = self._facts.queue_reservation, len(self._groups)
        if stored is not None and self._is_waiting(stored):
            heappush(self._next, (queue_key(stored.job), after_all, 0))
        for n, at in self._visits():
            if stored is not None and n == after_all:
                self._keep(stored)
            else:
                group = self._groups[n]
                if self._visit(n, group, group.jobs[at]):
                    self._visit_later(n, group, at)
            if self._is_over:
                break
        else:
            self._actions += self._changed_reservation()
        return self._actions + _wait_reasons((self._groups[n], one) for n, one in self._reasons.items())

    def _is_waiting(self, stored: QueueReservation) -> bool:
        """Returns whether the job with the reservation waits for GPUs, or will do so in a moment."""
        job_id = stored.job.job_id
        return stored.is_delayed or any(job.job_id == job_id for one in self._groups for job in one.jobs)

    def _visits(self) -> Iterator[tuple[int, int]]:
        """Yields the jobs to visit in queue order: the index of the group, and that of the job in it."""
        for n, group in enumerate(self._groups):
            while self._next and self._next[0] < (queue_key(group.jobs[0]), n, 0):
                yield heappop(self._next)[1:]
            yield n, 0
        while self._next:
            yield heappop(self._next)[1:]

    def _visit_later(self, n: int, group: PendingGroup, at: int) -> None:
        """Lets the walk visit the next job of a group after this one that is of interest, if there is one."""
        later = range(at + 1, len(group.jobs))
        if not may_preempt(0, group.resources, self._facts.settings):
            later = later[:1]  # none of them preempts others, so if the next one is of no interest, none is
        after = next((one for one in later if self._is_of_interest(n, group, group.jobs[one])), None)
        if after is not None:
            heappush(self._next, (queue_key(group.jobs[after]), n, after))

    def _is_of_interest(self, n: int, group: PendingGroup, job: QueuedJob) -> bool:
        """Returns whether the walk visits this job of a group after the one before it."""
        return (
            not self._is_refused(request_of(group, self._facts), ends_in_time=True)
            or self._may_try_preemption(n, group, job)
            or self._may_get_reservation(job, group.submitted_at)
        )

    def _may_get_reservation(self, job: QueuedJob, submitted_at: float) -> bool:
        """Returns whether a job may get a reservation. This is cheap, and nearly always keeps it off."""
        aging = self._facts.settings.aging
        return self._may_reserve and self._facts.overtakes.may_reach(job.place, submitted_at, aging)

    def _is_refused(self, request: GroupRequest, *, ends_in_time: bool) -> bool:
        return request.size >= self._refused[ends_in_time].get(request.kind, _NO_SIZE)

    def _visit(self, n: int, group: PendingGroup, job: QueuedJob) -> bool:
        """Starts a job if it fits. Otherwise, it may preempt others or get the reservation.

        Returns whether other jobs of its group may start.
        """
        refusal = self._limits.refusal(group.resources)
        if refusal is not None:
            if len(self._reasons) < MAX_EXPLAINED:
                self._reasons.setdefault(n, refusal)
            return False
        request, refused, has_failed_there = request_of(group, self._facts), None, False
        if not self._is_refused(request, ends_in_time=True):
            upper_s = self._upper_s(job)
            if not self._is_refused(request, ends_in_time=self._gpus.ends_in_time(upper_s)):
                answer = self._place(request, group.resources.allowed, upper_s)
                if job.failed_on and not isinstance(answer, WaitReason):
                    answer = self._place_elsewhere(job, request.need, group.resources.allowed, upper_s)
                    has_failed_there = isinstance(answer, WaitReason)
                if not isinstance(answer, WaitReason):
                    self._start(group, job, request.need, answer, upper_s)
                    return True
                refused = answer
        if n not in self._reasons:
            self._explain(n, group, job, request.need, refused)
        # A job that fits only where it has failed neither preempts others nor gets the reservation.
        if not has_failed_there and not self._preempt(n, group, job, request.need):
            self._consider(group, job, request.need)
        return True

    def _place(
        self, request: GroupRequest, allowed: tuple[int, ...] | None, upper_s: float
    ) -> tuple[str, ...] | WaitReason:
        """Returns the GPUs for a request, or why it waits. Larger ones of its kind are then refused too."""
        answer = self._gpus.place(request.need, allowed, upper_s)
        if isinstance(answer, WaitReason):
            in_time = self._gpus.ends_in_time(upper_s)
            self._refused[in_time][request.kind] = request.size
            if not in_time and isinstance(self._gpus.place(request.need, allowed, 0.0), WaitReason):
                self._refused[True][request.kind] = request.size
        return answer

    def _place_elsewhere(
        self, job: QueuedJob, need: Need, allowed: tuple[int, ...] | None, upper_s: float
    ) -> tuple[str, ...] | WaitReason:
        """Returns the GPUs for a job on which it has not failed, or why it waits."""
        judged = self._gpus.judged(need, upper_s=upper_s)
        return place(need, allowed, without_failed_gpus(judged, job, need, allowed, self._facts))

    def _start(
        self, group: PendingGroup, job: QueuedJob, need: Need, gpus: tuple[str, ...], upper_s: float
    ) -> None:
        start = self._gpus.start(job.job_id, gpus, need, upper_s)
        self._actions.append(replace(start, waiting_since=job.waiting_since))
        self._limits.take(group.resources)
        self._plans.clear()
        if group.has_more and job is group.jobs[-1]:
            self._is_over = True  # the group's next job, which this round has not read, may precede the rest

    def _explain(
        self, n: int, group: PendingGroup, job: QueuedJob, need: Need, known: WaitReason | None
    ) -> None:
        """Notes why the jobs of a group wait, if it is one of the first; of the others, which never fit."""
        if len(self._reasons) < MAX_EXPLAINED:
            reason = known or self._gpus.place(need, group.resources.allowed, self._upper_s(job))
            if isinstance(reason, WaitReason):
                self._reasons[n] = reason
            return
        is_new = group.reason is None
        if is_new or (group.reason is not None and group.reason.is_infeasible):
            if self._examinations_left[is_new] <= 0:
                return
            self._examinations_left[is_new] -= 1
            reason = known or self._gpus.place(need, group.resources.allowed)
            if isinstance(reason, WaitReason) and reason.is_infeasible:
                self._reasons[n] = reason
                return
        self._reasons[n] = _NOT_TRIED

    def _upper_s(self, job: QueuedJob) -> float:
        """Returns the seconds within which a job will have ended; infinite if unknown or of no interest."""
        if not self._gpus.has_queue_reservation or self._estimates_left <= 0:
            return math.inf
        self._estimates_left -= 1
        return self._facts.run_times.estimate(job.run_time).upper_s

    def _may_try_preemption(self, n: int, group: PendingGroup, job: QueuedJob) -> bool:
        return (
            not self._has_preempted
            and len(self._not_helped) < _MAX_PREEMPTING
            and (n, job.priority) not in self._not_helped
            and may_preempt(job.priority, group.resources, self._facts.settings)
        )

    def _preempt(self, n: int, group: PendingGroup, job: QueuedJob, need: Need) -> bool:
        """Preempts other jobs for a job that does not fit, if it may do so and if that helps."""
        if not self._may_try_preemption(n, group, job):
            return False
        facts, gpus = self._facts, self._gpus
        usable = gpus.preemptible(need, self._upper_s(job) + facts.settings.preempt_grace_s)
        found = find_preemption(job, need, group.resources.allowed, facts, gpus.leaving, usable)
        if isinstance(found, NoPreemption):
            self._not_helped.add((n, job.priority))
            return False
        gpus.reserve(job.job_id, found.gpus, need)
        self._limits.take(group.resources)
        self._actions += preempt(job.job_id, found, facts)
        self._has_preempted = True
        self._plans.clear()
        return True

    def _consider(self, group: PendingGroup, job: QueuedJob, need: Need) -> None:
        """Reserves GPUs for a job that does not fit, if it has been overtaken too often."""
        facts, stored, settings = self._facts, self._facts.queue_reservation, self._facts.settings
        if not self._may_get_reservation(job, job.submitted_at):
            return
        if stored is not None and stored.job.job_id == job.job_id:
            return  # it keeps its reservation, in the next step of the walk
        if group.reason is not None and group.reason.kind is WaitKind.GROUP_FULL:
            return  # it begins to wait for GPUs only now
        since = waiting_since(job, group.resources, need, facts)
        overtakes = facts.overtakes.count(job.place, job.submitted_at, since)
        if overtakes < settings.aging:
            return
        answer = self._gpus.place(need, group.resources.allowed)
        if isinstance(answer, WaitReason) and answer.is_infeasible:
            return
        planned = self._planned(need, group.resources.allowed)
        waited_s = need.count * (facts.now.wall - since)
        if planned is not None and not may_begin(
            planned.cost_s, self._budget_left_s, waited_s, settings.idle_budget
        ):
            return
        if self.has_started:
            self._is_over = True  # the next round knows when the jobs that this round starts will end
        elif planned is not None:
            begun = QueueReservation(job, group.resources, planned.gpus, 0.0, overtakes)
            self._reserve(begun, need, planned)

    def _keep(self, stored: QueueReservation) -> None:
        """Keeps the stored reservation, unless its job has got GPUs or an earlier one takes over."""
        resources, job_id = stored.resources, stored.job.job_id
        is_served = any(
            isinstance(one, (act.Start, act.Reserve)) and one.job_id == job_id for one in self._actions
        )
        if is_served or not self._may_reserve or self._limits.refusal(resources) is not None:
            return
        if self.has_started:
            self._is_over = True
            return
        need = need_of(resources, self._facts)
        planned = self._plan(need, resources.allowed)
        if planned is not None:
            self._reserve(stored, need, planned)

    def _reserve(self, wanted: QueueReservation, need: Need, planned: PlannedReservation) -> None:
        start_at = math.ceil((self._facts.now.wall + planned.start_in_s) / _START_STEP_S) * _START_STEP_S
        self._limits.take(wanted.resources)
        self._reservation = replace(wanted, gpus=planned.gpus, start_at=start_at)
        self._gpus.reserve_in_order(self._reservation, need, planned)
        self._may_reserve = False

    def _planned(self, need: Need, allowed: tuple[int, ...] | None) -> PlannedReservation | None:
        if (need, allowed) not in self._plans:
            if self._plans_left <= 0:
                return None
            self._plans_left -= 1
            self._plans[need, allowed] = self._plan(need, allowed)
        return self._plans[need, allowed]

    def _plan(self, need: Need, allowed: tuple[int, ...] | None) -> PlannedReservation | None:
        if self._ends is None:
            self._ends = expected_ends(self._gpus.facts)
        return plan_reservation(need, allowed, self._gpus.ledgers(), self._ends)

    def _changed_reservation(self) -> list[act.Action]:
        # Only what is stored counts: the job may have been read at another moment than the reservation.
        stored, wanted = map(_to_store, (self._facts.queue_reservation, self._reservation))
        return [] if wanted == stored else [wanted]


def _to_store(reservation: QueueReservation | None) -> act.SetQueueReservation:
    if reservation is None:
        return act.SetQueueReservation(None)
    one = reservation
    return act.SetQueueReservation(one.job.job_id, one.gpus, one.start_at, one.overtakes)


def budget_left_s(facts: Facts) -> float:
    """Returns for how many GPU-seconds reserved GPUs may still be idle; infinite if that is not counted.

    If GPUs are reserved already, an earlier job may take over although the budget is exceeded.
    """
    if facts.gpu_time is None:
        return math.inf
    left_s = facts.gpu_time.budget_left_s(facts.settings.idle_budget)
    return left_s if facts.queue_reservation is None else max(0.0, left_s)


def waiting_since(job: QueuedJob, resources: ResourceSpec, need: Need, facts: Facts) -> float:
    """Returns since when a job could have run but for other jobs, in wall seconds; infinite if it cannot.

    That is since it was queued or its last parent finished, and since one of the GPUs that it may use is
    managed, not paused, without a fault and not suspect: while all of them are paused, nothing can overtake
    it there. A pause of some of them changes nothing about earlier overtakes.
    """
    usable = [
        gpu.usable_since or 0.0
        for gpu in allowed_gpus(resources, facts)
        if gpu.is_in_service and gpu.suspicion is None
    ]
    if len(usable) < need.count:
        return math.inf
    return max(job.waiting_since, min(usable))


def start_wait_s(facts: Facts) -> float:
    """Returns the seconds until `--start-interval` allows the next start; 0 if it may take place now."""
    age_s = facts.now.wall - facts.overtakes.starts[-1].started_at if facts.overtakes.starts else -1.0
    # If the clock was set back, nothing is known about the time of the last start.
    return max(0.0, facts.settings.start_interval_s - age_s) if age_s >= 0 else 0.0


def with_start_interval(actions: list[act.Action], facts: Facts) -> list[act.Action]:
    """Returns the actions of `place_jobs` with the starts that `--start-interval` allows: at most the first.

    Forecasts do not count the interval, so `place_jobs` itself does not know it.
    """
    starts = [one for one in actions if isinstance(one, act.Start) and one.gpus]
    if not starts or not facts.settings.start_interval_s:
        return actions
    wait_s = start_wait_s(facts)
    held = {one.job_id for one in (starts if wait_s else starts[1:])}
    kept = [one for one in actions if not (isinstance(one, act.Start) and one.job_id in held)]
    if not wait_s:
        return kept  # the next round, which follows at once, says why the other jobs wait
    why = WaitReason(WaitKind.START_INTERVAL, f"{facts.settings.start_interval_s:g}")
    groups = {
        group.resources.key(): group
        for group in facts.pending_groups
        if not held.isdisjoint(job.job_id for job in group.jobs)
    }
    kept = [one for one in kept if not (isinstance(one, act.SetWaitReason) and one.spec_key in groups)]
    return kept + _wait_reasons((group, why) for group in groups.values())


def _try_suspect(
    facts: Facts, groups: list[PendingGroup], gpus: RoundAllocations, limits: GroupLimits
) -> list[act.Action]:
    """Starts a job with tries left, which found no other GPU, on a suspect GPU that is due for a trial."""
    for gpu in (one for one in facts.gpus if is_due(one, facts)):
        ledger = ledger_of(replace(gpu, suspicion=None), facts.attempts, facts.settings)
        for group in groups[:_MAX_TRYING]:
            need = need_of(group.resources, facts)
            answer = place(need, group.resources.allowed, [ledger])
            if isinstance(answer, WaitReason) or limits.refusal(group.resources) is not None:
                continue
            for job in group.jobs:
                if job.has_tries_left(facts.settings):
                    return [gpus.start(job.job_id, answer, need)]
    return []


def _place_reserved_jobs(facts: Facts, gpus: RoundAllocations, limits: GroupLimits) -> list[act.Action]:
    """Starts the jobs that fit on their reserved GPUs, and keeps these GPUs for the other reserved jobs.

    A job that cannot start although its victims have left, and all other attempts that were leaving, loses
    its reservation. So does one whose group is full.
    """
    actions: list[act.Action] = []
    # All of them are kept before the first job is placed, so that none takes what is reserved for another.
    needs = keep_reserved_gpus(facts, gpus)
    for reserved in sorted(facts.reserved_jobs, key=lambda one: queue_key(one.job)):
        job_id = reserved.job.job_id
        answer = gpus.place_reserved(job_id, needs[job_id], reserved.resources.allowed)
        if limits.refusal(reserved.resources) is None:
            if reserved.may_start and not isinstance(answer, WaitReason):
                actions.append(gpus.start(job_id, answer, needs[job_id]))
                limits.take(reserved.resources)
                continue
            if _is_awaited(reserved, needs[job_id], facts, gpus):
                limits.take(reserved.resources)
                continue
        gpus.release(job_id)
        actions.append(act.DropReservation(job_id))
    return actions


def keep_reserved_gpus(facts: Facts, gpus: RoundAllocations) -> dict[int, Need]:
    """Keeps the GPUs that are reserved, and returns the need of each job for which they are, by its id."""
    needs = {one.job.job_id: need_of(one.resources, facts) for one in facts.reserved_jobs}
    for reserved in facts.reserved_jobs:
        gpus.reserve(reserved.job.job_id, reserved.gpus, needs[reserved.job.job_id])
    return needs


def _is_awaited(reserved: ReservedJob, need: Need, facts: Facts, gpus: RoundAllocations) -> bool:
    """Returns whether attempts on which a reservation counts have not left yet."""
    job_id = reserved.job.job_id
    has_victims = any(one.preempted_for == job_id and one.id in gpus.leaving for one in facts.attempts)
    return has_victims or (reserved.may_start and gpus.fits_later(job_id, need, reserved.resources.allowed))
