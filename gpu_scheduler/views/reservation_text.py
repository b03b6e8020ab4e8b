"""Formats the reservation of GPUs by queue order."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.model.gpu_list import format_gpu_list
from gpu_scheduler.core.model.gpu_obstacle import GpuObstacle, ObstacleKind
from gpu_scheduler.views.progress_text import finish_text


def gpus_are(indices: Sequence[int]) -> str:
    """Formats GPUs as a subject with its verb: "GPU 2 is", "GPUs 0-7 are"."""
    return f"GPU{'' if len(indices) == 1 else 's'} {format_gpu_list(indices)} {_be(len(indices))}"


def times_text(count: int) -> str:
    """Formats how often something happened: "once", "9 times"."""
    return "once" if count == 1 else f"{count} times"


def reserved_text(job_id: int, start_at: float, overtakes: int | None, now: float) -> str:
    """Formats for whom a GPU is reserved, as a phrase that follows the name of the GPU.

    Example: "reserved for job 7 from about 14:20 (it has been overtaken 9 times)".
    now: in seconds since 1970.
    """
    why = "" if overtakes is None else f" (it has been overtaken {times_text(overtakes)})"
    return f"reserved for job {job_id} from about {finish_text(start_at, now)}{why}"


def own_reservation_text(gpus: Sequence[int], start_at: float, now: float) -> str:
    """Formats the reservation of the job itself: "GPUs 0-7 are reserved for it from about 14:20"."""
    return f"{gpus_are(gpus)} reserved for it from about {finish_text(start_at, now)}"


def is_by_queue_order(found: GpuObstacle) -> bool:
    """Returns whether a GPU is reserved by queue order, rather than for a job that preempts others."""
    return found.kind is ObstacleKind.RESERVED and found.reserved_from is not None


def reserved_gpus_text(obstacles: Sequence[GpuObstacle], now: float) -> str:
    """Formats the GPUs among these that are reserved by queue order, for one job; "" if there are none."""
    kept = [one for one in obstacles if is_by_queue_order(one)]
    if not kept:
        return ""
    first = kept[0]
    text = reserved_text(first.job_id or 0, first.reserved_from or 0.0, first.overtakes, now)
    return f"{gpus_are([one.gpu for one in kept])} {text}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
