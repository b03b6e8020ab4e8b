"""Keeps account of the GPUs during the placement of one round: each start leaves less for the next job."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import Start
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_admission import with_allocation, with_reservation
from gpu_scheduler.core.scheduling.gpu_use import availability, unattributed_memory
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.vacancy import Vacancy


class RoundAllocations:
    """The GPUs, and the parts of them that this round has given to jobs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._gpus = {gpu.uuid: gpu for gpu in facts.gpus}
        self._views = {gpu.uuid: availability(gpu, facts) for gpu in facts.gpus}
        self._given: dict[str, list[Need]] = {gpu.uuid: [] for gpu in facts.gpus}
        self._vacancies: dict[str, Vacancy] = {}

    def place(
        self, need: Need, allowed: tuple[int, ...] | None, uuids: Collection[str] | None = None
    ) -> tuple[str, ...] | WaitReason:
        """Returns the UUIDs of the GPUs for a job, or why it waits. uuids: None for all managed GPUs."""
        views = [view for uuid, view in self._views.items() if uuids is None or uuid in uuids]
        return place(need, allowed, views, self._facts.settings)

    def start(self, job_id: int, uuids: tuple[str, ...], need: Need) -> Start:
        """Gives these GPUs to a job and returns its start."""
        limits = self._facts.settings
        for uuid in uuids:
            self._views[uuid] = with_allocation(self._views[uuid], need, limits)
            self._record(uuid, need)
        baseline = tuple(
            (uuid, unattributed_memory(gpu, self._facts.attempts, limits) or 0)
            for uuid, gpu in self._gpus.items()
            if uuid in uuids
        )
        return Start(job_id, uuids, need.share, baseline, need.vram, need.whole, need.learned, need.assumed)

    def reserve(self, job_id: int, uuids: Sequence[str], need: Need) -> None:
        """Keeps each of these GPUs, as far as it is managed, for a job with this need."""
        for uuid in uuids:
            if uuid in self._views:
                self._views[uuid] = with_reservation(self._views[uuid], job_id, need, self._facts.settings)
                self._record(uuid, need)

    def _record(self, uuid: str, need: Need) -> None:
        self._given[uuid].append(need)
        self._vacancies.pop(uuid, None)

    def vacancies(self) -> list[Vacancy]:
        """Returns the vacancy of each GPU, less what this round has given away."""
        for uuid, gpu in self._gpus.items():
            if uuid not in self._vacancies:
                self._vacancies[uuid] = Vacancy(gpu, self._facts, tuple(self._given[uuid]))
        return [self._vacancies[uuid] for uuid in self._gpus]
