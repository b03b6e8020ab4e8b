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
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import ledger_of, unattributed_memory
from gpu_scheduler.core.scheduling.placement import Ledger, place
from gpu_scheduler.core.scheduling.queue_reservation import PlannedReservation


class _QueueReservation(Struct, frozen=True):
    """The reservation by queue order; see `RoundAllocations.reserve_in_order`."""

    job_id: int
    need: Need
    planned: PlannedReservation
    start_at: float
    overtakes: int


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
            ledger.index, ObstacleKind.RESERVED, job_id=queue.job_id, reserved_from=queue.start_at,
            overtakes=queue.overtakes,
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
            for job_id, need in (*self._reserved[uuid].items(), (queue.job_id, queue.need)):
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

    def reserve_in_order(
        self, job_id: int, need: Need, planned: PlannedReservation, start_at: float, overtakes: int
    ) -> None:
        """Reserves GPUs by queue order, from now on, for a job that waits for them.

        start_at, overtakes: the values that the obstacles of other jobs show.
        """
        self._queue = _QueueReservation(job_id, need, planned, start_at, overtakes)
        self._forget()

    def release(self, job_id: int) -> None:
        """Ends the reservation of a job, if it has one."""
        for jobs in self._reserved.values():
            jobs.pop(job_id, None)
        self._forget()

    def _forget(self) -> None:
        self._later_ledgers.clear()
        self._queue_ledgers.clear()
