"""A reading of the clocks, for decisions that need no other fact."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Now:
    """One reading of the clocks.

    wall: seconds since 1970, for display; boot: CLOCK_BOOTTIME seconds, for every deadline; boot_id: the boot
    from which `boot` counts.
    """

    wall: float
    boot: float
    boot_id: str
