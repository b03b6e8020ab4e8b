"""Starting a process that outlives its starter: own session, no terminal, default signals, few variables."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

#: What an interpreter or SCREEN needs of the scheduler's environment: to be found, to link, to decode names.
_NEEDED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "SCREENDIR")


def bare_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The few variables that a runner needs. Everything of the job's comes from its folder."""
    return {name: base[name] for name in _NEEDED if name in base}


class Children:
    """Processes that were started and are not waited for; they are collected after their end."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    @property
    def running(self) -> int:
        """How many have not been collected."""
        return len(self._pids)

    def start(self, argv: Sequence[str], env: Mapping[str, str], pipes: tuple[int, int] | None = None) -> int:
        """The pid of a new process. Raises OSError, also where the program cannot be executed.

        pipes: its descriptors 0 and 1, which are /dev/null otherwise.
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
        """End one of them, if it has not been collected, so that the number is still its own."""
        if pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect whoever has ended."""
        for pid in tuple(self._pids):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._pids.discard(pid)
