"""Starts processes that outlive the scheduler.

Each one has its own session, no terminal, default signal actions and only a few environment variables.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

#: Variables with which Python and Screen find programs, libraries and sockets, and decode file names.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "SCREENDIR")


def minimal_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the few variables that a runner needs. The job's variables come from the attempt folder."""
    return {name: base[name] for name in _KEPT_VARIABLES if name in base}


class ChildProcesses:
    """Starts child processes, and collects ended ones without blocking."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @property
    def running(self) -> int:
        """The number of child processes that have not yet been collected."""
        return len(self._pids)

    def start(self, argv: Sequence[str], env: Mapping[str, str], pipes: tuple[int, int] | None = None) -> int:
        """Starts a process and returns its pid. Raises OSError, including if the program cannot be executed.

        pipes: the descriptors that become its standard input and output; /dev/null if None.
        """
        self.reap()
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)
        ]
        if pipes is not None:
            actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(pipes)]
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals(),
        )
        self._pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kills a child process. Does nothing after it has been collected, because its pid may be reused."""
        if pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collects the child processes that have ended."""
        for pid in tuple(self._pids):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._pids.discard(pid)
