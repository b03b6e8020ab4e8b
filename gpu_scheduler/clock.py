"""Reads the time for all decisions; nothing else does."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_scheduler.core.model.now import Now


class Clock:
    """The system clocks. Boot seconds continue during suspend and never jump."""

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> Now:
        """Returns the current wall time, boot time and boot id."""
        return Now(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id)
