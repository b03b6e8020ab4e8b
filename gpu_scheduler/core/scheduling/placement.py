"""Keeps the account of a GPU, decides whether it accepts one more job, and chooses the GPUs for a job.

An attempt takes up share and memory, and claims memory (docs/design.md, Accounting). A declared quantity
counts as declared. Memory that was not declared, or exceeds its declaration, counts at its observed peak plus
the spike buffer, because the next sample may be higher. `Ledger` states when a GPU accepts one more job
(docs/design.md, Placement).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.core.model.job import Allocation
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.model.values import MAX_MIB, WHOLE, round_mib
from gpu_scheduler.core.scheduling.settings import Limits

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import Need


#: Memory, in MiB, that a driver may use without any process. The default of `--margin` leaves the same amount
#: free.
DRIVER_MIB = 512


def declared_mib(allocation: Allocation, total_mib: int | None) -> int | None:
    """Returns the MiB that a declared vram or share amounts to; None if the size of the GPU is unknown.

    If the attempt has the GPU to itself, its share counts as all of the memory.
    """
    if allocation.vram is not None:
        return allocation.vram
    if not total_mib:
        return None
    return total_mib if allocation.whole else max(1, allocation.share * total_mib // WHOLE)


def with_spike_buffer(peak_mib: int, spike_buffer: float) -> int:
    """Returns an observed peak plus its spike buffer, in MiB. spike_buffer: the value of `--spike-buffer`."""
    # Rounded first, because a fraction such as 0.1 is inexact: 10000 MiB must become 11000, never 11001.
    return math.ceil(round(peak_mib * (1 + spike_buffer), 6))


def allocated_mib(allocation: Allocation, total_mib: int, spike_buffer: float) -> int:
    """Returns the memory that an allocation takes up, in MiB."""
    if allocation.whole or (allocation.vram is None and not allocation.share):
        return total_mib
    peak = allocation.peak_mib or 0
    if allocation.vram is not None:
        return allocation.vram if peak <= allocation.vram else with_spike_buffer(peak, spike_buffer)
    return max(declared_mib(allocation, total_mib) or 0, with_spike_buffer(peak, spike_buffer))


def allocated_share(allocation: Allocation, total_mib: int | None, spike_buffer: float) -> int:
    """Returns the share that an allocation takes up, in thousandths.

    total_mib: the size of the GPU; if it is None (unknown), declared memory counts as the whole GPU.
    """
    if allocation.whole or (allocation.vram is None and not allocation.share):
        return WHOLE
    if allocation.share:
        return allocation.share
    if not total_mib:
        return WHOLE
    return min(WHOLE, -(-WHOLE * allocated_mib(allocation, total_mib, spike_buffer) // total_mib))


# Computes the memory that an attempt claims on a GPU (docs/design.md, GPU claims).
#
# A claim covers what the attempt declared, whatever it really uses, so it never changes while the attempt
# runs.


#: MiB beyond the memory of a GPU in which attempts claim 1 MiB each if other attempts claim all the memory.
BEYOND_MIB = 1000


def claimable_total(total_mib: int | None) -> int:
    """Returns the MiB of a GPU that can be claimed. total_mib: the memory of the GPU; None if unknown.

    A GPU of unknown size counts as one MiB for each thousandth of a share.
    """
    return total_mib or WHOLE


def claim_size(allocation: Allocation, total_mib: int | None) -> int | None:
    """Returns the MiB that an attempt claims on a GPU of this size; None means the whole GPU.

    Memory that was declared on a GPU of unknown size counts as the whole GPU, as in the accounting.
    """
    if allocation.whole or (allocation.vram is None and not 0 < allocation.share < WHOLE):
        return None
    if allocation.vram is not None and not total_mib:
        return None
    total = claimable_total(total_mib)
    return min(total, declared_mib(allocation, total) or 0)


def unclaimed_mib(claims: Iterable[int | None], total_mib: int | None) -> int:
    """Returns the MiB of a GPU that these claims leave. A claim of None covers the whole GPU."""
    total = claimable_total(total_mib)
    return max(0, total - sum(total if mib is None else mib for mib in claims))


def capped_claim(allocation: Allocation, earlier: Iterable[Allocation], total_mib: int | None) -> int | None:
    """Returns the MiB that an attempt claims beside the earlier attempts of the store that hold the GPU.

    The result is at most what their claims leave, because the accounting may give out more memory than a GPU
    has: a job that declares a share and more memory than that share counts only as its share for others.
    """
    size = claim_size(allocation, total_mib)
    left = unclaimed_mib((claim_size(one, total_mib) for one in earlier), total_mib)
    return size if size is None else min(size, left)


# Determines how accurate a memory declaration was, once its attempt has ended (docs/placement.md).


class DeclarationAccuracy(Struct, frozen=True):
    """The accuracy of a declaration on the GPU with the largest ratio of peak to declaration.

    percent: how far the peak is from the declaration, negative if it is below; mib: the memory declared on
    this GPU.
    """

    kind: Literal["within", "over", "under"]
    percent: int
    mib: int


def judge_declaration(
    peaks: Sequence[int | None],
    declared: Sequence[int | None],
    tolerance: float,
    *,
    completed: bool,
    by_share: bool = False,
) -> DeclarationAccuracy | None:
    """Returns a declaration's accuracy, from the peak and the declared MiB on each GPU (None if unknown).

    by_share: a share was declared. It may refer to compute, so only overuse is judged.

    Returns None if nothing was declared or too little is known. An attempt that did not complete may have
    ended before its peak, perhaps because memory ran out. A GPU with an unknown peak may have had a larger
    peak than the others. In both cases, it is unknown whether the declaration was right or too large.
    """
    known = [
        (peak, budget)
        for peak, budget in zip(peaks, declared, strict=False)
        if peak is not None and budget is not None
    ]
    if not known:
        return None
    peak, budget = max(known, key=lambda one: one[0] / one[1])
    percent = round(100 * (peak - budget) / budget)
    if peak > budget * (1 + tolerance):
        return DeclarationAccuracy("under", percent, budget)
    if by_share or not completed or len(known) < len(peaks):
        return None
    return DeclarationAccuracy("within" if peak >= budget * (1 - tolerance) else "over", percent, budget)


def could_fit(need: Need, total_mib: int | None, limits: Limits) -> bool:
    """Returns whether an empty GPU of this size could run the job. An unknown size (None) is large enough."""
    return need.vram is None or total_mib is None or need.vram + limits.margin_mib <= total_mib


# The account of one GPU.


#: The obstacles that our own jobs, or reservations for them, can cause.
_OWN_USE = (ObstacleKind.BUSY, ObstacleKind.EXCLUSIVE, ObstacleKind.SHARE, ObstacleKind.MEMORY)


class Holding(Struct, frozen=True):
    """The part of one GPU that a job takes up. share: thousandths; the other values are in MiB.

    allocated_mib: the memory that the accounting allocates to it; used_mib: the memory that its processes
    use; claimed_mib: the memory that it claims. closes: why the GPU accepts no other job until it has left.
    """

    share: int
    allocated_mib: int
    used_mib: int
    claimed_mib: int
    closes: GpuObstacle | None = None

    @classmethod
    def of(cls, allocation: Allocation, total_mib: int | None, spike_buffer: float) -> Holding:
        """Returns what a job takes up that uses all that is allocated to it. total_mib: None if unknown."""
        mib = allocated_mib(allocation, total_mib or 0, spike_buffer)
        share = allocated_share(allocation, total_mib, spike_buffer)
        # A job that claims the whole GPU gets it only if no other program claims anything there.
        return cls(share, mib, mib, claim_size(allocation, total_mib) or 0)


class Ledger(Struct, frozen=True):
    """The account of one managed GPU: its use, the rest, and whether the rest is enough for one more job.

    Our jobs are on two accounts. The share account adds their shares. The memory account adds the memory that
    is allocated to them and the memory that is kept for foreign processes; it is at least the memory in use.
    A GPU accepts a job if all of these rules hold. The first that does not hold is the obstacle.

    1. The GPU is open: it is not paused, has been sampled, has no fault and is not suspect. No attempt there
       has ended without leaving it, and the memory of those that have left it is free.
    2. A job that wants its GPUs to itself finds none of our other jobs there.
    3. In compute mode Exclusive_Process, it finds neither one of our jobs nor any other process there.
    4. The share that it declares is left on the share account.
    5. The GPU can be claimed, and other programs claim nothing of what the job claims.
    6. The memory that foreign processes use is known. Once it exceeds the idle threshold, the GPU accepts no
       job that must be alone there, from the memory threshold on none without declared memory, and from the
       load threshold on none at all.
    7. The memory that the job declares is left on the memory account, besides the margin.
    8. Each job for which the GPU is reserved still fits beside it. A job that declares no memory fits beside
       one that does, but not always the other way round.

    Foreign use counts as it is judged now, because it does not change when our jobs leave. With their
    allocations, the memory that their processes use becomes free.

    holdings             what the attempts on the GPU take up, by their ids
    allocated_share      thousandths allocated to our jobs; above 0 if one of them is there
    allocated_mib        memory allocated to them, in MiB
    used_mib             memory in use or allocated to jobs that are about to start, in MiB
    foreign_mib          current memory use of foreign processes, in MiB; None if unknown
    foreign_kept_mib     memory that is kept for them, in MiB; None if unknown
    foreign_peak_mib     peak memory use of the foreign processes, if above their current use; otherwise 0
    foreign_pid          the foreign process that uses the most memory, or None
    processes_listed     whether the probe lists the processes on the GPU
    mean_load            mean load over the last samples, in percent; None if unknown
    mean_foreign_load    the part of the mean load that foreign processes cause; None if unknown
    closed               why the GPU accepts no new job at all, or None
    claims               the claims of other programs
    claimable_mib        MiB that neither they nor our jobs claim; None if there are no such claims
    claims_problem       why the GPU cannot be claimed, or None
    exclusive            whether only one process at a time can use the GPU
    reserved             the jobs for which the GPU is reserved, with their needs, which count as allocated
    """

    uuid: str
    index: int
    limits: Limits
    total_mib: int | None = None
    holdings: Mapping[int, Holding] = field(default_factory=dict)
    allocated_share: int = 0
    allocated_mib: int = 0
    used_mib: int = 0
    foreign_mib: int | None = 0
    foreign_kept_mib: int | None = 0
    foreign_peak_mib: int = 0
    foreign_pid: int | None = None
    processes_listed: bool = True
    mean_load: float | None = 0.0
    mean_foreign_load: float | None = 0.0
    closed: GpuObstacle | None = None
    claims: tuple[GpuClaim, ...] = ()
    claimable_mib: int | None = None
    claims_problem: str | None = None
    exclusive: bool = False
    reserved: tuple[tuple[int, Need], ...] = ()

    def minus(self, attempts: Collection[int]) -> Ledger:
        """Returns the ledger once these attempts, given by their ids, have left the GPU."""
        gone = {one: self.holdings[one] for one in attempts if one in self.holdings}
        if not gone:
            return self
        left = {one: holding for one, holding in self.holdings.items() if one not in gone}
        closed = self.closed
        if any(one.closes is closed for one in gone.values()):
            closed = closing(left.values())
        return replace(self._changed(gone.values(), -1), holdings=left, closed=closed)

    def plus(self, need: Need, reserved_for: int | None = None) -> Ledger:
        """Returns the ledger once a job with this need has the GPU.

        reserved_for: the id of the job, if the GPU is only reserved for it.
        """
        ledger = self._changed([self._holding(need)], 1)
        if reserved_for is None:
            return ledger
        return replace(ledger, reserved=(*self.reserved, (reserved_for, need)))

    def _holding(self, need: Need) -> Holding:
        return Holding.of(_allocation(need), self.total_mib, self.limits.spike_buffer)

    def _changed(self, holdings: Iterable[Holding], sign: int) -> Ledger:
        share, allocated, used, claimed = 0, 0, 0, 0
        for one in holdings:
            share += sign * one.share
            allocated += sign * one.allocated_mib
            used += sign * one.used_mib
            claimed += sign * one.claimed_mib
        return replace(
            self,
            allocated_share=self.allocated_share + share,
            allocated_mib=self.allocated_mib + allocated,
            used_mib=self.used_mib + used,
            claimable_mib=None if self.claimable_mib is None else self.claimable_mib - claimed,
        )

    @property
    def committed_mib(self) -> int | None:
        """The memory account, in MiB; None if unknown."""
        if self.total_mib is None or self.foreign_kept_mib is None:
            return None
        return max(self.allocated_mib + self.foreign_kept_mib, self.used_mib)

    @property
    def left_mib(self) -> int | None:
        """The MiB that one more job can declare; None if unknown."""
        committed = self.committed_mib
        if self.total_mib is None or committed is None:
            return None
        return max(0, self.total_mib - committed - self.limits.margin_mib)

    def accepts(self, need: Need) -> bool:
        """Returns whether the GPU accepts a job with this need."""
        return self._obstacle_kind(need) is None and self._leaves_reserved(need)

    def obstacle(self, need: Need) -> GpuObstacle | None:
        """Returns why the GPU does not accept a job with this need; None if it does."""
        kind = self._obstacle_kind(need)
        if kind is not None:
            return self._described(kind)
        if self._leaves_reserved(need):
            return None
        return GpuObstacle(self.index, ObstacleKind.RESERVED, job_id=self.reserved[0][0])

    def _obstacle_kind(self, need: Need) -> ObstacleKind | None:
        """Returns the kind of the first obstacle, apart from what a reservation needs beside the job."""
        if self.closed is not None:
            return self.closed.kind
        if need.whole and self.allocated_share:
            return ObstacleKind.BUSY
        if self.exclusive and (self.allocated_share or self.foreign_pid is not None):
            return ObstacleKind.EXCLUSIVE
        if need.share and self.allocated_share + need.share > WHOLE:
            # The remaining share is of interest only to a job that requests part of a GPU.
            is_full = self.allocated_share >= WHOLE or need.share == WHOLE
            return ObstacleKind.BUSY if is_full else ObstacleKind.SHARE
        if self.claims_problem is not None:
            return ObstacleKind.CLAIMS_UNKNOWN
        if not self._leaves_claim(need):
            return ObstacleKind.CLAIMED
        if self.foreign_mib is None:
            return ObstacleKind.MEMORY_UNKNOWN
        use = self.foreign_use(need)
        if use is not None or need.vram is None:
            return use
        left = self.left_mib
        if left is None:
            return ObstacleKind.MEMORY_UNKNOWN
        return None if need.vram <= left else ObstacleKind.MEMORY

    def _leaves_claim(self, need: Need) -> bool:
        """Returns whether the claim of a job with this need fits beside the claims of other programs."""
        if self.claimable_mib is None or self.exclusive:
            return not self.claims
        size = claim_size(_allocation(need), self.total_mib)
        return size is not None and size <= self.claimable_mib

    def foreign_use(self, need: Need) -> ObstacleKind | None:
        """Returns the kind of foreign use that keeps a job with this need off the GPU; None if there is none.

        Foreign processes within the idle threshold never keep a job off. For a job that declares memory, it
        does not matter how much memory foreign processes use, as long as enough is left on the account.
        """
        if self.foreign_mib is None or counts_as_idle(self.foreign_mib, self.limits):
            return None
        if need.alone:
            return ObstacleKind.FOREIGN_PROCESS
        most_mib = self.limits.mem_threshold * (self.total_mib or 0)
        if need.vram is None and self.total_mib and self.foreign_mib >= most_mib:
            return ObstacleKind.FOREIGN_MEMORY
        load = self.mean_foreign_load
        if load is not None and load >= 100 * self.limits.load_threshold:
            return ObstacleKind.FOREIGN_LOAD
        return None

    def _leaves_reserved(self, need: Need) -> bool:
        """Returns whether each job for which the GPU is reserved fits beside one with this need."""
        return all(
            self._changed([self._holding(one)], -1).plus(need)._obstacle_kind(one) is None
            for _, one in self.reserved
        )

    def _described(self, kind: ObstacleKind) -> GpuObstacle:
        """Returns the obstacle of this kind with its values, which are rounded as they are shown."""
        if self.closed is not None:
            return self.closed
        index, pid = self.index, self.foreign_pid
        if self.reserved and kind in _OWN_USE:
            return GpuObstacle(index, ObstacleKind.RESERVED, job_id=self.reserved[0][0])
        if kind is ObstacleKind.SHARE:
            return GpuObstacle(index, kind, free=WHOLE - self.allocated_share)
        if kind in (ObstacleKind.BUSY, ObstacleKind.MEMORY_UNKNOWN):
            return GpuObstacle(index, kind)
        if kind is ObstacleKind.EXCLUSIVE:
            return GpuObstacle(index, kind, foreign_pid=None if self.allocated_share else pid)
        if kind is ObstacleKind.CLAIMED:
            return GpuObstacle(index, kind, claims=self.claims)
        if kind is ObstacleKind.CLAIMS_UNKNOWN:
            return GpuObstacle(index, kind, detail=self.claims_problem)
        if kind is ObstacleKind.FOREIGN_LOAD:
            return GpuObstacle(index, kind, foreign_pid=pid, foreign_load=round(self.mean_foreign_load or 0))
        listed = self.processes_listed if pid is None else None
        mib = round_mib(self.foreign_mib or 0)
        if kind is not ObstacleKind.MEMORY:
            return GpuObstacle(index, kind, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)
        free = round_mib(self.left_mib or 0)
        if self.foreign_peak_mib:
            return GpuObstacle(index, kind, free=free, foreign_peak_mib=round_mib(self.foreign_peak_mib))
        # Memory that unknown processes use is not free either, so it is part of the obstacle.
        if listed or counts_as_idle(self.foreign_mib or 0, self.limits):
            return GpuObstacle(index, kind, free=free)
        return GpuObstacle(index, kind, free=free, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)


def closing(holdings: Iterable[Holding]) -> GpuObstacle | None:
    """Returns why a GPU accepts no other job until some of these have left it, or None."""
    found = [one.closes for one in holdings if one.closes is not None]
    return min(found, key=lambda one: one.kind is ObstacleKind.AWAITING_MEMORY, default=None)


def _allocation(need: Need) -> Allocation:
    return Allocation(need.share, need.vram, need.whole)


def counts_as_idle(foreign_mib: int, limits: Limits) -> bool:
    """Returns whether a GPU with this foreign use counts as idle. Drivers and displays use some memory."""
    return foreign_mib <= limits.idle_threshold_mib


# Chooses the GPUs for a job, from its need and the ledger of each GPU, or finds why the job waits.


def place(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[Ledger]
) -> tuple[str, ...] | WaitReason:
    """Returns the UUIDs of the GPUs for one job, ordered by index, or the reason why the job waits.

    Chooses the best fit: least memory left (if memory is declared), then least share left, then lowest load,
    then lowest index. This keeps the free capacity of the other GPUs from being fragmented.
    """
    candidates = [g for g in gpus if allowed is None or g.index in allowed]
    if need.count > sum(could_fit(need, gpu.total_mib, gpu.limits) for gpu in candidates):
        return _infeasible(need, allowed, gpus, candidates)
    fits = [gpu for gpu in candidates if gpu.accepts(need)]
    if len(fits) < need.count:
        obstacles = (gpu.obstacle(need) for gpu in candidates)
        # Busy GPUs are left out, because the number of free GPUs already accounts for them.
        named = tuple(one for one in obstacles if one is not None and one.kind is not ObstacleKind.BUSY)
        return WaitReason(WaitKind.NO_FREE_GPU, need=need, gpus=len(fits), obstacles=named)
    fits.sort(
        key=lambda g: (
            0 if need.vram is None else g.left_mib,
            -g.allocated_share,
            g.mean_load if g.mean_load is not None else 100.0,
            g.index,
        )
    )
    chosen = sorted(fits[: need.count], key=lambda g: g.index)
    return tuple(gpu.uuid for gpu in chosen)


def _infeasible(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[Ledger], candidates: Sequence[Ledger]
) -> WaitReason:
    may_use = None if allowed is None else len(allowed)
    if need.count > len(candidates):
        return WaitReason(
            WaitKind.TOO_FEW_GPUS, need=need, gpus=len(candidates), managed=len(gpus), allowed=may_use
        )
    # A GPU of unknown size may be large enough, so it does not count as too small.
    sizes = sorted((gpu.total_mib or MAX_MIB for gpu in candidates), reverse=True)
    return WaitReason(
        WaitKind.GPUS_TOO_SMALL, need=need, allowed=may_use,
        size_mib=sizes[need.count - 1], largest_mib=sizes[0], margin_mib=candidates[0].limits.margin_mib,
    )  # fmt: skip
