"""Keeps account of the GPUs during the placement of one round: each start leaves less for the next job.

A reservation counts on attempts that will have left, so it takes up nothing as long as they are there. A GPU
therefore accepts a job if it does so now, without the reservations of other jobs, and if it also does so
later, once those attempts have left and the jobs with reservations have started. Each of these jobs must fit
beside it. There are two kinds of reservation:

- for a job that preempts others: the attempts that count as leaving are ending now;
- by queue order: those attempts are expected to have ended when the job starts, and a job that will itself
  have ended by then is accepted, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, WaitReason
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.core.scheduling.actions import Action, RecordGpuTime, Start
from gpu_scheduler.core.scheduling.attempt_end import retry_wait_s
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob, QueueReservation
from gpu_scheduler.core.scheduling.gpu_use import ledger_of, unattributed_memory
from gpu_scheduler.core.scheduling.history import key_of
from gpu_scheduler.core.scheduling.placement import Ledger, allocated_share, place
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s, unwatched_attempts


class _QueueReservation(Struct, frozen=True):
    """The reservation by queue order; see `RoundAllocations.reserve_in_order`."""

    shown: QueueReservation
    need: Need
    planned: PlannedReservation


class RoundAllocations:
    """The GPUs, the parts of them that this round has given to jobs, and those that are reserved for jobs.

    leaving: the ids of the attempts that free their GPUs soon. facts: those of the round, with an attempt for
    each adopted process that no runner watches.
    """

    def __init__(self, facts: Facts, leaving: Collection[int]) -> None:
        self.facts = facts = replace(facts, attempts=(*facts.attempts, *unwatched_attempts(facts)))
        self.leaving = leaving
        self._before = {gpu.uuid: ledger_of(gpu, facts.attempts, facts.settings) for gpu in facts.gpus}
        self._now = dict(self._before)
        #: The needs of the jobs to which this round gives each GPU, and the seconds within which they end.
        self._given: dict[str, list[tuple[Need, float]]] = {uuid: [] for uuid in self._before}
        self._reserved: dict[str, dict[int, Need]] = {uuid: {} for uuid in self._before}
        self._queue: _QueueReservation | None = None
        self._later_ledgers: dict[tuple[str, int | None], Ledger] = {}
        self._queue_ledgers: dict[str, Ledger] = {}

    @property
    def has_queue_reservation(self) -> bool:
        """True if GPUs are reserved by queue order."""
        return self._queue is not None

    def ends_in_time(self, upper_s: float) -> bool:
        """Returns whether a job will have ended before reserved GPUs are needed, if any are by queue order.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        return self._queue is None or upper_s <= self._queue.planned.start_in_s

    def place(
        self, need: Need, allowed: tuple[int, ...] | None, upper_s: float = math.inf
    ) -> tuple[str, ...] | WaitReason:
        """Returns the UUIDs of the GPUs for a job without a reservation, or why it waits.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        return place(need, allowed, self.judged(need, upper_s=upper_s))

    def judged(self, need: Need, job_id: int | None = None, upper_s: float = math.inf) -> list[Ledger]:
        """Returns each GPU as it is judged for a job with this need, and without its own reservation."""
        return [
            self._beside_queue(uuid, self._now_or_later(uuid, need, job_id), need, upper_s)
            for uuid in self._now
        ]

    def place_reserved(
        self, job_id: int, need: Need, allowed: tuple[int, ...] | None
    ) -> tuple[str, ...] | WaitReason:
        """Returns the UUIDs of the GPUs for a job, of those that are reserved for it, or why it waits."""
        return place(
            need, allowed, [self._now_or_later(uuid, need, job_id) for uuid in self._reserved_for(job_id)]
        )

    def fits_later(self, job_id: int, need: Need, allowed: tuple[int, ...] | None) -> bool:
        """Returns whether a job fits on the GPUs reserved for it once the leaving attempts have left."""
        gpus = [replace(self._later(uuid, job_id), reserved=()) for uuid in self._reserved_for(job_id)]
        return isinstance(place(need, allowed, gpus), tuple)

    def _reserved_for(self, job_id: int) -> list[str]:
        return [uuid for uuid, jobs in self._reserved.items() if job_id in jobs]

    def _now_or_later(self, uuid: str, need: Need, job_id: int | None = None) -> Ledger:
        """Returns a GPU as it is now or, if only that keeps this need off it, as it is later."""
        if not self._reserved[uuid].keys() - {job_id}:
            return self._now[uuid]
        later = self._later(uuid, job_id)
        return self._now[uuid] if later.accepts(need) else later

    def _beside_queue(self, uuid: str, ledger: Ledger, need: Need, upper_s: float) -> Ledger:
        """Returns this ledger, or a closed one if only the reservation by queue order keeps the job off."""
        queue = self._queue
        if queue is None or self._leaves_room_for_queue(uuid, need, upper_s) or not ledger.accepts(need):
            return ledger
        closed = GpuObstacle(
            ledger.index, ObstacleKind.RESERVED, job_id=queue.shown.job.job_id,
            reserved_from=queue.shown.start_at, overtakes=queue.shown.overtakes,
        )  # fmt: skip
        return replace(ledger, closed=closed)

    def _leaves_room_for_queue(self, uuid: str, need: Need, upper_s: float) -> bool:
        """Returns whether a job with this need leaves a GPU to the one for which queue order reserves it."""
        queue = self._queue
        if queue is None or uuid not in queue.planned.gpus or upper_s <= queue.planned.start_in_s:
            return True
        return self._queue_ledger(uuid, queue).accepts(need)

    def _queue_ledger(self, uuid: str, queue: _QueueReservation) -> Ledger:
        """Returns the ledger of a GPU when the job starts for which queue order reserves it."""
        if uuid not in self._queue_ledgers:
            ledger = self._before[uuid].minus({*queue.planned.leaving, *self.leaving})
            for need, upper_s in self._given[uuid]:
                if upper_s > queue.planned.start_in_s:
                    ledger = ledger.plus(need)
            for job_id, need in (*self._reserved[uuid].items(), (queue.shown.job.job_id, queue.need)):
                ledger = ledger.plus(need, job_id)
            self._queue_ledgers[uuid] = ledger
        return self._queue_ledgers[uuid]

    def _later(self, uuid: str, job_id: int | None) -> Ledger:
        """Returns the ledger of a GPU once the leaving attempts have left it; see `_with_reserved`."""
        if (uuid, job_id) not in self._later_ledgers:
            self._later_ledgers[uuid, job_id] = self._with_reserved(uuid, job_id).minus(self.leaving)
        return self._later_ledgers[uuid, job_id]

    def _with_reserved(self, uuid: str, job_id: int | None = None) -> Ledger:
        """Returns the ledger of a GPU with what is reserved for jobs other than this one."""
        ledger = self._now[uuid]
        for other, need in self._reserved[uuid].items():
            if other != job_id:
                ledger = ledger.plus(need, other)
        return ledger

    def ledgers(self) -> list[Ledger]:
        """Returns the ledger of each GPU with what was given away and what is reserved."""
        return [self._with_reserved(uuid) for uuid in self._now]

    def preemptible(self, need: Need, upper_s: float) -> list[Ledger]:
        """Returns the ledger of each GPU on which a job with this need may preempt others.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        return [
            self._with_reserved(uuid)
            for uuid in self._now
            if self._leaves_room_for_queue(uuid, need, upper_s)
        ]

    def start(self, job_id: int, uuids: tuple[str, ...], need: Need, upper_s: float = math.inf) -> Start:
        """Gives these GPUs to a job and returns its start. Its reservation by a preemption ends.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        self.release(job_id)
        for uuid in uuids:
            self._now[uuid] = self._now[uuid].plus(need)
            self._given[uuid].append((need, upper_s))
        facts = self.facts
        baseline = tuple(
            (gpu.uuid, unattributed_memory(gpu, facts.attempts, facts.settings) or 0)
            for gpu in facts.gpus
            if gpu.uuid in uuids
        )
        return Start(job_id, uuids, need.share, baseline, need.vram, need.whole, need.learned, need.assumed)

    def reserve(self, job_id: int, uuids: Sequence[str], need: Need) -> None:
        """Keeps each of these GPUs, as far as it is managed, for a job with this need."""
        for uuid in self._now.keys() & set(uuids):
            self._reserved[uuid][job_id] = need
        self._forget()

    def reserve_in_order(self, shown: QueueReservation, need: Need, planned: PlannedReservation) -> None:
        """Reserves the planned GPUs by queue order, from now on. shown: as other jobs' obstacles show it."""
        self._queue = _QueueReservation(shown, need, planned)
        self._forget()

    def release(self, job_id: int) -> None:
        """Ends the reservation of a job, if it has one."""
        for jobs in self._reserved.values():
            jobs.pop(job_id, None)
        self._forget()

    def _forget(self) -> None:
        self._later_ledgers.clear()
        self._queue_ledgers.clear()


