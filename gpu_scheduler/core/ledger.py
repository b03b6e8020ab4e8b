"""Computes what an attempt is charged on one GPU, in thousandths and in MiB (docs/design.md, Accounting).

A declared quantity counts as declared. Memory that was not declared, or exceeds its declaration, counts at
its observed peak plus the spike buffer, because the next sample may be higher.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.share import WHOLE

#: Memory that a driver may use without a process, MiB; the default of `--margin` leaves as much free.
DRIVER_MIB = 512


@dataclass(frozen=True)
class Booking:
    """The allocation of an attempt on one GPU.

    share: thousandths, 0 = none declared; vram: MiB declared, None = none; whole: no other job of ours may
    run there; peak_mib: highest observed use, None = not observed yet, or unknown.
    """

    share: int = 0
    vram: int | None = None
    whole: bool = False
    peak: int | None = None

    @classmethod
    def of_row(cls, row: Any, uuid: str) -> Booking:
        """Returns the allocation on one GPU from a row of the table `attempt`."""
        return cls(row["share"], row["vram"], bool(row["whole"]), json.loads(row["peaks"]).get(uuid))


def declared_mib(booking: Booking, total_mib: int | None) -> int | None:
    """Returns the MiB that a declared vram or share comes to; None: the size of the GPU is unknown.

    A share with the GPU to itself counts as all of its memory.
    """
    if booking.vram is not None:
        return booking.vram
    if not total_mib:
        return None
    return total_mib if booking.whole else max(1, booking.share * total_mib // WHOLE)


def buffered(peak_mib: int, spike: float) -> int:
    """Returns an observed peak plus its spike buffer, MiB. spike_buffer: the fraction of `--spike-buffer`."""
    # A fraction such as 0.1 is not exact: 10000 MiB must become 11000, never 11001.
    return math.ceil(round(peak_mib * (1 + spike), 6))


def memory_of(booking: Booking, total_mib: int, spike: float) -> int:
    """Returns the memory that an allocation counts for, MiB."""
    if booking.whole or (booking.vram is None and not booking.share):
        return total_mib
    peak = booking.peak or 0
    if booking.vram is not None:
        return booking.vram if peak <= booking.vram else buffered(peak, spike)
    return max(declared_mib(booking, total_mib) or 0, buffered(peak, spike))


def share_of(booking: Booking, total_mib: int | None, spike: float) -> int:
    """Returns the share that an allocation counts for, thousandths.

    total_mib None: the size is unknown, and declared memory counts as the whole GPU.
    """
    if booking.whole or (booking.vram is None and not booking.share):
        return WHOLE
    if booking.share:
        return booking.share
    if not total_mib:
        return WHOLE
    return min(WHOLE, -(-WHOLE * memory_of(booking, total_mib, spike) // total_mib))
