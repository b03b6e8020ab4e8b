"""Starts processes that outlive the scheduler: own session, no terminal, default signals, few variables."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

#: Variables that an interpreter or SCREEN needs: to be found, to link, and to decode file names.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "SCREENDIR")


def minimal_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the few variables that a runner needs. Those of the job come from its folder."""
    return {name: base[name] for name in _KEPT_VARIABLES if name in base}


class ChildProcesses:
    """Started processes, which are collected after their end without waiting for them."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @property
    def running(self) -> int:
        """The number of processes that have not been collected."""
        return len(self._pids)

    def start(self, argv: Sequence[str], env: Mapping[str, str], pipes: tuple[int, int] | None = None) -> int:
        """Starts a process and returns its pid. Raises OSError, also if the program cannot be executed.

        pipes: its descriptors 0 and 1; None = /dev/null.
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
        """Kills one of them unless it has been collected, after which its pid may have been reused."""
        if pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collects the ended ones."""
        for pid in tuple(self._pids):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._pids.discard(pid)
