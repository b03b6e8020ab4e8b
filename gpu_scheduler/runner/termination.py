"""Decides why a command is being terminated, when the grace period ends, and what happens then.

Also keeps the signals that the runner receives: blocks them at first, and later ignores or queues them. A
queued signal interrupts the poll in progress and is processed after it.

Callers pass the current time (`now`, in monotonic seconds) and send the signals themselves.

The newest request to stop is the file `stop` in the attempt folder. A request that is withdrawn is renamed to
`withdrawn`, and one that may have been withdrawn before is renamed to `ignored` first. Files are renamed
instead of removed, so that a request that has just replaced the one in question can still be read.
"""

from __future__ import annotations

import os

from .folder import OLDER_STOP, STOP_FIELDS, forget_missing, invalid_field, try_load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Mapping
    from typing import Any
else:
    # Importing `signal` creates enumerations, which would delay the job by 8 ms.
    import _signal

TERM, USR1, CHLD, WINCH = _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGCHLD, _signal.SIGWINCH
KILL, CONT, HUP = _signal.SIGKILL, _signal.SIGCONT, _signal.SIGHUP
_HANDLED = (TERM, USR1, CHLD, WINCH)
#: The signals with which a command can be asked to end, by name.
STOP_SIGNALS = {
    name: getattr(_signal, f"SIG{name}") for name in ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT")
}
_IGNORED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGPIPE)

#: All signals that sigaction accepts. The command starts with the default action for each of them.
ALL = _signal.valid_signals()


def block_signals() -> None:
    """Blocks the handled signals, so that none is lost before the handlers are installed."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _HANDLED)


def unblock_signals() -> None:
    """Unblocks the handled signals."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _HANDLED)


class PendingSignals:
    """The signals that have arrived but are not processed yet. fd: becomes readable when a signal arrives."""

    def __init__(self) -> None:
        self._pending: set[int] = set()
        self.fd, self._wake = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._wake, False)

    def listen(self) -> None:
        """Installs the handlers. Call this before the command is started.

        If the runner inherited "ignore" as its action for SIGCHLD, the kernel would discard the exit code of
        a command that was started earlier.
        """
        for number in _IGNORED:
            _signal.signal(number, _signal.SIG_IGN)
        for number in _HANDLED:
            _signal.signal(number, self._handle)
        _signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _handle(self, number: int, _frame: object) -> None:
        self._pending.add(number)

    def drain_wakeup(self, _events: int) -> None:
        """Empties the wake-up pipe."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def has(self, *numbers: int) -> bool:
        """Returns whether one of these signals has arrived and was not taken."""
        return not self._pending.isdisjoint(numbers)

    def take(self, number: int) -> bool:
        """Returns whether this signal has arrived since the last call for the same signal."""
        if number in self._pending:
            self._pending.discard(number)
            return True
        return False


#: The rank of each cause. Of several causes, the highest is reported. An unknown cause counts as a cancel.
_RANK: Mapping[str | None, int] = {None: 0, "machine": 1, "preempted": 2, "timed_out": 3, "cancelled": 4}
_HIGHEST = 4
#: Seconds after which SIGKILL is repeated if the command has not ended.
_KILL_EVERY_S = 1.0
#: The outcome of a command whose exit code does not tell it.
_VERDICTS = {
    "unfinished": "failed: {}, but its work was still running in the background",
    "closed_pipe": "completed: {}, because a program in its pipe wrote more than the next one read",
}


class Termination:
    """The termination of one command: its cause and its deadline.

    cause: None before any request, and after a request has been withdrawn.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        self.deadline: float | None = None
        self._on_timeout = "kill"
        self._machine_deadline: float | None = None
        self._sent: tuple[str, ...] = ()
        self._open_ids: tuple[str, ...] = ()
        self._withdrawn_ids: tuple[str, ...] = ()

    def request(
        self,
        cause: str,
        grace_s: float,
        on_timeout: str,
        now: float,
        request_id: str = "",
        signal: str = "TERM",
    ) -> bool:
        """Records a request to terminate; returns True if the caller must send its signal to the command.

        A command gets each signal only once, however many requests there are, and none for a request that is
        weaker than an earlier one.
        """
        takes_effect = _RANK.get(cause, _HIGHEST) >= _RANK.get(self.cause, _HIGHEST)
        is_new = (takes_effect or cause == "machine") and signal not in self._sent
        if is_new:
            self._sent += (signal,)
        if request_id and request_id not in self._open_ids:
            self._open_ids += (request_id,)
        until = now + max(0.0, grace_s)
        if cause == "machine":
            self._machine_deadline = until
        if takes_effect:
            forced = cause == self.cause and self._on_timeout == "kill"
            self.cause, self._on_timeout = cause, "kill" if forced else on_timeout
            # A later request with the same signal never extends the grace period, because the command has
            # already received this signal.
            self.deadline = until if is_new or self.deadline is None else min(self.deadline, until)
        return is_new

    def due(self, now: float) -> str | None:
        """Returns "kill" or "withdraw" if the grace period is over, otherwise None."""
        if self.deadline is None or now < self.deadline:
            return None
        if self._on_timeout == "withdraw":
            return "withdraw"
        self.deadline = now + _KILL_EVERY_S
        return "kill"

    def expire(self, now: float) -> None:
        """Ends the grace period now, whatever was requested; without a request, the cause is "machine"."""
        self.request("machine", 0.0, "kill", now)
        self.deadline, self._on_timeout = now, "kill"

    def withdraw(self, taken_id: str = "") -> None:
        """Withdraws all open requests. The command keeps running unless the machine is shutting down.

        taken_id: the id of the request in the file that was withdrawn; "" if it has none.
        """
        self._withdrawn_ids += (*self._open_ids, *([taken_id] if taken_id else ()))
        self._open_ids = ()
        self.cause = "machine" if self._machine_deadline is not None else None
        self.deadline = self._machine_deadline
        self._on_timeout = "kill"
        self._sent = ("TERM",) if self.cause is not None else ()

    def has_withdrawn(self, request_id: str) -> bool:
        """Returns whether the request with this id has been withdrawn. It has no effect any more."""
        return request_id in self._withdrawn_ids


