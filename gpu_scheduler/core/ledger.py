"""What an attempt books on one GPU: the two ledgers, in thousandths and in MiB (docs/design.md, Accounting).

A declared quantity counts as declared; memory that was not declared, or is seen to exceed what was, counts at
the peak that was seen, with a buffer for what the next sample may show.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.share import WHOLE

#: What a driver may keep for itself, in use and of no process, MiB: `--margin` leaves as much free anyway.
DRIVER_MIB = 512


@dataclass(frozen=True)
class Booking:
    """share: thousandths, 0 = none declared; vram: MiB declared, None = none; whole: no other job of ours is
    to be there; peak: MiB seen there, None = nothing yet, or not to be told."""

    share: int = 0
    vram: int | None = None
    whole: bool = False
    peak: int | None = None

    @classmethod
    def of_row(cls, row: Any, uuid: str) -> Booking:
        """What a row of the table attempt books on one of its GPUs."""
        return cls(row["share"], row["vram"], bool(row["whole"]), json.loads(row["peaks"]).get(uuid))


def declared_mib(booking: Booking, total_mib: int | None) -> int | None:
    """MiB of a GPU that a declared vram or share comes to; None: the size of the GPU is not known.

    A share with the GPU to itself has all of its memory.
    """
    if booking.vram is not None:
        return booking.vram
    if not total_mib:
        return None
    return total_mib if booking.whole else max(1, booking.share * total_mib // WHOLE)


def buffered(peak_mib: int, spike: float) -> int:
    """An observed peak with its buffer, MiB. spike: the fraction of `--spike-buffer`."""
    # A fraction such as 0.1 is not exact: 10000 MiB with it are 11000, never 11001.
    return math.ceil(round(peak_mib * (1 + spike), 6))


def memory_of(booking: Booking, total_mib: int, spike: float) -> int:
    """MiB of the memory ledger."""
    if booking.whole or (booking.vram is None and not booking.share):
        return total_mib
    peak = booking.peak or 0
    if booking.vram is not None:
        return booking.vram if peak <= booking.vram else buffered(peak, spike)
    return max(declared_mib(booking, total_mib) or 0, buffered(peak, spike))


def share_of(booking: Booking, total_mib: int | None, spike: float) -> int:
    """Thousandths of the share ledger. total_mib None: not known, then a declared memory fills the GPU."""
    if booking.whole or (booking.vram is None and not booking.share):
        return WHOLE
    if booking.share:
        return booking.share
    if not total_mib:
        return WHOLE
    return min(WHOLE, -(-WHOLE * memory_of(booking, total_mib, spike) // total_mib))
