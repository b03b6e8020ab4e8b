"""Observes and controls attempts whose runners are on this machine, through their attempt folders."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from gpu_scheduler.attempts import folder
from gpu_scheduler.attempts.executor import AttemptRef, LaunchError
from gpu_scheduler.core.model.job import AttemptStatus, StopRequest
from gpu_scheduler.runner.folder import START, TOKEN, read_spec

# Starts processes that outlive the scheduler.
#
# Each one has its own session, no terminal, default signal actions and only a few environment variables.


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


class LocalExecutor:
    """The base class of executors on this machine. It provides every method except `launch`.

    interpreter: the path of a Python interpreter. start: the script that it runs to become a runner.
    """

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        self._command = (interpreter, "-I", "-S", start)
        self._children = ChildProcesses()

    @property
    def running(self) -> int:
        """The number of child processes that have not yet been collected."""
        return self._children.running

    @property
    def is_local(self) -> bool:
        """Always true: a scan of /proc finds the processes of this executor's attempts."""
        return True

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Reads the status of an attempt from its folder. Raises OSError."""
        return folder.observe(attempt.folder, attempt.token, attempt.runner)

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Writes `stop` and wakes the runner. Raises OSError."""
        folder.request_stop(attempt.folder, attempt.token, stop, attempt.runner)

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Wakes the runner, so that it reads `stop`."""
        folder.wake_runner(attempt.folder, attempt.token, attempt.runner)

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Claims the attempt so that it can never run, unless a runner has claimed it. Raises OSError.

        Creates the folder if it is missing.
        """
        folder.void_claim(attempt.folder, attempt.token)

    def kill(self, attempt: AttemptRef) -> None:
        """Kills only the runner. A scan of /proc finds the job's processes that are left."""
        folder.kill_runner(attempt.folder, attempt.token, attempt.runner)

    def reap(self) -> None:
        """Collects the child processes that have ended."""
        self._children.reap()

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


# Starts runners as independent processes, which have no terminal and outlive the scheduler.


class DirectExecutor(LocalExecutor):
    """An executor that starts each runner directly."""

    name = "direct"
    has_terminal = False

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            env = minimal_environment(os.environ) | {TOKEN: read_spec(attempt.folder)["token"]}
            self._children.start((*self._command, str(attempt.folder)), env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error
