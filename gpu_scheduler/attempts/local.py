"""Observes and controls attempts whose runners are on this machine, through their attempt folders."""

from __future__ import annotations

from gpu_scheduler.attempts import folder_status, runner_control
from gpu_scheduler.attempts.executor import AttemptRef
from gpu_scheduler.core.model.attempt_status import AttemptStatus, StopRequest


class LocalAttempts:
    """All that executors on this machine share: every verb of an executor but `launch`."""

    @property
    def is_local(self) -> bool:
        """True: a scan of /proc finds the processes of its attempts."""
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
        """Voids the claim unless a runner has it; makes a missing folder. Raises OSError."""
        runner_control.void_claim(attempt.folder, attempt.token)

    def kill(self, attempt: AttemptRef) -> None:
        """Kills the runner and no other process; a scan finds the processes that it leaves."""
        runner_control.kill_runner(attempt.folder, attempt.token, attempt.runner)
