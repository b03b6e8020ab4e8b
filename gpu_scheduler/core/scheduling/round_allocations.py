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
from gpu_scheduler.core.model.wait_reason import GpuObstacle, ObstacleKind, WaitReason
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import Vacancy, availability, unattributed_memory
from gpu_scheduler.core.scheduling.placement import GpuAvailability, obstacle_kind, place, with_allocation
from gpu_scheduler.core.scheduling.queue_reservation import PlannedReservation


class _Given(Struct, frozen=True):
    """A part of a GPU that this round has given to a job, which will have ended within upper_s seconds."""

    need: Need
    upper_s: float


class _QueueReservation(Struct, frozen=True):
    """The reservation by queue order; see `RoundAllocations.reserve_in_order`."""

    job_id: int
    need: Need
    planned: PlannedReservation
    start_at: float
    overtakes: int


class RoundAllocations:
    """The GPUs, the parts of them that this round has given to jobs, and those that are reserved for jobs.

    leaving: the ids of the attempts that free their GPUs soon.
    """

    def __init__(self, facts: Facts, leaving: Collection[int]) -> None:
        facts = replace(facts, attempts=(*facts.attempts, *unwatched_attempts(facts)))
        self._facts = facts
        self.leaving = leaving
        self._gpus = {gpu.uuid: gpu for gpu in facts.gpus}
        self._views = {gpu.uuid: availability(gpu, facts) for gpu in facts.gpus}
        self._given: dict[str, list[_Given]] = {gpu.uuid: [] for gpu in facts.gpus}
        self._reserved: dict[str, dict[int, Need]] = {gpu.uuid: {} for gpu in facts.gpus}
        self._vacancies: dict[tuple[str, int | None], Vacancy] = {}
        self._queue: _QueueReservation | None = None
        self._queue_vacancies: dict[str, Vacancy] = {}
        self._beside: dict[str, dict[Need, bool]] = {}

    @property
    def facts(self) -> Facts:
        """The facts, with an attempt for each adopted process that no runner watches."""
        return self._facts

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
        return place(need, allowed, self.views(need, upper_s=upper_s), self._facts.settings)

    def views(
        self, need: Need, job_id: int | None = None, upper_s: float = math.inf
    ) -> list[GpuAvailability]:
        """Returns each GPU as it is judged for a job with this need, and without its own reservation."""
        return [
            self._beside_queue(uuid, self._view(uuid, need, job_id), need, upper_s) for uuid in self._gpus
        ]

    def place_reserved(
        self, job_id: int, need: Need, allowed: tuple[int, ...] | None
    ) -> tuple[str, ...] | WaitReason:
        """Returns the UUIDs of the GPUs for a job, of those that are reserved for it, or why it waits."""
        views = [self._view(uuid, need, job_id) for uuid in self._reserved_for(job_id)]
        return place(need, allowed, views, self._facts.settings)

    def fits_later(self, job_id: int, need: Need, allowed: tuple[int, ...] | None) -> bool:
        """Returns whether a job fits on the GPUs reserved for it once the leaving attempts have left."""
        views = [self._vacancy(uuid, job_id).without(self.leaving) for uuid in self._reserved_for(job_id)]
        return isinstance(place(need, allowed, views, self._facts.settings), tuple)

    def _reserved_for(self, job_id: int) -> list[str]:
        return [uuid for uuid, jobs in self._reserved.items() if job_id in jobs]

    def _view(self, uuid: str, need: Need, job_id: int | None = None) -> GpuAvailability:
        """Returns a GPU as it is now or, if only that keeps this need off it, as it is later."""
        others = tuple(other for other in self._reserved[uuid] if other != job_id)
        if not others:
            return self._views[uuid]
        vacancy, limits = self._vacancy(uuid, job_id), self._facts.settings
        if vacancy.accepts(need, self.leaving):
            return self._views[uuid]
        later = replace(vacancy.without(self.leaving), reserved_for=others)
        if obstacle_kind(later, need, limits) is not None:
            return later
        kept = GpuObstacle(later.index, ObstacleKind.RESERVED, job_id=others[0])
        return replace(later, unavailable=kept)

    def _beside_queue(self, uuid: str, view: GpuAvailability, need: Need, upper_s: float) -> GpuAvailability:
        """Returns this view, or a closed one if only the reservation by queue order keeps the job off."""
        queue = self._queue
        if queue is None or obstacle_kind(view, need, self._facts.settings) is not None:
            return view
        if self._leaves_room_for_queue(uuid, need, upper_s):
            return view
        closed = GpuObstacle(
            view.index, ObstacleKind.RESERVED, job_id=queue.job_id, reserved_from=queue.start_at,
            overtakes=queue.overtakes,
        )  # fmt: skip
        return replace(view, unavailable=closed)

    def _leaves_room_for_queue(self, uuid: str, need: Need, upper_s: float) -> bool:
        """Returns whether a job with this need leaves a GPU to the one for which queue order reserves it."""
        queue = self._queue
        if queue is None or uuid not in queue.planned.gpus or upper_s <= queue.planned.start_in_s:
            return True
        beside = self._beside.setdefault(uuid, {})
        if need not in beside:
            leaving = {*queue.planned.leaving, *self.leaving}
            beside[need] = self._queue_vacancy(uuid, queue).accepts(need, leaving)
        return beside[need]

    def _queue_vacancy(self, uuid: str, queue: _QueueReservation) -> Vacancy:
        """Returns the vacancy of a GPU when the job starts for which queue order reserves it."""
        if uuid not in self._queue_vacancies:
            staying = [one.need for one in self._given[uuid] if one.upper_s > queue.planned.start_in_s]
            reserved = [*self._reserved[uuid].values(), queue.need]
            self._queue_vacancies[uuid] = Vacancy(self._gpus[uuid], self._facts, staying, reserved)
        return self._queue_vacancies[uuid]

    def _vacancy(self, uuid: str, job_id: int | None = None) -> Vacancy:
        """Returns the vacancy of a GPU, less what was given away and what is reserved for other jobs."""
        if (uuid, job_id) not in self._vacancies:
            others = [need for other, need in self._reserved[uuid].items() if other != job_id]
            given = [one.need for one in self._given[uuid]]
            vacancy = Vacancy(self._gpus[uuid], self._facts, given, others)
            self._vacancies[uuid, job_id] = vacancy
        return self._vacancies[uuid, job_id]

    def vacancies(self) -> list[Vacancy]:
        """Returns the vacancy of each GPU, less what was given away and what is reserved."""
        return [self._vacancy(uuid) for uuid in self._gpus]

    def preemptible(self, need: Need, upper_s: float) -> list[Vacancy]:
        """Returns the vacancy of each GPU on which a job with this need may preempt others.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        return [
            self._vacancy(uuid) for uuid in self._gpus if self._leaves_room_for_queue(uuid, need, upper_s)
        ]

    def start(self, job_id: int, uuids: tuple[str, ...], need: Need, upper_s: float = math.inf) -> Start:
        """Gives these GPUs to a job and returns its start. Its reservation by a preemption ends.

        upper_s: the seconds within which the job will have ended; infinite if unknown.
        """
        self.release(job_id)
        limits = self._facts.settings
        for uuid in uuids:
            self._views[uuid] = with_allocation(self._views[uuid], need, limits)
            self._given[uuid].append(_Given(need, upper_s))
            self._queue_vacancies.pop(uuid, None)
            self._beside.pop(uuid, None)
        self._vacancies.clear()
        baseline = tuple(
            (uuid, unattributed_memory(gpu, self._facts.attempts, limits) or 0)
            for uuid, gpu in self._gpus.items()
            if uuid in uuids
        )
        return Start(job_id, uuids, need.share, baseline, need.vram, need.whole, need.learned, need.assumed)

    def reserve(self, job_id: int, uuids: Sequence[str], need: Need) -> None:
        """Keeps each of these GPUs, as far as it is managed, for a job with this need."""
        for uuid in self._gpus.keys() & set(uuids):
            self._reserved[uuid][job_id] = need
        self._vacancies.clear()
        self._queue_vacancies.clear()
        self._beside.clear()

    def reserve_in_order(
        self, job_id: int, need: Need, planned: PlannedReservation, start_at: float, overtakes: int
    ) -> None:
        """Reserves GPUs by queue order, from now on, for a job that waits for them.

        start_at, overtakes: the values that the obstacles of other jobs show.
        """
        self._queue = _QueueReservation(job_id, need, planned, start_at, overtakes)
        self._queue_vacancies.clear()
        self._beside.clear()

    def release(self, job_id: int) -> None:
        """Ends the reservation of a job, if it has one."""
        for jobs in self._reserved.values():
            jobs.pop(job_id, None)
        self._vacancies.clear()
