"""Defines the executor, which starts the runner of an attempt; its result is read from the attempt folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class LaunchError(Exception):
    """A failure to start a runner. The text names the reason and the remedy."""


class Executor(Protocol):
    """Starts runners. A launch without an exception is no success yet: that is the runner's claim."""

    def launch(self, folder: Path) -> None:
        """Starts a runner for a prepared folder, without waiting for it. Raises LaunchError."""

    def reap(self) -> None:
        """Collects its ended processes without blocking. `launch` does so too."""

    def close(self) -> None:
        """Releases its resources; its runners keep running."""