# Finds the GPUs to reserve for an overtaken job, when they will be free for it, and what that costs.
#
# The end of each attempt is estimated. On each GPU, attempts are taken off both accounts in the order of
# their ends until the job fits. Nothing is ended for the job. Foreign memory stays, and a GPU that is paused,
# lost or quarantined is never free. Until they are free, these GPUs are idle as far as nothing is allocated
# on them.


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
    total, spike = gpu.last.total_mib, facts.settings.spike_buffer
    holders = [one for one in facts.attempts if gpu.uuid in one.gpus and one.state.holds_gpus]
    return sum(allocated_share(one.allocation_on(gpu.uuid), total, spike) for one in holders)


# Keeps a retried job off the GPUs on which it has failed.


#: Seconds for which a retry then waits for a GPU other than those on which the job has failed.
ELSEWHERE_S = 300.0


def without_failed_gpus(
    gpus: Sequence[Ledger], job: QueuedJob, need: Need, allowed: tuple[int, ...] | None, facts: Facts
) -> list[Ledger]:
    """Returns these GPUs; if enough others could hold a retried job, those on which it failed are closed.

    They accept it again once it has waited long enough.
    """
    until = job.waiting_since + retry_wait_s(job.fail_retries_used - 1) + ELSEWHERE_S
    if not job.failed_on or not job.waiting_since <= facts.now.wall < until:
        return list(gpus)
    usable = {gpu.uuid for gpu in facts.gpus if gpu.is_in_service and gpu.suspicion is None}
    others = [gpu for gpu in gpus if gpu.uuid in usable.difference(job.failed_on)]
    answer = place(need, allowed, others)
    if isinstance(answer, WaitReason) and answer.is_infeasible:
        return list(gpus)
    return [
        replace(gpu, closed=GpuObstacle(gpu.index, ObstacleKind.FAILED_HERE, job_id=job.job_id))
        if gpu.uuid in job.failed_on and gpu.closed is None
        else gpu
        for gpu in gpus
    ]
