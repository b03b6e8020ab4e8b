"""Reads from the store the facts on which the advice for a job that ran out of GPU memory depends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler.attempts.log_tail import read_tail
from gpu_scheduler.core.failure.cuda_oom import is_fragmented
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.gpu_admission import counts_as_idle
from gpu_scheduler.core.scheduling.settings import Limits
from gpu_scheduler.store.records import AttemptRecord, GpuRecord
from gpu_scheduler.store.store import Store

#: Another job on the GPU also counts if it ended at most this many seconds earlier, because both jobs may
#: have failed for the same reason.
_RECENT_S = 10.0


@dataclass(frozen=True)
class OomCase:
    """The GPUs of a job when it ran out of memory.

    gpu_count: the number of its GPUs; had_gpus_alone: whether no other process used them; at_limit: whether
    the job declared as much memory as a GPU can provide; larger_gpus: the indices of the GPUs that the job
    may use and that have more memory than its own GPUs; is_fragmented: whether PyTorch held much memory that
    it could not use, and the job does not set the variable against that.
    """

    gpu_count: int = 1
    had_gpus_alone: bool = False
    at_limit: bool = False
    larger_gpus: tuple[int, ...] = ()
    is_fragmented: bool = False


def oom_case(store: Store, attempt: AttemptRecord, spec: JobSpec, ended_at: float) -> OomCase:
    """Returns the facts about the attempt that ran out of memory; ended_at is in seconds since 1970."""
    limits, managed = store.recorded_options(), store.gpus()
    allowed = [gpu for gpu in managed if spec.allowed is None or gpu.index in spec.allowed]
    own_mib = max((gpu.total_mib or 0 for gpu in managed if gpu.uuid in attempt.gpus), default=0)
    foreign_mib = max((_foreign_mib(gpu) for gpu in allowed if gpu.uuid in attempt.gpus), default=0)
    is_set = any("expandable_segments" in value for _, value in spec.env)
    return OomCase(
        gpu_count=len(attempt.gpus),
        had_gpus_alone=counts_as_idle(foreign_mib, limits) and not _has_neighbors(store, attempt, ended_at),
        at_limit=_is_at_limit(attempt, allowed, limits),
        larger_gpus=tuple(gpu.index for gpu in allowed if own_mib and (gpu.total_mib or 0) > own_mib),
        is_fragmented=not is_set and is_fragmented(read_tail(attempt.log)),
    )


def _is_at_limit(attempt: AttemptRecord, allowed: Sequence[GpuRecord], limits: Limits) -> bool:
    """Returns whether the attempt declared as much memory per GPU as that many allowed GPUs can provide."""
    sizes = sorted((gpu.total_mib for gpu in allowed if gpu.total_mib), reverse=True)
    count = len(attempt.gpus)
    if attempt.vram is None or len(sizes) < count:
        return False
    return attempt.vram >= sizes[count - 1] - limits.margin_mib - limits.idle_threshold_mib


def _has_neighbors(store: Store, attempt: AttemptRecord, ended_at: float) -> bool:
    """Returns whether another job was on the attempt's GPUs when it ended.

    A job that had ended before the attempt began does not count.
    """
    since = max(ended_at - _RECENT_S, attempt.created_at)
    return store.was_gpu_shared(attempt, since, ended_at)


def _foreign_mib(gpu: GpuRecord) -> int:
    """Returns the MiB that foreign processes other than displays used on the GPU in the last sample."""
    displays = {process.pid for process in gpu.processes or () if process.graphics_only}
    return sum(mib for pid, _, mib in gpu.foreign_peaks if pid not in displays)
