"""Reads the time on which decisions are based. No other module reads it for a decision."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_scheduler.core.model.now import Now


class Clock:
    """Reads the system clocks. Boot time also passes while the machine is suspended, and never jumps."""

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> Now:
        """Returns the current wall time, boot time and boot id."""
        return Now(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id)
