"""Reads the time for scheduling decisions. No other module reads a clock for a decision."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_scheduler.core.model.values import Now


class Clock:
    """Reads the wall clock and the seconds since boot.

    The seconds since boot never jump, and they include the time during which the machine was suspended.
    """

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> Now:
        """Returns the current wall time, the seconds since boot and the boot id."""
        return Now(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id)
