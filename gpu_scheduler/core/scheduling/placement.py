"""Decides whether a GPU accepts one more job, and chooses the GPUs for a job or finds why it waits.

What counts are the share and the memory left, claims and foreign use. The rationale is in docs/design.md,
Placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.attempt import Allocation
from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.core.model.units import MAX_MIB, WHOLE, round_mib
from gpu_scheduler.core.model.wait_reason import GpuObstacle, ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.scheduling.accounting import allocated_mib, allocated_share, could_fit, declared_mib

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import Need
    from gpu_scheduler.core.scheduling.settings import Limits


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


#: The obstacles that our own jobs, or reservations for them, can cause.
_OWN_USE = (ObstacleKind.BUSY, ObstacleKind.EXCLUSIVE, ObstacleKind.SHARE, ObstacleKind.MEMORY)


class GpuAvailability(Struct, frozen=True):
    """The availability of one managed GPU for placement.

    allocated_share      thousandths allocated to our attempts
    committed_mib        memory allocated to our attempts plus the peaks of foreign processes, in MiB; None if
                         unknown
    occupied             whether one of our attempts holds the GPU, whatever its allocation
    foreign_mib          current memory use of foreign processes, in MiB; None if unknown
    foreign_pid          the foreign process that uses the most memory, or None
    processes_listed     whether the probe lists the processes on the GPU
    mean_load            mean load over the last samples, in percent; None if unknown
    mean_foreign_load    the part of the mean load that foreign processes cause; None if unknown
    unavailable          why the GPU accepts no new job at all, or None
    foreign_peak_mib     peak memory use of the foreign processes, if above their current use; otherwise 0
    claims               the claims of other programs
    claimable_mib        MiB that neither they nor our attempts claim; None if there are no such claims
    claims_problem       why the GPU cannot be claimed, or None
    exclusive            whether only one process at a time can use the GPU
    reserved_for         the jobs whose needs count as allocated because the GPU is reserved for them
    """

    uuid: str
    index: int
    total_mib: int | None = None
    allocated_share: int = 0
    committed_mib: int | None = 0
    occupied: bool = False
    foreign_mib: int | None = 0
    foreign_pid: int | None = None
    mean_load: float | None = 0.0
    unavailable: GpuObstacle | None = None
    foreign_peak_mib: int = 0
    mean_foreign_load: float | None = 0.0
    processes_listed: bool = True
    claims: tuple[GpuClaim, ...] = ()
    claimable_mib: int | None = None
    claims_problem: str | None = None
    reserved_for: tuple[int, ...] = ()
    exclusive: bool = False


def with_allocation(gpu: GpuAvailability, need: Need, limits: Limits) -> GpuAvailability:
    """Returns the availability of a GPU once a job with this need has been placed on it."""
    allocation = Allocation(need.share, need.vram, need.whole)
    memory = gpu.committed_mib
    if memory is not None and gpu.total_mib is not None:
        memory += allocated_mib(allocation, gpu.total_mib, limits.spike_buffer)
    share = gpu.allocated_share + allocated_share(allocation, gpu.total_mib, limits.spike_buffer)
    claimable = gpu.claimable_mib
    if claimable is not None:
        claimable -= claim_size(allocation, gpu.total_mib) or 0
    return replace(gpu, allocated_share=share, committed_mib=memory, occupied=True, claimable_mib=claimable)


def counts_as_idle(foreign_mib: int, limits: Limits) -> bool:
    """Returns whether a GPU with this foreign use counts as idle. Drivers and displays use some memory."""
    return foreign_mib <= limits.idle_threshold_mib


def foreign_use(gpu: GpuAvailability, need: Need, limits: Limits) -> ObstacleKind | None:
    """Returns the kind of foreign use that keeps a job with this need off a GPU; None if there is none.

    Foreign processes within the idle threshold never keep a job off. For a job that declares memory, it does
    not matter how much memory foreign processes use, as long as enough uncommitted memory is left.
    """
    if gpu.foreign_mib is None or counts_as_idle(gpu.foreign_mib, limits):
        return None
    if need.alone:
        return ObstacleKind.FOREIGN_PROCESS
    if need.vram is None and gpu.total_mib and gpu.foreign_mib >= limits.mem_threshold * gpu.total_mib:
        return ObstacleKind.FOREIGN_MEMORY
    if gpu.mean_foreign_load is not None and gpu.mean_foreign_load >= 100 * limits.load_threshold:
        return ObstacleKind.FOREIGN_LOAD
    return None


def obstacle(gpu: GpuAvailability, need: Need, limits: Limits) -> GpuObstacle | None:
    """Returns why one GPU cannot accept a job with this need; None if it can."""
    kind = obstacle_kind(gpu, need, limits)
    return None if kind is None else describe_obstacle(gpu, kind, limits)


def obstacle_kind(gpu: GpuAvailability, need: Need, limits: Limits) -> ObstacleKind | None:
    """Returns the kind of the first obstacle that keeps a job with this need off a GPU, if any."""
    if gpu.unavailable is not None:
        return gpu.unavailable.kind
    if need.whole and gpu.occupied:
        return ObstacleKind.BUSY
    if gpu.exclusive and (gpu.occupied or gpu.foreign_pid is not None):
        return ObstacleKind.EXCLUSIVE
    if need.share and gpu.allocated_share + need.share > WHOLE:
        # The remaining share is of interest only to a job that requests part of a GPU.
        is_full = gpu.allocated_share >= WHOLE or need.share == WHOLE
        return ObstacleKind.BUSY if is_full else ObstacleKind.SHARE
    if gpu.claims_problem is not None:
        return ObstacleKind.CLAIMS_UNKNOWN
    if not _leaves_claim(gpu, need):
        return ObstacleKind.CLAIMED
    if gpu.foreign_mib is None:
        return ObstacleKind.MEMORY_UNKNOWN
    use = foreign_use(gpu, need, limits)
    if use is not None or need.vram is None:
        return use
    headroom = headroom_mib(gpu, limits)
    if headroom is None:
        return ObstacleKind.MEMORY_UNKNOWN
    return None if need.vram <= headroom else ObstacleKind.MEMORY


def _leaves_claim(gpu: GpuAvailability, need: Need) -> bool:
    """Returns whether the claim of a job with this need fits beside the claims of other programs."""
    if gpu.claimable_mib is None or gpu.exclusive:
        return not gpu.claims
    size = claim_size(Allocation(need.share, need.vram, need.whole), gpu.total_mib)
    return size is not None and size <= gpu.claimable_mib


def headroom_mib(gpu: GpuAvailability, limits: Limits) -> int | None:
    """Returns the MiB that one more job can declare; None if unknown."""
    if gpu.total_mib is None or gpu.committed_mib is None:
        return None
    return max(0, gpu.total_mib - gpu.committed_mib - limits.margin_mib)


def describe_obstacle(gpu: GpuAvailability, kind: ObstacleKind, limits: Limits) -> GpuObstacle:
    """Returns the obstacle of this kind with its values, which are rounded as they are shown."""
    if gpu.unavailable is not None:
        return gpu.unavailable
    index, pid = gpu.index, gpu.foreign_pid
    if gpu.reserved_for and kind in _OWN_USE:
        return GpuObstacle(index, ObstacleKind.RESERVED, job_id=gpu.reserved_for[0])
    if kind is ObstacleKind.SHARE:
        return GpuObstacle(index, kind, free=WHOLE - gpu.allocated_share)
    if kind in (ObstacleKind.BUSY, ObstacleKind.MEMORY_UNKNOWN):
        return GpuObstacle(index, kind)
    if kind is ObstacleKind.EXCLUSIVE:
        return GpuObstacle(index, kind, foreign_pid=None if gpu.occupied else pid)
    if kind is ObstacleKind.CLAIMED:
        return GpuObstacle(index, kind, claims=gpu.claims)
    if kind is ObstacleKind.CLAIMS_UNKNOWN:
        return GpuObstacle(index, kind, detail=gpu.claims_problem)
    if kind is ObstacleKind.FOREIGN_LOAD:
        return GpuObstacle(index, kind, foreign_pid=pid, foreign_load=round(gpu.mean_foreign_load or 0))
    listed = gpu.processes_listed if pid is None else None
    mib = round_mib(gpu.foreign_mib or 0)
    if kind is not ObstacleKind.MEMORY:
        return GpuObstacle(index, kind, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)
    free = round_mib(headroom_mib(gpu, limits) or 0)
    if gpu.foreign_peak_mib:
        return GpuObstacle(index, kind, free=free, foreign_peak_mib=round_mib(gpu.foreign_peak_mib))
    # Memory that unknown processes use is not free either, so it is part of the obstacle.
    if listed or counts_as_idle(gpu.foreign_mib or 0, limits):
        return GpuObstacle(index, kind, free=free)
    return GpuObstacle(index, kind, free=free, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)


# Chooses the GPUs for a job, from its need and the availability of each GPU, or finds why the job waits.


def place(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[GpuAvailability], limits: Limits
) -> tuple[str, ...] | WaitReason:
    """Returns the UUIDs of the GPUs for one job, ordered by index, or the reason why the job waits.

    Chooses the best fit: least memory left (if memory is declared), then least share left, then lowest load,
    then lowest index. This keeps the free capacity of the other GPUs from being fragmented.
    """
    candidates = [g for g in gpus if allowed is None or g.index in allowed]
    if need.count > sum(could_fit(need, gpu.total_mib, limits) for gpu in candidates):
        return _infeasible(need, allowed, gpus, candidates, limits)
    obstacles = [(gpu, obstacle_kind(gpu, need, limits)) for gpu in candidates]
    fits = [gpu for gpu, kind in obstacles if kind is None]
    if len(fits) < need.count:
        described = [describe_obstacle(gpu, kind, limits) for gpu, kind in obstacles if kind is not None]
        # Busy GPUs are left out, because the number of free GPUs already accounts for them.
        named = tuple(one for one in described if one.kind is not ObstacleKind.BUSY)
        return WaitReason(WaitKind.NO_FREE_GPU, need=need, gpus=len(fits), obstacles=named)
    fits.sort(
        key=lambda g: (
            _memory_left(g, need),
            -g.allocated_share,
            g.mean_load if g.mean_load is not None else 100.0,
            g.index,
        )
    )
    chosen = sorted(fits[: need.count], key=lambda g: g.index)
    return tuple(gpu.uuid for gpu in chosen)


def _memory_left(gpu: GpuAvailability, need: Need) -> int:
    if need.vram is None or gpu.total_mib is None:
        return 0
    return gpu.total_mib - (gpu.committed_mib or 0)


def _infeasible(
    need: Need,
    allowed: tuple[int, ...] | None,
    gpus: Sequence[GpuAvailability],
    candidates: Sequence[GpuAvailability],
    limits: Limits,
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
        size_mib=sizes[need.count - 1], largest_mib=sizes[0], margin_mib=limits.margin_mib,
    )  # fmt: skip
