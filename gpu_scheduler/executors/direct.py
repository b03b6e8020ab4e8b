"""Runners as processes of their own, without a terminal; they survive the scheduler."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpu_scheduler.executors import LaunchError
from gpu_scheduler.executors.spawn import Children, bare_environment
from gpu_scheduler.runner.folder import START, TOKEN, spec_of


class DirectExecutor:
    """interpreter: a real Python, not looked up on PATH; start: the file that makes it a runner."""

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = Children()

    def launch(self, folder: Path) -> None:
        """Start a runner. Raises LaunchError."""
        try:
            env = bare_environment(os.environ) | {TOKEN: spec_of(folder)["token"]}
            self._children.start((*self._command, str(folder)), env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error

    @property
    def running(self) -> int:
        """How many runners have not been collected."""
        return self._children.running

    def reap(self) -> None:
        """Collect runners that have ended."""
        self._children.reap()

    def close(self) -> None:
        """It holds nothing."""
