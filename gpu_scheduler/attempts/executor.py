"""Defines the interface of executors, which run attempts on this machine or on another one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gpu_scheduler.core.model.job import AttemptStatus, RunnerIdentity, StopRequest

#: The executors whose attempts can be observed through their folders, even by a front end.
LOCAL_EXECUTORS = ("direct", "screen")


class LaunchError(Exception):
    """A failure to launch an attempt. The text gives the reason and the remedy."""


class AttemptRef(Struct, frozen=True):
    """Identifies one attempt to its executor.

    token: the random mark by which an executor recognises the attempt. folder: the attempt folder, which
    contains spec.json and command.sh when the attempt is launched; an executor need not use it. runner: the
    attempt's runner process, or None if it is not known. executor: the name of the attempt's executor.
    """

    job_id: int
    number: int
    token: str
    folder: Path
    runner: RunnerIdentity | None = None
    executor: str = "direct"


class Executor(Protocol):
    """Launches, observes and stops single attempts. Every method except `launch` can safely be repeated.

    name: never changes, because the store records it with each attempt that the executor launches. is_local:
    whether the attempts run on this machine, where a scan of /proc finds their processes by the token.
    has_terminal: whether their commands run in a terminal.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def has_terminal(self) -> bool: ...

    def launch(self, attempt: AttemptRef) -> None:
        """Starts an attempt without waiting for it. Raises LaunchError.

        A return without an error does not mean that the launch succeeded: only a status with a claim shows
        that. However often an attempt is launched, its command begins at most once.
        """

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Returns the current status of an attempt. Raises OSError if it cannot be read now."""

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Asks an attempt to end. Has no effect if an earlier request was stronger. Raises OSError."""

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Reminds an attempt that has not ended of an earlier request to stop. Never makes a new request."""

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Prevents an attempt from beginning; does not affect an attempt that has already begun.

        The next observation shows whether the attempt had begun. Raises OSError.
        """

    def kill(self, attempt: AttemptRef) -> None:
        """Ends an attempt whose grace period is over, without giving it time to write a result."""

    def reap(self) -> None:
        """Collects the executor's ended child processes without blocking. `launch` also does this."""

    def close(self) -> None:
        """Releases the executor's resources. Its attempts keep running."""


class Executors:
    """The executors of a scheduler, by name. default: the one that launches new attempts."""

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
        """Returns the current status of an attempt; "unknown" if its executor is missing. Raises OSError."""
        try:
            return self.of(attempt).observe(attempt)
        except LaunchError as error:
            return AttemptStatus(claim="unknown", anomalies=(str(error),))

    def is_local(self, attempt: AttemptRef) -> bool:
        """Returns whether an attempt's processes run on this machine."""
        return attempt.executor in self._by_name and self.of(attempt).is_local

    def reap(self) -> None:
        """Collects the ended processes of all executors."""
        for executor in self._by_name.values():
            executor.reap()

    def close(self) -> None:
        """Releases the resources of all executors."""
        for executor in self._by_name.values():
            executor.close()
