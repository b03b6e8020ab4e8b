"""Computes what an attempt takes up on one GPU: share, memory and claim (docs/design.md, Accounting).

A declared quantity counts as declared. Memory that was not declared, or exceeds its declaration, counts at
its observed peak plus the spike buffer, because the next sample may be higher.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gpu_scheduler.core.model.job import Allocation
from gpu_scheduler.core.model.values import WHOLE

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
