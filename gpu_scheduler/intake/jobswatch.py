"""Placeholder until the reader is in."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.store.store import Store


class JobsWatch:
    """x"""

    def __init__(self, store: Store, path: str) -> None:
        self.path = Path(path)
        self.again_at: float | None = None
        self.pending = False

    def look(self, now: float) -> None:
        """x"""
