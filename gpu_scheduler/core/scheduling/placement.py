"""Chooses the GPUs for a job from its need and the availability of each GPU, or says why it waits.

The rationale is in docs/design.md, Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    if gpu.unavailable is not None:
        return gpu.unavailable
    if need.whole and gpu.occupied:
        return GpuObstacle(gpu.index, ObstacleKind.BUSY)
    if need.share and gpu.allocated_share + need.share > WHOLE:
        # The remaining share matters only to a job that asks for part of a GPU.
        if gpu.allocated_share >= WHOLE or need.share == WHOLE:
            return GpuObstacle(gpu.index, ObstacleKind.BUSY)
        return GpuObstacle(gpu.index, ObstacleKind.SHARE, free=WHOLE - gpu.allocated_share)
    if gpu.foreign_mib is None:
        return GpuObstacle(gpu.index, ObstacleKind.MEMORY_UNKNOWN)
    use = foreign_use(gpu, need, limits)
    if use is not None:
        return _with_foreign_use(GpuObstacle(gpu.index, use), gpu)
    return None if need.vram is None else _memory_shortfall(gpu, need.vram, limits)


def _with_foreign_use(found: GpuObstacle, gpu: GpuAvailability) -> GpuObstacle:
    """Returns the obstacle with the foreign use of the GPU, as precise as it is shown."""
    listed = gpu.processes_listed if gpu.foreign_pid is None else None
    found = replace(found, foreign_pid=gpu.foreign_pid, processes_listed=listed)
    if found.kind is ObstacleKind.FOREIGN_LOAD:
        return replace(found, foreign_load=round(gpu.mean_foreign_load or 0))
    return replace(found, foreign_mib=round_mib(gpu.foreign_mib or 0))


def _memory_shortfall(gpu: GpuAvailability, vram_mib: int, limits: Limits) -> GpuObstacle | None:
    """Returns the obstacle of a GPU without the memory for one more declaration; None if it has enough."""
    if gpu.total_mib is None or gpu.committed_mib is None:
        return GpuObstacle(gpu.index, ObstacleKind.MEMORY_UNKNOWN)
    headroom = max(0, gpu.total_mib - gpu.committed_mib - limits.margin_mib)
    if vram_mib <= headroom:
        return None
    short = GpuObstacle(gpu.index, ObstacleKind.MEMORY, free=round_mib(headroom))
    if gpu.foreign_peak_mib:
        return replace(short, foreign_peak_mib=round_mib(gpu.foreign_peak_mib))
    # Memory that no known process holds is part of what is not free.
    is_known = gpu.foreign_pid is not None or not gpu.processes_listed
    has_foreign_use = is_known and (gpu.foreign_mib or 0) > limits.idle_threshold_mib
    return _with_foreign_use(short, gpu) if has_foreign_use else short


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
    obstacles = [(gpu, obstacle(gpu, need, limits)) for gpu in candidates]
    fits = [gpu for gpu, why in obstacles if why is None]
    if len(fits) < need.count:
        # The number of free GPUs already covers the busy ones.
        named = (why for _, why in obstacles if why is not None and why.kind is not ObstacleKind.BUSY)
        return WaitReason(WaitKind.NO_FREE_GPU, need=need, gpus=len(fits), obstacles=tuple(named))
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
