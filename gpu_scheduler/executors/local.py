"""Observes and controls attempts whose runners are on this machine, through their attempt folders."""

from __future__ import annotations

import sys

from gpu_scheduler.attempts import folder_status, runner_control
from gpu_scheduler.attempts.executor import AttemptRef
from gpu_scheduler.core.model.attempt_status import AttemptStatus, StopRequest
from gpu_scheduler.executors.spawn import ChildProcesses
from gpu_scheduler.runner.folder import START


class LocalExecutor:
    """The base class of executors on this machine. It provides every method except `launch`.

    interpreter: the path of a Python interpreter. start: the script that it runs to become a runner.
    """

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = ChildProcesses()

    @property
    def running(self) -> int:
        """The number of child processes that have not yet been collected."""
        return self._children.running

    @property
    def is_local(self) -> bool:
        """Always true: a scan of /proc finds the processes of this executor's attempts."""
        return True

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Reads the status of an attempt from its folder. Raises OSError."""
        return folder_status.observe(attempt.folder, attempt.token, attempt.runner)

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Writes `stop` and wakes the runner. Raises OSError."""
        runner_control.request_stop(attempt.folder, attempt.token, stop, attempt.runner)

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Wakes the runner, so that it reads `stop`."""
        runner_control.wake_runner(attempt.folder, attempt.token, attempt.runner)

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Claims the attempt so that it can never run, unless a runner has claimed it. Raises OSError.

        Creates the folder if it is missing.
        """
        runner_control.void_claim(attempt.folder, attempt.token)

    def kill(self, attempt: AttemptRef) -> None:
        """Kills only the runner. A scan of /proc finds the job's processes that are left."""
        runner_control.kill_runner(attempt.folder, attempt.token, attempt.runner)

    def reap(self) -> None:
        """Collects the child processes that have ended."""
        self._children.reap()

    def close(self) -> None:
        """Does nothing: there are no resources to release."""