def describe_outcome(
    cause: str | None, began: bool, exit_code: int | None, signal: int | None, verdict: str | None = None
) -> str:
    """Describes the outcome for the last line of the log. verdict: a key of `_VERDICTS`."""
    how = f"signal {signal}" if signal is not None else f"exit code {exit_code}"
    if exit_code is None and signal is None:
        how = "nothing was started"
    if cause is not None:
        return f"{'interrupted' if cause == 'machine' else cause}: {how}"
    if not began:
        return f"not_started: {how}"
    if verdict is not None:
        return _VERDICTS[verdict].format(how)
    return f"{'completed' if exit_code == 0 else 'failed'}: {how}"


class StopFiles:
    """The requests to stop in one attempt folder. folder: its descriptor; termination: of its command.

    is_shared: whether other machines write into the folder.
    """

    def __init__(self, folder: int, token: str, termination: Termination, is_shared: bool = False) -> None:
        self._folder, self._token, self._termination = folder, token, termination
        self._is_shared = is_shared

    def read(self) -> dict[str, Any] | None:
        """Returns the request to obey; None if there is none. Discards one that was already withdrawn."""
        stop = self._load("stop")
        if stop is None and self._is_shared:
            forget_missing(self._folder)
            stop = self._load("stop")
        return self._discard_stale() if stop is not None and self._is_stale(stop) else stop

    def withdraw(self) -> dict[str, Any] | None:
        """Withdraws the newest request and returns it; returns None if there is none."""
        try:
            self._rename("stop", "withdrawn")
        except OSError:
            pass
        return self._load("withdrawn")

    def _is_stale(self, stop: dict[str, Any]) -> bool:
        """Returns whether a request has been withdrawn, so that its writer could not know of that."""
        return stop["follow"] == "withdraw" and self._termination.has_withdrawn(stop["id"])

    def _discard_stale(self) -> dict[str, Any] | None:
        """Discards a withdrawn request that was written again; returns one that has just replaced it."""
        try:
            self._rename("stop", "ignored")
        except OSError:
            return None
        taken = self._load("ignored")
        try:
            if taken is None or self._is_stale(taken):
                self._rename("ignored", "withdrawn")
                return None
            os.link("ignored", "stop", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            pass  # an even newer request is in its place, and its writer signals this runner
        return taken

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _load(self, name: str) -> dict[str, Any] | None:
        stop = try_load(self._folder, name)
        if not isinstance(stop, dict) or stop.get("token") != self._token:
            return None
        stop = {**OLDER_STOP, **stop}
        return None if invalid_field(stop, STOP_FIELDS) else stop
