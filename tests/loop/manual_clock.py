"""A clock whose time a test sets."""

from __future__ import annotations

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.values import Now


class ManualClock(Clock):
    """A clock. The test sets its attributes `boot` and `boot_id`."""

    def __init__(self) -> None:
        self.boot_id = "boot"
        self.boot = 100.0

    def now(self) -> Now:
        return Now(1_000_000.0 + self.boot, self.boot, self.boot_id)
