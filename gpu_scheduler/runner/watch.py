"""Supervises an attempt whose process was started elsewhere: starts nothing, and waits for its end.

A request to stop is carried out as for a command. A watcher that is itself ended, as in a shutdown, leaves
the process alone and publishes no result, so that another watcher can follow.
"""

from __future__ import annotations

import os

from . import pending_signals
from .attempt_supervisor import AttemptSupervisor
from .output import LogWriter, Poller
from .watched_process import WatchedProcess, is_alive, signal_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Seconds after the end of a stopped process until its remaining descendants get SIGKILL, and until they are
#: given up.
_KILL_AFTER_S, _GIVE_UP_AFTER_S = 3.0, 5.0
_RESCAN_S = 0.03


class WatchSupervisor(AttemptSupervisor):
    """Supervises one attempt that watches a process, from the claim to the result."""

    def __init__(self, folder: int, spec: dict[str, Any]) -> None:
        poller = Poller()
        self._process = WatchedProcess(spec["watch"], poller)
        # The log is the process's own file.
        super().__init__(folder, spec, poller, LogWriter(None), self._process)

    def _begin(self) -> bool:
        # The process already uses its GPUs, so it is watched even if they cannot be claimed. A `stop` that
        # exists already is read as soon as the process is watched.
        self._gpus.claim(self._process)
        self._signals.listen()
        self._process.watch()
        return True

    def _shut_down(self) -> None:
        """Ends this watcher, unless it carries out a request to stop."""
        if self._termination.cause is None:
            self._result.discard()
            os._exit(0)

    def _find_leftovers(self, since: float) -> Descendants | None:
        """Returns the descendants that a stopped process has left; None if it was not stopped."""
        return Descendants(self._process) if self._termination.cause is not None else None


class Descendants:
    """Ends the processes that a stopped process has left: its signal at once, SIGKILL after 3 s or later.

    survivors: the pids of the processes that could not be ended.
    """

    killed_client = ""

    def __init__(self, process: WatchedProcess) -> None:
        self._processes, self._asked_with = process.descendants, process.asked_with
        self._kill_at = process.ended + _KILL_AFTER_S
        self._give_up_at = process.ended + _GIVE_UP_AFTER_S
        self._first_times = self._kill_at, self._give_up_at
        self._is_signalled = False
        self.survivors: list[int] = []

    def kill_at(self, deadline: float) -> None:
        """Sets the time of SIGKILL, unless it is earlier than 3 s after the end of the process."""
        first_kill_at, give_up_at = self._first_times
        self._kill_at = max(first_kill_at, deadline)
        self._give_up_at = self._kill_at + give_up_at - first_kill_at

    def step(self, now: float) -> float | None:
        """Signals the processes that are left; returns the seconds until the next step.

        Returns None if no process is left or the time is up.
        """
        left = {pid: ticks for pid, ticks in self._processes.items() if is_alive(pid, ticks)}
        if not left:
            return None
        if now >= self._give_up_at:
            self.survivors = sorted(left)
            return None
        if now >= self._kill_at:
            signal_processes(left, pending_signals.KILL)
        elif not self._is_signalled:
            self._is_signalled = True
            signal_processes(left, self._asked_with)
            signal_processes(left, pending_signals.CONT)
        return _RESCAN_S
