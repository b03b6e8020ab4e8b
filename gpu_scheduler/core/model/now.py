"""The current time, for decisions that need no other facts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Now:
    """The current time, read from two clocks.

    wall: seconds since 1970, for display; boot: seconds since boot (CLOCK_BOOTTIME), for every deadline;
    boot_id: the id of that boot.
    """

    wall: float
    boot: float
    boot_id: str
