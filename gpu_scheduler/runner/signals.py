"""The runner's own signals: blocked, ignored or noted. A noted one wakes the wait and is read later."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    # `signal` itself builds enumerations at its import, for 8 ms that a job would wait.
    import _signal

TERM, USR1, CHLD, WINCH = _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGCHLD, _signal.SIGWINCH
KILL, CONT = _signal.SIGKILL, _signal.SIGCONT
_NOTED = (TERM, USR1, CHLD, WINCH)
_IGNORED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGPIPE)

#: What the command gets back as default: everything that can be said to sigaction.
ALL = _signal.valid_signals()


def block() -> None:
    """First thing: nothing of the protocol is lost before the handlers are up."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _NOTED)


def unblock() -> None:
    """Let come what was held back."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _NOTED)


class Noted:
    """Signals that came. `fd` becomes readable with each; `take` says once whether one came."""

    def __init__(self) -> None:
        self._came: set[int] = set()
        self.fd, self._wake = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._wake, False)

    def listen(self) -> None:
        """Install the handlers; before the spawn: an inherited "ignore SIGCHLD" would eat the exit code."""
        for number in _IGNORED:
            _signal.signal(number, _signal.SIG_IGN)
        for number in _NOTED:
            _signal.signal(number, self._note)
        _signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _note(self, number: int, _frame: object) -> None:
        self._came.add(number)

    def woken(self, _events: int) -> None:
        """Empty the wake-up pipe."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def take(self, number: int) -> bool:
        """Whether this signal came since the last call."""
        if number in self._came:
            self._came.discard(number)
            return True
        return False
