"""Computes the availability of one GPU once some of the attempts on it have left it.

Foreign use counts as it is judged now, because it does not change when our attempts leave. With their
allocations, the memory that their processes use becomes free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.accounting import allocated_mib, allocated_share
from gpu_scheduler.core.scheduling.claim_size import claim_size, claimable_total
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, obstacle_kind, with_allocation
from gpu_scheduler.core.scheduling.gpu_use import (
    availability,
    foreign_commitment,
    listed_processes,
    unavailability,
)
from gpu_scheduler.core.scheduling.settings import Limits


@dataclass(frozen=True)
class Occupancy:
    """The part of one GPU that an attempt takes up. share: thousandths; the other values are in MiB.

    allocated_mib: the memory that the accounting allocates to it; used_mib: the memory that its processes
    use; claimed_mib: the memory that it claims.
    """

    share: int
    allocated_mib: int
    used_mib: int
    claimed_mib: int


class Vacancy:
    """One GPU and the attempts on it.

    placed: the needs of the jobs to which it has been given in this round; reserved: of those for which it
    is reserved.
    """

    def __init__(
        self, gpu: Gpu, facts: Facts, placed: Sequence[Need] = (), reserved: Sequence[Need] = ()
    ) -> None:
        self._gpu = gpu
        self._limits: Limits = facts.settings
        self._placed = placed
        self._reserved = reserved
        # An attempt that has been released still explains the memory that the driver has not freed yet.
        here = [_as_holder(one) for one in facts.attempts if gpu.uuid in one.gpus]
        self._ended = [one for one in here if one.state is AttemptState.ENDED]
        self._view = availability(gpu, replace(facts, attempts=tuple(here)))
        used = self._used_memory()
        total_used = (gpu.sample.used_mib if gpu.sample else None) or 0
        self._unlisted_mib = max(0, total_used - sum(used.values()))
        self.occupancies = {one.attempt_id: self._occupancy(one, used.get(one.attempt_id)) for one in here}
        self._foreign_mib = foreign_commitment(gpu, here, self._limits)
        self._allocated_mib = sum(one.allocated_mib for one in self.occupancies.values())

    @property
    def uuid(self) -> str:
        """The UUID of the GPU."""
        return self._gpu.uuid

    @property
    def index(self) -> int:
        """The index of the GPU."""
        return self._gpu.index

    def accepts(self, need: Need, leaving: Collection[int]) -> bool:
        """Returns whether the GPU accepts a job with this need once these attempts have left it.

        It must then still accept each job for which it is reserved: a job that declares no memory fits beside
        one that does, but not always the other way round.
        """
        empty = self._without(leaving, self._placed)
        jobs = [need, *self._reserved]
        return all(
            obstacle_kind(self._beside(empty, jobs[:at] + jobs[at + 1 :]), one, self._limits) is None
            for at, one in enumerate(jobs)
        )

    def without(self, leaving: Collection[int]) -> GpuAvailability:
        """Returns the availability of the GPU once these attempts, given by their ids, have left it."""
        return self._without(leaving, (*self._placed, *self._reserved))

    def _beside(self, view: GpuAvailability, needs: Sequence[Need]) -> GpuAvailability:
        for need in needs:
            view = with_allocation(view, need, self._limits)
        return view

    def _without(self, leaving: Collection[int], needs: Sequence[Need]) -> GpuAvailability:
        gone = [self.occupancies[one] for one in leaving if one in self.occupancies]
        ended = [one for one in self._ended if one.attempt_id not in leaving]
        left = replace(
            self._view,
            allocated_share=self._view.allocated_share - sum(one.share for one in gone),
            committed_mib=self._committed(gone),
            occupied=len(gone) < len(self.occupancies),
            unavailable=unavailability(self._gpu, ended),
            claimable_mib=self._claimable(leaving),
        )
        return self._beside(left, needs)

    def _committed(self, gone: Sequence[Occupancy]) -> int | None:
        if self._view.committed_mib is None or self._foreign_mib is None:
            return None
        allocated = self._allocated_mib - sum(one.allocated_mib for one in gone)
        used = (self._gpu.sample.used_mib if self._gpu.sample else None) or 0
        return max(allocated + self._foreign_mib, used - sum(one.used_mib for one in gone))

    def _claimable(self, leaving: Collection[int]) -> int | None:
        if not self._gpu.claims:
            return None
        total = claimable_total(self._view.total_mib)
        ours = sum(one.claimed_mib for key, one in self.occupancies.items() if key not in leaving)
        foreign = sum(total if claim.mib is None else claim.mib for claim in self._gpu.claims)
        return max(0, total - ours - foreign)

    def _used_memory(self) -> dict[int | None, int]:
        used: dict[int | None, int] = {}
        for process in listed_processes(self._gpu) or ():
            owner = self._gpu.owners.get(process.pid)
            used[owner] = used.get(owner, 0) + (process.used_mib or 0)
        return used

    def _occupancy(self, attempt: Attempt, used_mib: int | None) -> Occupancy:
        """Returns the occupancy of an attempt. used_mib: None if none of its processes is listed."""
        total, spike = self._view.total_mib, self._limits.spike_buffer
        allocation = attempt.allocation(self._gpu.uuid)
        allocated = allocated_mib(allocation, total or 0, spike)
        claimed = claim_size(allocation, total)
        return Occupancy(
            allocated_share(allocation, total, spike),
            allocated,
            min(allocated, self._unlisted_mib) if used_mib is None else used_mib,
            claimable_total(total) if claimed is None else claimed,
        )


def _as_holder(attempt: Attempt) -> Attempt:
    return attempt if attempt.state.holds_gpus else replace(attempt, state=AttemptState.ENDED)
