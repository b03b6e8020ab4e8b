"""Chooses the GPUs for a job from its need and the availability of each GPU, or says why it waits.

The rationale is in docs/design.md, Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.share import WHOLE
from gpu_scheduler.core.model.units import MAX_MIB, round_mib
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason

if TYPE_CHECKING:
    from gpu_scheduler.core.model.need import Need
    from gpu_scheduler.core.scheduling.settings import Limits


@dataclass(frozen=True)
class GpuAvailability:
    """The availability of one managed GPU for placement.

    allocated_share      thousandths allocated to attempts of ours
    committed_mib        memory allocated to them plus the peaks of foreign processes, MiB; None = unknown
    occupied             some attempt of ours runs on it, whatever its allocation
    foreign_mib          current memory use of foreign processes, MiB; None = unknown
    foreign_pid          the foreign process that holds the most memory, or None
    processes_listed     whether the probe lists the processes on it
    mean_load            mean load over the last samples, percent; None = unknown
    mean_foreign_load    the part of it that foreign processes cause; None = unknown
    unavailable          why it accepts no new job at all, or None
    foreign_peak_mib     peak memory use of the foreign processes, if above their current use; else 0
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


def foreign_use(gpu: GpuAvailability, need: Need, limits: Limits) -> ObstacleKind | None:
    """Returns the kind of foreign use that keeps a job with this need off a GPU; None if there is none.

    Foreign processes below the idle threshold never do. A job that declares memory may go wherever enough
    uncommitted memory is left, however much of the GPU foreign processes use.
    """
    if gpu.foreign_mib is None or gpu.foreign_mib <= limits.idle_threshold_mib:
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
    kind = _obstacle_kind(gpu, need, limits)
    return None if kind is None else _describe(gpu, kind, limits)


def _obstacle_kind(gpu: GpuAvailability, need: Need, limits: Limits) -> ObstacleKind | None:
    if gpu.unavailable is not None:
        return gpu.unavailable.kind
    if need.whole and gpu.occupied:
        return ObstacleKind.BUSY
    if need.share and gpu.allocated_share + need.share > WHOLE:
        # The remaining share matters only to a job that requests part of a GPU.
        is_full = gpu.allocated_share >= WHOLE or need.share == WHOLE
        return ObstacleKind.BUSY if is_full else ObstacleKind.SHARE
    if gpu.foreign_mib is None:
        return ObstacleKind.MEMORY_UNKNOWN
    use = foreign_use(gpu, need, limits)
    if use is not None or need.vram is None:
        return use
    headroom = _headroom(gpu, limits)
    if headroom is None:
        return ObstacleKind.MEMORY_UNKNOWN
    return None if need.vram <= headroom else ObstacleKind.MEMORY


def _headroom(gpu: GpuAvailability, limits: Limits) -> int | None:
    """Returns the MiB that are left for one more declaration; None = unknown."""
    if gpu.total_mib is None or gpu.committed_mib is None:
        return None
    return max(0, gpu.total_mib - gpu.committed_mib - limits.margin_mib)


def _describe(gpu: GpuAvailability, kind: ObstacleKind, limits: Limits) -> GpuObstacle:
    """Returns the obstacle of this kind with its values, which are as precise as they are shown."""
    if gpu.unavailable is not None:
        return gpu.unavailable
    index, pid = gpu.index, gpu.foreign_pid
    if kind is ObstacleKind.SHARE:
        return GpuObstacle(index, kind, free=WHOLE - gpu.allocated_share)
    if kind in (ObstacleKind.BUSY, ObstacleKind.MEMORY_UNKNOWN):
        return GpuObstacle(index, kind)
    listed = gpu.processes_listed if pid is None else None
    if kind is ObstacleKind.FOREIGN_LOAD:
        load = round(gpu.mean_foreign_load or 0)
        return GpuObstacle(index, kind, foreign_pid=pid, processes_listed=listed, foreign_load=load)
    mib = round_mib(gpu.foreign_mib or 0)
    if kind is not ObstacleKind.MEMORY:
        return GpuObstacle(index, kind, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)
    free = round_mib(_headroom(gpu, limits) or 0)
    if gpu.foreign_peak_mib:
        return GpuObstacle(index, kind, free=free, foreign_peak_mib=round_mib(gpu.foreign_peak_mib))
    # Memory in use by unknown processes is not free either.
    if listed or (gpu.foreign_mib or 0) <= limits.idle_threshold_mib:
        return GpuObstacle(index, kind, free=free)
    return GpuObstacle(index, kind, free=free, foreign_mib=mib, foreign_pid=pid, processes_listed=listed)


def place(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[GpuAvailability], limits: Limits
) -> tuple[str, ...] | WaitReason:
    """Returns the UUIDs of the GPUs for one job, ordered by index, or why it waits.

    Best fit: least memory left (if memory is declared), then least share left, then lowest load, then lowest
    index, so that the free capacity of the other GPUs is not fragmented.
    """
    candidates = [g for g in gpus if allowed is None or g.index in allowed]
    if need.count > sum(could_fit(need, gpu.total_mib, limits) for gpu in candidates):
        return _infeasible(need, allowed, gpus, candidates, limits)
    obstacles = [(gpu, _obstacle_kind(gpu, need, limits)) for gpu in candidates]
    fits = [gpu for gpu, kind in obstacles if kind is None]
    if len(fits) < need.count:
        # The number of free GPUs already accounts for the busy ones.
        named = tuple(
            _describe(gpu, kind, limits)
            for gpu, kind in obstacles
            if kind is not None and kind is not ObstacleKind.BUSY
        )
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


def could_fit(need: Need, total_mib: int | None, limits: Limits) -> bool:
    """Returns whether an empty GPU of this size could run the job; an unknown size (None) suffices."""
    return need.vram is None or total_mib is None or need.vram + limits.margin_mib <= total_mib


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
    # A GPU of unknown size could fit, so it is not among those that are too small.
    sizes = sorted((gpu.total_mib or MAX_MIB for gpu in candidates), reverse=True)
    return WaitReason(
        WaitKind.GPUS_TOO_SMALL, need=need, allowed=may_use,
        size_mib=sizes[need.count - 1], largest_mib=sizes[0], margin_mib=limits.margin_mib,
    )  # fmt: skip
