"""Executors start the runner of an attempt, and nothing else: what becomes of it is read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class LaunchError(Exception):
    """A runner could not be started. The text says why, and what to do about it."""


class Executor(Protocol):
    """Starts runners. A launch that returns quietly promises nothing: success is the runner's claim."""

    def launch(self, folder: Path) -> None:
        """Start a runner for a prepared folder, without waiting for it. Raises LaunchError."""

    def reap(self) -> None:
        """Collect those of its processes that have ended; never waits. `launch` does it too."""

    def close(self) -> None:
        """Let go of what it holds; its runners go on."""
