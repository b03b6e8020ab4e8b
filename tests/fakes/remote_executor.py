"""An executor without folders or processes on this machine; its attempts exist only in the test's memory."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.attempts.executors import LaunchError
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.core.model.job import AttemptResult, AttemptStatus, StopRequest


@dataclass
class RemoteAttempt:
    """An attempt at the remote site.

    begun: how often its command began; state: "waiting", "running", "ended", "lost" or "void".
    """

    state: str = "waiting"
    begun: int = 0
    reminders: int = 0
    stop: StopRequest | None = None
    result: AttemptResult | None = None


class RemoteExecutor:
    """Runs attempts in memory. A command runs until `end`, unless `exit_code` is set.

    obeys: attempts end when they are asked to; starts: launched attempts begin at once; refuses: the message
    with which every launch fails.
    """

    name = "remote"
    is_local = False
    has_terminal = False

    def __init__(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        self.obeys = self.starts = True
        self.refuses: str | None = None
        self.attempts: dict[str, RemoteAttempt] = {}

    def launch(self, attempt: AttemptRef) -> None:
        """Begins an attempt unless it has already begun. Raises LaunchError if the site refuses."""
        if self.refuses is not None:
            raise LaunchError(self.refuses)
        one = self._of(attempt)
        if one.state == "waiting" and self.starts:
            one.state, one.begun = "running", one.begun + 1
            if self.exit_code is not None:
                self.end(attempt.token, self.exit_code)

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Returns the status that the site reports."""
        one = self._of(attempt)
        if one.state == "waiting":
            return AttemptStatus()
        if one.state == "void":
            return AttemptStatus("void")
        return AttemptStatus("live" if one.state == "running" else "dead", stop=one.stop, result=one.result)

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Records the request. Ends the attempt if it is running and the site obeys."""
        one = self._of(attempt)
        if one.stop is None or stop.cause == "cancelled":
            one.stop = stop
        if one.state == "running" and self.obeys:
            self.end(attempt.token, None, one.stop.cause)

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Counts the repeated request."""
        self._of(attempt).reminders += 1

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Voids an attempt that has not begun, so that it never begins."""
        one = self._of(attempt)
        if one.state == "waiting":
            one.state = "void"

    def kill(self, attempt: AttemptRef) -> None:
        """Ends a running attempt, which is then lost without a result."""
        one = self._of(attempt)
        if one.state == "running":
            one.state = "lost"

    def reap(self) -> None:
        """Does nothing, because there are no processes to collect."""

    def close(self) -> None:
        """Does nothing, because there are no resources to release."""

    def end(self, token: str, exit_code: int | None, cause: str | None = None) -> None:
        """Ends an attempt with a result. If exit_code is None, SIGTERM ended it."""
        one = self.attempts[token]
        one.state = "ended"
        one.result = AttemptResult(
            cause, exit_code, 15 if exit_code is None else None, True, None, (), 1.0, 2.0
        )

    def _of(self, attempt: AttemptRef) -> RemoteAttempt:
        return self.attempts.setdefault(attempt.token, RemoteAttempt())
