"""Walks the queue once, in order: starts the jobs that fit, and reserves GPUs for one that does not.

A job that does not fit is overtaken by later ones that do (backfill). Once it has been overtaken too often,
GPUs are reserved for it: the first such job gets the reservation, and only the jobs behind it must leave the
reserved GPUs free for it. The order of the queue never changes. The rule is in docs/design.md, Queue order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.units import WHOLE, Now
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Action, SetQueueReservation, SetWaitReason
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, headroom_mib
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import (
    GroupLimits,
    PendingQueue,
    Request,
    RequestIndex,
    RequestKind,
    allowed_gpus,
    need_of,
    queue_key,
)
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.preemption import NoPreemption, find_preemption, may_preempt, preempt
from gpu_scheduler.core.scheduling.queue_reservation import (
    ExpectedEnd,
    PlannedReservation,
    expected_ends,
    plan_reservation,
)
from gpu_scheduler.core.scheduling.retry import without_failed_gpus
from gpu_scheduler.core.scheduling.round_allocations import RoundAllocations
from gpu_scheduler.core.scheduling.settings import Limits, QueueOrder

# Finds the largest request of each kind that may fit now, so that larger ones are not asked for at all.
#
# A limit comes from the share and the memory left on each GPU. Where something else keeps a request off, such
# as a reservation or foreign use, a binary search among the sizes asks the placement itself. During a round,
# GPUs are only given away, so a limit that was found remains an upper limit.


#: The limit if no request fits, and if there is no limit.
_NONE, _ALL = -1, 1 << 62


class FitLimits:
    """The limits for the requests in an index on these GPUs."""

    def __init__(self, index: RequestIndex, gpus: RoundAllocations, limits: Limits) -> None:
        self._index = index
        self._gpus = gpus
        self._limits = limits
        self._refused: dict[tuple[RequestKind, bool], int] = {}
        self.gpus_changed()

    def gpus_changed(self) -> None:
        """Computes the limits again, because GPUs were given away."""
        self._free: dict[RequestKind, int] = {}
        self._seen_to_fit: dict[RequestKind, int] = {}
        self._views = [view for view in self._gpus.current() if _accepts_any(view)]
        self._largest = {
            True: max((headroom_mib(view, self._limits) or 0 for view in self._views), default=_NONE),
            False: max((WHOLE - view.allocated_share for view in self._views), default=_NONE),
        }

    def may_fit(self, request: Request, *, ends_in_time: bool = True) -> bool:
        """Returns whether a request may fit. ends_in_time: see `RoundAllocations.ends_in_time`."""
        return request.size <= self._limit(request.kind, ends_in_time)

    def may_fit_handles(self) -> Iterator[str]:
        """Yields the handles of the groups whose requests may fit."""
        for kind, sizes in self._index.sizes.items():
            if sizes[0][0] <= self._largest[kind.has_vram]:
                for _, handle in sizes[: self._number(kind)]:
                    yield handle

    def number(self) -> int:
        """Returns the number of groups whose requests may fit."""
        return sum(
            self._number(kind)
            for kind, sizes in self._index.sizes.items()
            if sizes[0][0] <= self._largest[kind.has_vram]
        )

    def refused(self, request: Request, *, ends_in_time: bool) -> None:
        """Lowers the limit, because the placement has refused a request."""
        if not ends_in_time and self._seen_to_fit.get(request.kind, _NONE) < request.size <= self._limit(
            request.kind, True
        ):
            if self._fits(request, request.size, True):
                self._seen_to_fit[request.kind] = request.size
            else:
                self.refused(request, ends_in_time=True)
        if not self.may_fit(request, ends_in_time=ends_in_time):
            return
        sizes = self._index.sizes[request.kind]
        smaller = range(bisect_left(sizes, (request.size,)))
        fit = bisect_left(smaller, True, key=lambda at: not self._fits(request, sizes[at][0], ends_in_time))
        self._refused[request.kind, ends_in_time] = sizes[fit - 1][0] if fit else _NONE

    def _fits(self, request: Request, size: int, ends_in_time: bool) -> bool:
        upper_s = 0.0 if ends_in_time else float("inf")
        answer = self._gpus.place(request.with_size(size), request.kind.allowed, upper_s)
        return not isinstance(answer, WaitReason)

    def _number(self, kind: RequestKind) -> int:
        return bisect_left(self._index.sizes[kind], (self._limit(kind, True) + 1,))

    def _limit(self, kind: RequestKind, ends_in_time: bool) -> int:
        limit = min(self._free_size(kind), self._refused.get((kind, True), _ALL))
        return limit if ends_in_time else min(limit, self._refused.get((kind, False), _ALL))

    def _free_size(self, kind: RequestKind) -> int:
        if kind not in self._free:
            found = [self._size_left(view, kind) for view in self._views if _is_usable(view, kind)]
            found.sort(reverse=True)
            self._free[kind] = found[kind.gpus - 1] if kind.gpus <= len(found) else _NONE
        return self._free[kind]

    def _size_left(self, view: GpuAvailability, kind: RequestKind) -> int:
        if not kind.has_vram:
            return WHOLE - view.allocated_share
        # The share that memory amounts to may exceed a GPU, and keeps off only requests for a share.
        if kind.share and view.allocated_share + kind.share > WHOLE:
            return _NONE
        headroom = headroom_mib(view, self._limits)
        return _NONE if headroom is None else headroom


def _accepts_any(view: GpuAvailability) -> bool:
    return view.unavailable is None and view.claims_problem is None and view.foreign_mib is not None


def _is_usable(view: GpuAvailability, kind: RequestKind) -> bool:
    is_allowed = kind.allowed is None or view.index in kind.allowed
    return is_allowed and not (view.occupied and (kind.alone or kind.exclusive))


#: The overtakes needed, as a multiple of `--aging`, if nothing is known about the end of an attempt on which
#: the reservation would depend.
UNKNOWN_END_FACTOR = 16
#: The expected start of a job is shown as a multiple of this number of seconds, so that it rarely changes.
_START_STEP_S = 300.0
#: Maximum number of different reservations that a round plans, besides that of the job in the store.
_MAX_PLANS = 16
#: Number of groups, the first of the queue, in which a round looks for aged jobs.
_MAX_AGING_GROUPS = 512
#: Maximum number of jobs for which a round estimates whether they end before reserved GPUs are needed.
_MAX_ESTIMATES = 512
#: Maximum number of groups, the first of the queue, for which a round looks for jobs to preempt.
_MAX_PREEMPTING = 128
#: Maximum number of groups that do not fit and whose wait reasons a round determines.
MAX_EXPLAINED = 128
#: Number of groups, the first of the queue, whose wait reasons every round determines.
_ALWAYS_EXPLAINED = 32
#: Seconds for which it is the turn of the same groups.
_TURN_S = 5.0


class QueueWalk:
    """One walk through the queue. has_started: whether this round has already started a job.

    It visits only the groups that may fit, those whose wait reasons are due, and those that may get the
    reservation. Each visit is one of these: (queue key of the job, handle of its group, index of the job).
    """

    def __init__(
        self, facts: Facts, gpus: RoundAllocations, group_limits: GroupLimits, *, has_started: bool
    ) -> None:
        self._facts = facts
        self._gpus = gpus
        self._group_limits = group_limits
        self._queue = PendingQueue.of(facts.pending_groups)
        self._index = self._queue.requests(facts)
        self._limits = FitLimits(self._index, gpus, facts.settings)
        self._actions: list[Action] = []
        self._reasons: dict[str, WaitReason] = {}
        self._full: set[str] = set()
        #: The groups from which no job may start, because too many jobs of the same name group run.
        self._passed_over: set[str] = set()
        self._has_started = has_started
        self._has_preempted = False
        self._is_over = False
        self._may_reserve = facts.settings.queue_order is QueueOrder.RESERVE
        self._explained = {*groups_to_explain(self._queue, facts.now), *self._preempting()}
        self._aging = frozenset(self._possibly_aged()) if self._may_reserve else frozenset()
        self._estimates_left = _MAX_ESTIMATES
        self._reservation = SetQueueReservation(None)
        self._plans: dict[tuple[Need, tuple[int, ...] | None], PlannedReservation | None] = {}
        self._ends: Mapping[int, ExpectedEnd] | None = None

    def place(self) -> list[Action]:
        """Returns the starts, at most one preemption, and the changes of the reservation and wait reasons."""
        always = {*self._explained, *self._aging}
        handles = always.union(self._limits.may_fit_handles())
        visits = [(self._queue.key(handle), handle, 0) for handle in handles]
        stored = self._facts.queue_reservation
        if stored is not None and stored.is_delayed:
            visits.append((queue_key(stored.job), "", 0))
        heapify(visits)
        while visits and not self._is_over:
            _, handle, at = heappop(visits)
            if stored is not None and not handle:
                self._keep(stored)
                continue
            group = self._queue.group(handle)
            has_started = self._visit(group.jobs[at], handle, group)
            if at + 1 < len(group.jobs) and self._is_of_interest(handle):
                heappush(visits, (queue_key(group.jobs[at + 1]), handle, at + 1))
            if has_started and len(visits) > 2 * (len(always) + self._limits.number()):
                handles = always.union(self._limits.may_fit_handles())
                visits = [visit for visit in visits if not visit[1] or visit[1] in handles]
                heapify(visits)
        if not self._is_over:
            self._actions += self._changed_reservation()
        return self._actions + wait_reasons(self._queue, self._reasons)

    def _preempting(self) -> Iterator[str]:
        """Yields the handles of the first groups that may preempt others."""
        handles = set(self._index.preempting)
        limit = self._facts.settings.preempt_at_priority
        if limit is not None:
            handles.update(islice(self._queue.up_to_priority(limit), _MAX_PREEMPTING))
        yield from nsmallest(_MAX_PREEMPTING, handles, key=self._queue.key)

    def _possibly_aged(self) -> Iterator[str]:
        """Yields the handles of the groups in which a job may be aged or has the reservation."""
        facts, stored = self._facts, self._facts.queue_reservation
        if stored is not None:
            yield from self._queue.holding(stored.job.job_id, stored.resources.key())
        for handle in self._queue.first(_MAX_AGING_GROUPS):
            group = self._queue.group(handle)
            if facts.overtakes.may_reach(group.jobs[0], group.submitted_at, facts.settings.aging):
                yield handle

    def _is_of_interest(self, handle: str) -> bool:
        """Returns whether the walk visits the next job of a group."""
        if handle in self._passed_over:
            return False
        if handle in self._aging and self._may_reserve:
            return True
        if handle in self._full:
            return False
        is_unexplained = handle in self._explained and handle not in self._reasons
        return is_unexplained or self._limits.may_fit(self._index.requests[handle])

    def _visit(self, job: QueuedJob, handle: str, group: PendingGroup) -> bool:
        """Starts a job if it fits; returns whether it did. Otherwise considers it for the reservation."""
        refusal = self._group_limits.refusal(group.resources)
        if refusal is not None:
            self._reasons.setdefault(handle, refusal)
            self._passed_over.add(handle)
            return False
        if handle not in self._full:
            request = self._index.requests[handle]
            upper_s = self._upper_s(job, handle)
            if upper_s is not None:
                allowed = group.resources.allowed
                answer = self._gpus.place(request.need, allowed, upper_s)
                if job.failed_on and not isinstance(answer, WaitReason):
                    views = self._gpus.views(request.need, upper_s=upper_s)
                    views = without_failed_gpus(views, job, request.need, allowed, self._facts)
                    answer = place(request.need, allowed, views, self._facts.settings)
                    if isinstance(answer, WaitReason):
                        self._reasons.setdefault(handle, answer)
                        return False  # the next job of the group may fit
                if not isinstance(answer, WaitReason):
                    self._start(job, group, request.need, answer, upper_s)
                    return True
                self._reasons.setdefault(handle, answer)
                self._limits.refused(request, ends_in_time=self._gpus.ends_in_time(upper_s))
            if not self._limits.may_fit(request):
                self._full.add(handle)
                if self._preempt(job, handle, group):
                    return False
        if self._may_reserve and handle in self._aging:
            self._consider(job, handle, group)
        return False

    def _start(
        self, job: QueuedJob, group: PendingGroup, need: Need, gpus: tuple[str, ...], upper_s: float
    ) -> None:
        start = self._gpus.start(job.job_id, gpus, need, upper_s)
        self._actions.append(replace(start, waiting_since=job.waiting_since))
        self._limits.gpus_changed()
        self._group_limits.take(group.resources)
        self._has_started = True
        if group.has_more and job is group.jobs[-1]:
            self._is_over = True  # the group's next job, which this round has not read, may precede the rest

    def _upper_s(self, job: QueuedJob, handle: str) -> float | None:
        """Returns the seconds within which a job will have ended; None if it certainly does not fit."""
        request = self._index.requests[handle]
        is_unexplained = handle in self._explained and handle not in self._reasons
        if not is_unexplained and not self._limits.may_fit(request):
            return None
        upper_s = self._estimate(job)
        in_time = self._gpus.ends_in_time(upper_s)
        return upper_s if is_unexplained or self._limits.may_fit(request, ends_in_time=in_time) else None

    def _estimate(self, job: QueuedJob) -> float:
        """Returns the seconds within which a job will have ended; infinite if unknown or of no interest."""
        if not self._gpus.has_queue_reservation or self._estimates_left <= 0:
            return math.inf
        self._estimates_left -= 1
        return self._facts.run_times.estimate(job.run_time).upper_s

    def _preempt(self, job: QueuedJob, handle: str, group: PendingGroup) -> bool:
        """Preempts other jobs for a job that does not fit, if it may do so and if that helps."""
        resources, reason = group.resources, self._reasons.get(handle)
        facts, gpus = self._facts, self._gpus
        may = may_preempt(job.priority, resources, facts.settings)
        if reason is None or self._has_preempted or reason.is_infeasible or not may:
            return False
        need = reason.need
        assert need is not None
        usable = gpus.preemptible(need, self._estimate(job) + facts.settings.preempt_grace_s)
        found = find_preemption(job, need, resources.allowed, facts, gpus.leaving, usable)
        if isinstance(found, NoPreemption):
            return False
        gpus.reserve(job.job_id, found.gpus, need)
        self._group_limits.take(resources)
        self._actions += preempt(job.job_id, found, facts)
        self._has_preempted = True
        self._plans.clear()
        return True

    def _consider(self, job: QueuedJob, handle: str, group: PendingGroup) -> None:
        """Reserves GPUs for a job that does not fit, if it has been overtaken too often.

        At most one job of the queue gets them. The job in the store keeps its reservation, until an earlier
        job gets one.
        """
        facts, stored = self._facts, self._facts.queue_reservation
        resources, need = group.resources, self._index.requests[handle].need
        is_stored = stored is not None and stored.job.job_id == job.job_id
        aging = facts.settings.aging
        # The first condition is cheap, and nearly always false.
        if not is_stored and not facts.overtakes.may_reach(job, job.submitted_at, aging):
            return
        if self._is_infeasible(handle, need, resources):
            return
        if group.reason is not None and group.reason.kind is WaitKind.GROUP_FULL:
            return  # it begins to wait for GPUs only now
        since = waiting_since(job, resources, need, facts)
        needed = self._overtakes_needed(need, resources.allowed, is_stored=is_stored)
        if needed is None or not (is_stored or facts.overtakes.reaches(job, since, needed)):
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
        overtakes = stored.overtakes if is_stored and stored else facts.overtakes.count(job, since)
        self._group_limits.take(resources)
        self._reserve(job, need, planned, overtakes)

    def _keep(self, stored: QueueReservation) -> None:
        """Keeps the reservation of a job that cannot start for a moment."""
        if self._has_started:
            self._is_over = True
        elif self._may_reserve and self._group_limits.refusal(stored.resources) is None:
            self._group_limits.take(stored.resources)
            need = need_of(stored.resources, self._facts)
            planned = self._planned(need, stored.resources.allowed, is_stored=True)
            if planned is not None:
                self._reserve(stored.job, need, planned, stored.overtakes)

    def _reserve(self, job: QueuedJob, need: Need, planned: PlannedReservation, overtakes: int) -> None:
        start_at = math.ceil((self._facts.now.wall + planned.start_in_s) / _START_STEP_S) * _START_STEP_S
        self._gpus.reserve_in_order(job.job_id, need, planned, start_at, overtakes)
        self._reservation = SetQueueReservation(job.job_id, planned.gpus, start_at, overtakes)
        self._may_reserve = False

    def _is_infeasible(self, handle: str, need: Need, resources: ResourceSpec) -> bool:
        reason = self._reasons.get(handle) or self._gpus.place(need, resources.allowed)
        return isinstance(reason, WaitReason) and reason.is_infeasible

    def _overtakes_needed(
        self, need: Need, allowed: tuple[int, ...] | None, *, is_stored: bool
    ) -> int | None:
        """Returns how often a job must have been overtaken; None if no GPUs can be reserved for it.

        After a start in this round, the reservation is planned in the next one, so the smaller number counts.
        """
        aging = self._facts.settings.aging
        if self._has_started:
            return aging
        planned = self._planned(need, allowed, is_stored=is_stored)
        if planned is None:
            return None
        return aging * UNKNOWN_END_FACTOR if planned.has_unknown_holder else aging

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

    That is since it was queued or its last parent finished, and since one of the GPUs that it may use is
    managed, not paused, without a fault and not suspect: while all of them are paused, nothing can overtake
    it there. A pause of some of them changes nothing about earlier overtakes.
    """
    usable = [
        gpu.usable_since
        for gpu in allowed_gpus(resources, facts)
        if gpu.is_in_service and gpu.suspicion is None
    ]
    if len(usable) < need.count:
        return math.inf
    return max(job.waiting_since, min(usable))


def groups_to_explain(queue: PendingQueue, now: Now) -> list[str]:
    """Returns the handles of the groups whose wait reasons a round determines: all of them, if they are few.

    Otherwise the first groups of the queue, then those without a reason, then the others in turn.
    """
    if len(queue) <= MAX_EXPLAINED:
        return list(queue.first(MAX_EXPLAINED))
    chosen = dict.fromkeys([*queue.first(_ALWAYS_EXPLAINED), *queue.without_reason(MAX_EXPLAINED)])
    found = list(chosen)[:MAX_EXPLAINED]
    left = MAX_EXPLAINED - len(found)
    start = int(now.boot // _TURN_S) * left % len(queue)
    return [*found, *queue.from_place(start, left)]


def wait_reasons(queue: PendingQueue, reasons: Mapping[str, WaitReason]) -> list[Action]:
    """Returns the changes of the wait reasons. reasons: by the handle of the group."""
    return [
        SetWaitReason(queue.group(handle).resources.key(), reason)
        for handle, reason in reasons.items()
        if reason != queue.group(handle).reason
    ]
