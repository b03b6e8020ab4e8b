"""Chooses the GPUs for a job, from its need and the availability of each GPU, or finds why the job waits.

The rationale is in docs/design.md, Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.units import MAX_MIB
from gpu_scheduler.core.model.wait_reason import ObstacleKind, WaitKind, WaitReason
from gpu_scheduler.core.scheduling.gpu_admission import GpuAvailability, describe_obstacle, obstacle_kind
from gpu_scheduler.core.scheduling.needs import could_fit

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import Need
    from gpu_scheduler.core.scheduling.settings import Limits


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
