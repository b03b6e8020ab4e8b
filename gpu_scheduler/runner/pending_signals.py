"""Handles the signals that the runner receives: blocks them at first, and later ignores or queues them.

A queued signal interrupts the poll in progress and is processed after it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    # Importing `signal` creates enumerations, which would delay the job by 8 ms.
    import _signal

TERM, USR1, CHLD, WINCH = _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGCHLD, _signal.SIGWINCH
KILL, STOP, CONT, HUP = _signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCONT, _signal.SIGHUP
_HANDLED = (TERM, USR1, CHLD, WINCH)
#: The signals with which a command can be asked to end, by name.
STOP_SIGNALS = {
    name: getattr(_signal, f"SIG{name}") for name in ("TERM", "INT", "USR1", "USR2", "HUP", "QUIT")
}
_IGNORED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGPIPE)

#: All signals that sigaction accepts. The command starts with the default action for each of them.
ALL = _signal.valid_signals()


def block() -> None:
    """Blocks the handled signals, so that none is lost before the handlers are installed."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _HANDLED)


def unblock() -> None:
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
