"""Computes the memory that an attempt claims on a GPU (docs/design.md, GPU claims).

A claim covers what the attempt declared, whatever it really uses, so it never changes while the attempt runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.units import WHOLE
from gpu_scheduler.core.scheduling.accounting import Allocation, declared_mib

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
