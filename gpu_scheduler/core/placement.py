"""Where a job goes: its need and what is known of each GPU in; GPUs, or why it waits, out (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.core.share import WHOLE, format_share

if TYPE_CHECKING:
    from gpu_scheduler.core.needs import Need

#: A GPU whose foreign memory is at most this is idle: drivers and displays hold a little (MiB; document 001).
IDLE_MIB = 200


@dataclass(frozen=True)
class GpuView:
    """One managed GPU as placement sees it.

    booked         thousandths held by attempts of ours
    foreign_mib    memory of everybody else's processes, MiB; None = unknown
    foreign        a process of somebody else is on it, in words ("process 8123"), or None
    load           mean load over the last samples, percent; None = unknown
    closed         why it takes no new job ("paused", "lost", "cooling" …), or None
    """

    uuid: str
    index: int
    total_mib: int | None = None
    booked: int = 0
    foreign_mib: int | None = 0
    foreign: str | None = None
    load: float | None = 0.0
    closed: str | None = None


@dataclass(frozen=True)
class Limits:
    """Other people's use at or above which a GPU takes no new job: fractions of memory and of load."""

    memory: float = 0.8
    load: float = 0.8


@dataclass(frozen=True)
class Reason:
    """Why a job waits. `infeasible` = could not fit on the managed GPUs empty, unpaused and present."""

    text: str
    infeasible: bool = False


def obstacle(gpu: GpuView, need: Need, limits: Limits) -> str | None:
    """Why one GPU cannot take one more job with this need, in words; None if it can."""
    if gpu.closed is not None:
        return gpu.closed
    if gpu.booked + need.share > WHOLE:
        # What is left of it is worth a word only to a job that asks for a part.
        whole = gpu.booked >= WHOLE or need.share == WHOLE
        return "busy" if whole else f"{format_share(WHOLE - gpu.booked)} free"
    if gpu.foreign_mib is None:
        return "memory unknown"
    who = gpu.foreign or "memory not ours"
    if gpu.total_mib and gpu.foreign_mib >= limits.memory * gpu.total_mib:
        return f"foreign {who} holds {_size(gpu.foreign_mib)}"
    if gpu.foreign is not None and gpu.load is not None and gpu.load >= 100 * limits.load:
        return f"foreign {who}, load {gpu.load:.0f} %"
    if need.alone and (gpu.booked or gpu.foreign_mib > IDLE_MIB):
        return "busy" if gpu.booked else f"foreign {who} holds {_size(gpu.foreign_mib)}"
    return None


def place(
    need: Need, allowed: tuple[int, ...] | None, gpus: Sequence[GpuView], limits: Limits
) -> tuple[str, ...] | Reason:
    """The UUIDs of the GPUs for one job, by index, or why it waits.

    Best fit (the least share left over), then the least load, then the lowest index.
    """
    candidates = [g for g in gpus if allowed is None or g.index in allowed]
    if need.count > len(candidates):
        return Reason(_infeasible(need, allowed, len(gpus), len(candidates)), infeasible=True)
    obstacles = [(gpu, obstacle(gpu, need, limits)) for gpu in candidates]
    fits = [gpu for gpu, why in obstacles if why is None]
    if len(fits) < need.count:
        return Reason(_waiting(need, len(fits), [(g, why) for g, why in obstacles if why is not None]))
    fits.sort(key=lambda g: (-g.booked, g.load if g.load is not None else 100.0, g.index))
    chosen = sorted(fits[: need.count], key=lambda g: g.index)
    return tuple(gpu.uuid for gpu in chosen)


def _infeasible(need: Need, allowed: tuple[int, ...] | None, managed: int, candidates: int) -> str:
    if allowed is not None and candidates < min(len(allowed), managed):
        return f"infeasible: needs {need}; of its allowed GPUs {candidates} managed"
    have = f"{candidates} allowed" if allowed is not None else f"{managed} managed"
    return f"infeasible: needs {need}, {have}"


def _waiting(need: Need, free: int, obstacles: Sequence[tuple[GpuView, str]]) -> str:
    # Plain "busy" is what the count already says; everything else a user can do something about.
    told = [f"GPU {gpu.index} {why}" for gpu, why in obstacles if why != "busy"]
    more = f", GPUs {', '.join(told[:4])}".replace("GPUs GPU", "GPU", 1) if told else ""
    rest = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return f"needs {need}, {free} free{more}{rest}"


def _size(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"
