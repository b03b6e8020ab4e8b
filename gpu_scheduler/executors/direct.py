"""Starts runners as independent processes, which have no terminal and outlive the scheduler."""

from __future__ import annotations

import os

from gpu_scheduler.attempts.executor import AttemptRef, LaunchError
from gpu_scheduler.executors.local import LocalExecutor
from gpu_scheduler.executors.spawn import minimal_environment
from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.runner.spec import read_spec


class DirectExecutor(LocalExecutor):
    """An executor that starts each runner directly."""

    name = "direct"
    has_terminal = False

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            env = minimal_environment(os.environ) | {TOKEN: read_spec(attempt.folder)["token"]}
            self._children.start((*self._command, str(attempt.folder)), env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error
