"""Chooses the GPUs for a job from its need and the availability of each GPU, or says why it waits.

The rationale is in docs/design.md, Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.share import WHOLE, format_share
from gpu_scheduler.core.model.units import MAX_MIB, human_mib

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.needs import Need
    from gpu_scheduler.core.scheduling.settings import Limits


@dataclass(frozen=True)
class GpuAvailability:
    """The availability of one managed GPU for placement.

    allocated_share      thousandths allocated to attempts of ours
    committed_mib        memory allocated to them plus the peaks of foreign processes, MiB; None = unknown
    occupied             some attempt of ours runs on it, whatever its allocation
    foreign_mib          current memory use of foreign processes, MiB; None = unknown
    foreign_holder       the foreign process on it, for messages ("process 8123"), or None
    mean_load            mean load over the last samples, percent; None = unknown
    mean_foreign_load    the part of it that foreign processes cause; None = unknown
    unavailable_reason   why it accepts no new job ("paused", "lost", …), or None
    foreign_peak_mib     peak memory use of the foreign processes, if above their current use; else 0
    """

    uuid: str
    index: int
    total_mib: int | None = None
    allocated_share: int = 0
    committed_mib: int | None = 0
    occupied: bool = False
    foreign_mib: int | None = 0
    foreign_holder: str | None = None
    mean_load: float | None = 0.0
    unavailable_reason: str | None = None
    foreign_peak_mib: int = 0
    mean_foreign_load: float | None = 0.0


@dataclass(frozen=True)
class WaitReason:
    """The reason why a job waits. infeasible: it could not fit even on present, empty, unpaused GPUs."""

    text: str
    infeasible: bool = False


class ForeignUse(Enum):
    """The kind of foreign use that keeps a job off a GPU."""

    MEMORY = "as much memory as --mem-threshold"
    LOAD = "as much load as --load-threshold"
    NOT_IDLE = "more memory than --idle-threshold, for a job that wants an idle GPU"


def foreign_use(gpu: GpuAvailability, need: Need, limits: Limits) -> ForeignUse | None:
    """Returns the foreign use that keeps a job with this need off a GPU; None if there is none.

    Foreign processes below the idle threshold never do. A job that declares memory may go wherever enough
    uncommitted memory is left, however much of the GPU foreign processes use.
    """
    if gpu.foreign_mib is None or gpu.foreign_mib <= limits.idle_threshold_mib:
        return None
    if need.alone:
        return ForeignUse.NOT_IDLE
    if need.vram is None and gpu.total_mib and gpu.foreign_mib >= limits.mem_threshold * gpu.total_mib:
        return ForeignUse.MEMORY
    if gpu.mean_foreign_load is not None and gpu.mean_foreign_load >= 100 * limits.load_threshold:
        return ForeignUse.LOAD
    return None


def obstacle(gpu: GpuAvailability, need: Need, limits: Limits) -> str | None:
    """Returns why one GPU cannot accept a job with this need, as a phrase; None if it can."""
    if gpu.unavailable_reason is not None:
        return gpu.unavailable_reason
    if need.whole and gpu.occupied:
        return "busy"
    if need.share and gpu.allocated_share + need.share > WHOLE:
        # The remaining share matters only to a job that asks for part of a GPU.
        whole = gpu.allocated_share >= WHOLE or need.share == WHOLE
        return "busy" if whole else f"{format_share(WHOLE - gpu.allocated_share)} free"
    if gpu.foreign_mib is None:
        return "memory unknown"
    use = foreign_use(gpu, need, limits)
    if use is not None:
        who = gpu.foreign_holder or "memory of unknown owner"
        load = f", load {gpu.mean_foreign_load:.0f} %" if use is ForeignUse.LOAD else None
        return f"foreign {who}{load or f' holds {human_mib(gpu.foreign_mib)}'}"
    if need.vram is not None:
        return _memory_shortfall(gpu, need.vram, limits)
    return None


def _memory_shortfall(gpu: GpuAvailability, vram_mib: int, limits: Limits) -> str | None:
    """Returns why a GPU lacks the memory for one more declaration; None if it has enough."""
    if gpu.total_mib is None or gpu.committed_mib is None:
        return "memory unknown"
    headroom = max(0, gpu.total_mib - gpu.committed_mib - limits.margin_mib)
    if vram_mib <= headroom:
        return None
    foreign = gpu.foreign_mib or 0
    named = gpu.foreign_holder is not None and foreign > limits.idle_threshold_mib
    who = f", foreign {gpu.foreign_holder} holds {human_mib(foreign)}" if named else ""
    if gpu.foreign_peak_mib:
        who = f", running foreign processes have used up to {human_mib(gpu.foreign_peak_mib)}"
    return f"room for {human_mib(headroom)}{who}" if headroom else f"full{who}"


def place(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[GpuAvailability], limits: Limits
) -> tuple[str, ...] | WaitReason:
    """Returns the UUIDs of the GPUs for one job, ordered by index, or why it waits.

    Best fit: least memory left (if memory is declared), then least share left, then lowest load, then lowest
    index, so that the free capacity of the other GPUs is not fragmented.
    """
    candidates = [g for g in gpus if allowed is None or g.index in allowed]
    could = sum(could_fit(need, gpu.total_mib, limits) for gpu in candidates)
    if need.count > could:
        return WaitReason(_infeasible_text(need, allowed, gpus, candidates, limits), infeasible=True)
    obstacles = [(gpu, obstacle(gpu, need, limits)) for gpu in candidates]
    fits = [gpu for gpu, why in obstacles if why is None]
    if len(fits) < need.count:
        return WaitReason(
            _waiting_text(need, len(fits), [(g, why) for g, why in obstacles if why is not None])
        )
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


def _infeasible_text(
    need: Need,
    allowed: tuple[int, ...] | None,
    gpus: Sequence[GpuAvailability],
    candidates: Sequence[GpuAvailability],
    limits: Limits,
) -> str:
    if need.count <= len(candidates):
        # A GPU of unknown size could fit, so it is not among those that are too small.
        sizes = sorted((gpu.total_mib or MAX_MIB for gpu in candidates), reverse=True)
        kind = "allowed" if allowed is not None else "managed"
        return f"infeasible: needs {need}, but {_too_small_text(need, kind, sizes, limits)}"
    if allowed is not None and len(candidates) < min(len(allowed), len(gpus)):
        return f"infeasible: needs {need}; {len(candidates)} of its allowed GPUs managed"
    have = f"{len(candidates)} allowed" if allowed is not None else f"{len(gpus)} managed"
    return f"infeasible: needs {need}, {have}"


def _too_small_text(need: Need, kind: str, sizes: Sequence[int], limits: Limits) -> str:
    """Describes how much the largest GPUs can give. sizes: of the GPUs of this kind, MiB, largest first."""
    size = sizes[need.count - 1]
    if need.count == 1:
        have = f"the largest {kind} GPU has"
    elif size == sizes[0]:
        have = f"the largest {kind} GPUs have"
    else:
        have = f"the smallest of the {need.count} largest {kind} GPUs has"
    most = max(0, size - limits.margin_mib)
    given = human_mib(most)
    if need.vram is not None and given == human_mib(need.vram):
        given = f"{most} MiB"  # rounded, both would look equal
    margin = human_mib(limits.margin_mib)
    return f"{have} {human_mib(size)}, of which {given} can be given to jobs (margin {margin})"


def _waiting_text(need: Need, free: int, obstacles: Sequence[tuple[GpuAvailability, str]]) -> str:
    # The count already covers "busy"; the user can act on every other reason.
    named_gpus = [f"GPU {gpu.index} {why}" for gpu, why in obstacles if why != "busy"]
    more = f", GPUs {', '.join(named_gpus[:4])}".replace("GPUs GPU", "GPU", 1) if named_gpus else ""
    rest = f" and {len(named_gpus) - 4} more" if len(named_gpus) > 4 else ""
    return f"needs {need}, {free} free{more}{rest}"
