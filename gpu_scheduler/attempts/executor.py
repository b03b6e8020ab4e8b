"""Defines the port to executors, each of which runs attempts in its own way: on this machine or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_scheduler.core.model.attempt_status import AttemptStatus, RunnerIdentity, StopRequest

#: The executors whose attempts are followed through their folders, also by front ends.
LOCAL_EXECUTORS = ("direct", "screen")


class LaunchError(Exception):
    """A failure to launch an attempt. The text names the reason and the remedy."""


@dataclass(frozen=True)
class AttemptRef:
    """Identifies one attempt to its executor.

    token: the random mark by which an executor recognises the attempt. folder: its attempt folder, which
    contains spec.json and command.sh when it is launched; an executor need not use it. runner: its runner
    process, None = not known. executor: the name of its executor.
    """

    job_id: int
    number: int
    token: str
    folder: Path
    runner: RunnerIdentity | None = None
    executor: str = "direct"


class Executor(Protocol):
    """Launches, observes and stops single attempts. All verbs but `launch` may be repeated without harm.

    name: recorded with each attempt that it launches, and never changed. is_local: its processes are on this
    machine, where a scan of /proc finds them by the token. has_terminal: the command runs in a terminal.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def has_terminal(self) -> bool: ...

    def launch(self, attempt: AttemptRef) -> None:
        """Makes an attempt run, without waiting for it. Raises LaunchError.

        A launch that raises nothing has not succeeded yet: only a status with a claim shows success. However
        often an attempt is launched, its command begins at most once.
        """

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Returns the current status of an attempt. Raises OSError if it cannot be read now."""

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Asks an attempt to end; a request weaker than an earlier one changes nothing. Raises OSError."""

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Reminds an attempt that has not ended of the request to stop; never makes a new request."""

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Ensures that an attempt that has not begun never begins; leaves an attempt that has begun
        unchanged.

        The next observation shows which of the two applied. Raises OSError.
        """

    def kill(self, attempt: AttemptRef) -> None:
        """Ends an attempt that did not end within its grace period, without leaving it time for a result."""

    def reap(self) -> None:
        """Collects its ended processes without blocking; `launch` also does this."""

    def close(self) -> None:
        """Releases its resources; its attempts keep running."""


class Executors:
    """The executors of a scheduler, by name. default: launches new attempts."""

    def __init__(self, default: Executor, *others: Executor) -> None:
        self.default = default
        self._by_name = {one.name: one for one in (*others, default)}

    def of(self, attempt: AttemptRef) -> Executor:
        """Returns the executor of an attempt. Raises LaunchError if this scheduler does not have it."""
        try:
            return self._by_name[attempt.executor]
        except KeyError:
            raise LaunchError(f"this scheduler has no executor {attempt.executor!r}") from None

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Returns the current status of an attempt, "unknown" if its executor is missing. Raises OSError."""
        try:
            return self.of(attempt).observe(attempt)
        except LaunchError as error:
            return AttemptStatus(claim="unknown", anomalies=(str(error),))

    def is_local(self, attempt: AttemptRef) -> bool:
        """Returns whether the processes of an attempt are on this machine."""
        return attempt.executor in self._by_name and self.of(attempt).is_local

    def reap(self) -> None:
        """Collects the ended processes of all executors."""
        for executor in self._by_name.values():
            executor.reap()

    def close(self) -> None:
        """Releases the resources of all executors."""
        for executor in self._by_name.values():
            executor.close()
