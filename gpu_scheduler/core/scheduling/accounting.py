"""Computes the share and the memory that an attempt takes up on one GPU (docs/design.md, Accounting).

A declared quantity counts as declared. Memory that was not declared, or exceeds its declaration, counts at
its observed peak plus the spike buffer, because the next sample may be higher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gpu_scheduler.core.model.attempt import Allocation
from gpu_scheduler.core.model.units import WHOLE

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job_spec import Need
    from gpu_scheduler.core.scheduling.settings import Limits

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
