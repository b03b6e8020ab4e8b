"""Watches a process that was started elsewhere, which is then the attempt: signals it, and sees its end.

The process is signalled only for a request to stop, which is carried out as for a command. The process group
is never signalled, because it may be that of the user's shell. A pidfd shows the end of the process and
receives the signals, so a reused pid is never taken for it. A watcher that is itself ended, as in a shutdown,
leaves the process alone and publishes no result, so that another watcher can follow.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time

from .folder import boot_id, fields_of, has_ended, is_alive, try_read_proc
from .output import Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal

#: PIDFD_GET_INFO in Linux 6.15: the size and the fields of the first version of `struct pidfd_info`.
_INFO_BYTES, _EXIT_CODE_AT = 64, 60
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_WITH_EXIT_CODE = 1 << 3
#: Seconds after the end of a stopped process until its remaining descendants get SIGKILL, and until they are
#: given up.
_KILL_AFTER_S, _GIVE_UP_AFTER_S = 3.0, 5.0
_RESCAN_S = 0.03


class WatchedProcess:
    """The process that a runner watches, with the interface of `child.Child`.

    exit_code, signal   how the process ended; both None while it runs, or if the kernel did not tell.
    """

    #: The process began before the runner. A failure to claim its GPUs does not end it.
    began = True
    message = failure = shortage = other_failure = None

    def __init__(self, watch: dict[str, Any], poller: Poller) -> None:
        """Opens the process, so that its pid cannot be reused unnoticed. Raises OSError in a shortage."""
        self._pid, self._ticks = watch["pid"], watch["start_ticks"]
        self._poller = poller
        self._fd = _open(self._pid, self._ticks) if watch["boot_id"] == boot_id() else None
        #: The descendants that it had when it was signalled: their start times in ticks, by pid.
        self.descendants: dict[int, int] = {}
        #: The signal that asked it to end.
        self.asked_with: int = _signal.SIGTERM
        self.running = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.started_at: float | None = watch["started_at"]
        self.spawned = self.ended = time.monotonic()

    def watch(self) -> None:
        """Begins to watch. If the process is gone, or another one has its pid, it has ended."""
        if self._fd is not None:
            self.running = True
            self._poller.watch(self._fd, select.POLLIN, self._record_end)
            # If it has ended already, a request to stop that is open comes too late.
            self._poller.wait(0)

    def fail(self, problem: str, failure: str | None = None, number: int | None = None) -> None:
        """Ignores that the GPUs cannot be claimed, because the process uses them already."""

    def reap(self) -> None:
        """Collects orphans. A watcher has none."""

    def signal_group(self, number: int) -> None:
        """Signals the process, and for SIGKILL its descendants too; never its process group."""
        if not self.running:
            return
        if number not in (_signal.SIGCONT, _signal.SIGKILL):
            self.asked_with = number
        if number != _signal.SIGCONT:
            self.descendants |= _living_descendants(self._pid)
        assert self._fd is not None
        try:
            _signal.pidfd_send_signal(self._fd, number)
        except OSError:
            pass
        if number == _signal.SIGKILL:
            signal_processes(self.descendants, number)

    def ask_to_end(self, number: int) -> None:
        """Sends a signal to the process."""
        self.signal_group(number)
        # A stopped process would not receive the signal.
        self.signal_group(_signal.SIGCONT)

    def check_shells(self) -> None:
        """Does nothing: the process is signalled at once, even if it is a shell."""

    def continue_shells(self) -> None:
        """Does nothing, because no shell waits."""

    def _record_end(self, _events: int) -> None:
        assert self._fd is not None
        self._poller.unwatch(self._fd)
        # A zombie shows its status in /proc. Once its parent has collected it, only the pidfd has it.
        status = _status_of_zombie(self._pid, self._ticks)
        if status is None:
            status = _status_in_pidfd(self._fd)
        os.close(self._fd)
        self._fd, self.running, self.ended = None, False, time.monotonic()
        if status is not None and os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        elif status is not None and os.WIFEXITED(status):
            self.exit_code = os.WEXITSTATUS(status)


def _open(pid: int, ticks: int) -> int | None:
    """Opens a pidfd of the process with this pid and start time; returns None if it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise
    # Read after the pidfd is open: from then on, it refers to the process with these fields or to none.
    fields = fields_of(pid)
    if fields is not None and int(fields[19]) == ticks:
        return fd
    os.close(fd)
    return None


def _living_descendants(pid: int) -> dict[int, int]:
    """Returns the start times of the descendants that belong to no attempt, by pid.

    A runner, and every process of a job, carries a token. If the process started a scheduler, its jobs are
    not ended with it.
    """
    try:
        from .process_scan import descendants, environment, token_in

        return {one: ticks for one, ticks in descendants(pid).items() if not token_in(environment(one))}
    except (ImportError, OSError):
        return {}  # a shortage of open files or memory


def signal_processes(processes: dict[int, int], number: int) -> None:
    """Signals processes, but never a reused pid. processes: their start times in ticks, by pid."""
    from .process_scan import send_signal

    for pid, ticks in processes.items():
        send_signal(pid, ticks, number)


def _status_of_zombie(pid: int, ticks: int) -> int | None:
    """Returns the wait status of an ended process that its parent has not collected; None if unknown.

    The kernel shows 0 to readers who may not trace the process, so only a process of this user counts.
    """
    try:
        fields = fields_of(pid)
        if fields is None or int(fields[19]) != ticks or len(fields) < 50 or not has_ended(fields):
            return None
        for line in try_read_proc(pid, "status").splitlines():
            if line.startswith(b"Uid:"):
                own = {int(word) for word in line.split()[1:4]} == {os.geteuid()}
                return int(fields[49]) if own or os.geteuid() == 0 else None
    except OSError:
        pass
    return None


def _status_in_pidfd(fd: int) -> int | None:
    """Returns the wait status of a collected process; None if the kernel does not give it."""
    info = bytearray(_INFO_BYTES)
    info[0] = _WITH_EXIT_CODE
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    if not info[0] & _WITH_EXIT_CODE:
        return None
    return int.from_bytes(info[_EXIT_CODE_AT : _EXIT_CODE_AT + 4], "little", signed=True)


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
            signal_processes(left, _signal.SIGKILL)
        elif not self._is_signalled:
            self._is_signalled = True
            signal_processes(left, self._asked_with)
            signal_processes(left, _signal.SIGCONT)
        return _RESCAN_S
