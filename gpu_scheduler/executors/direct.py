"""Starts runners as independent processes without a terminal, which survive the scheduler."""

from __future__ import annotations

import os
import sys

from gpu_scheduler.attempts.executor import AttemptRef, LaunchError
from gpu_scheduler.attempts.local import LocalAttempts
from gpu_scheduler.executors.spawn import ChildProcesses, minimal_environment
from gpu_scheduler.runner.folder import START, TOKEN
from gpu_scheduler.runner.spec import read_spec


class DirectExecutor(LocalAttempts):
    """An executor that starts each runner directly.

    interpreter: the path of a Python; start: the script that makes it a runner.
    """

    name = "direct"
    has_terminal = False

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = ChildProcesses()

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            env = minimal_environment(os.environ) | {TOKEN: read_spec(attempt.folder)["token"]}
            self._children.start((*self._command, str(attempt.folder)), env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error

    @property
    def running(self) -> int:
        """The number of runners that have not been collected."""
        return self._children.running

    def reap(self) -> None:
        """Collects ended runners."""
        self._children.reap()

    def close(self) -> None:
        """Does nothing: there are no resources to release."""
