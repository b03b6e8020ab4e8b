"""Keeps account of the GPUs during the placement of one round: each start leaves less for the next job.

A reservation counts on attempts that are leaving, so it takes up nothing as long as they are there. A GPU
therefore accepts a job if it does so now, without the reservations of other jobs, and if it also does so
later, once the leaving attempts have left and those jobs have started. Each of those jobs must fit beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, obstacle_kind, with_allocation
from gpu_scheduler.core.scheduling.gpu_use import availability, unattributed_memory
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.vacancy import Vacancy


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
        self._given: dict[str, list[Need]] = {gpu.uuid: [] for gpu in facts.gpus}
        self._reserved: dict[str, dict[int, Need]] = {gpu.uuid: {} for gpu in facts.gpus}
        self._vacancies: dict[tuple[str, int | None], Vacancy] = {}

    def place(self, need: Need, allowed: tuple[int, ...] | None) -> tuple[str, ...] | WaitReason:
        """Returns the UUIDs of the GPUs for a job without a reservation, or why it waits."""
        return place(need, allowed, self.views(need), self._facts.settings)

    def views(self, need: Need, job_id: int | None = None) -> list[GpuAvailability]:
        """Returns each GPU as it is judged for a job with this need, and without its own reservation."""
        return [self._view(uuid, need, job_id) for uuid in self._gpus]

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

    def _vacancy(self, uuid: str, job_id: int | None = None) -> Vacancy:
        """Returns the vacancy of a GPU, less what was given away and what is reserved for other jobs."""
        if (uuid, job_id) not in self._vacancies:
            others = [need for other, need in self._reserved[uuid].items() if other != job_id]
            vacancy = Vacancy(self._gpus[uuid], self._facts, self._given[uuid], others)
            self._vacancies[uuid, job_id] = vacancy
        return self._vacancies[uuid, job_id]

    def vacancies(self) -> list[Vacancy]:
        """Returns the vacancy of each GPU, less what was given away and what is reserved."""
        return [self._vacancy(uuid) for uuid in self._gpus]

    def start(self, job_id: int, uuids: tuple[str, ...], need: Need) -> Start:
        """Gives these GPUs to a job and returns its start. Any reservation of the job ends."""
        self.release(job_id)
        limits = self._facts.settings
        for uuid in uuids:
            self._views[uuid] = with_allocation(self._views[uuid], need, limits)
            self._given[uuid].append(need)
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

    def release(self, job_id: int) -> None:
        """Ends the reservation of a job, if it has one."""
        for jobs in self._reserved.values():
            jobs.pop(job_id, None)
        self._vacancies.clear()
