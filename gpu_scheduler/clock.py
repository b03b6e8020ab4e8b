"""The only reader of the time for decisions."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_scheduler.core.now import Now


class Clock:
    """The real clocks. Boot seconds count through suspend and never jump."""

    def __init__(self) -> None:
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def now(self) -> Now:
        """One reading."""
        return Now(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id)
