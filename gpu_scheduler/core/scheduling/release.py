"""Releases the GPUs of an ended attempt in two steps.

First, its processes must end. Then, its memory must become free.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.accounting import DRIVER_MIB
from gpu_scheduler.core.scheduling.actions import Action, RecordMemoryReleased, ReleaseAllocation
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.core.scheduling.sweep_timing import sweep


def release_allocation(attempt: Attempt, now: Now, settings: Settings) -> list[Action]:
    """Releases the allocation of an ended attempt. Any remaining processes are ended first."""
    if attempt.survivors is None:
        return []
    if not attempt.survivors:
        return [ReleaseAllocation(attempt.attempt_id)]
    return sweep(attempt, now, settings)


def check_memory_release(
    attempt: Attempt, gpu_memory: Sequence[tuple[float | None, int | None]], now: Now, settings: Settings
) -> list[Action]:
    """Checks whether the memory of a released attempt's GPUs is free again.

    gpu_memory: for each of its GPUs, in the order of `attempt.gpus`, the time of the sample and the
    unattributed memory in MiB; None if unknown.
    """
    if attempt.released_at is None:
        return []
    over = attempt.boot_id != now.boot_id or now.boot >= attempt.released_at + settings.memory_release_s
    released_at = attempt.released_at
    back = all(
        sampled_at is not None
        and sampled_at >= released_at
        and _is_memory_released(mib, attempt.baseline_mib.get(uuid, 0))
        for uuid, (sampled_at, mib) in zip(attempt.gpus, gpu_memory, strict=True)
    )
    return [RecordMemoryReleased(attempt.attempt_id)] if over or back else []


def _is_memory_released(unattributed_mib: int | None, baseline_mib: int) -> bool:
    return unattributed_mib is None or unattributed_mib <= baseline_mib + DRIVER_MIB
