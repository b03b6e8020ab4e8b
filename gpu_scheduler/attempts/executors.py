"""The executors: they launch, observe and stop attempts, on this machine or on another one.

On this machine, runners are started directly, through a helper process that forks them, or in GNU Screen.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from errno import EMFILE, ENOSYS
from pathlib import Path
from typing import Protocol

from gpu_scheduler.attempts.folder import (
    GIVE_UP_FILE,
    KILL_FILE,
    AttemptRef,
    is_prepared,
    kill_runner,
    observe,
    observe_on_engine,
    request_stop,
    void_claim,
    wake_runner,
    write_file,
)
from gpu_scheduler.core.command.build import parse_session_list
from gpu_scheduler.core.model.job import AttemptStatus, StopRequest
from gpu_scheduler.core.model.job_spec import ENGINES
from gpu_scheduler.runner.folder import SHORTAGE, START, TOKEN, read_spec
from gpu_scheduler.runner.fork_server import FORKED, NO_TOKEN, READY, REFUSED, TITLE_BYTES
from gpu_scheduler.system.run_program import run_program


class LaunchError(Exception):
    """A failure to launch an attempt. The text gives the reason and the remedy."""


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
        """Ends an attempt whose grace period is over and whose runner has not ended it.

        An engine first sends SIGTERM and kills after its own wait (KillWait of Slurm, 30 s by default).
        """

    def reap(self) -> None:
        """Collects the executor's ended child processes without blocking. `launch` also does this."""

    def close(self) -> None:
        """Releases the executor's resources. Its attempts keep running."""


class Executors:
    """The executors of a scheduler, by name. default: the one that launches new attempts."""

    def __init__(self, default: Executor, *others: Executor) -> None:
        self.default = default
        self._by_name = {one.name: one for one in (*others, default)}

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of the engines among them."""
        return tuple(name for name in self._by_name if name in ENGINES)

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


# Starts processes that outlive the scheduler.
#
# Each one has its own session, no terminal, default signal actions and only a few environment variables.


#: Variables with which Python and Screen find programs, libraries and sockets, and decode file names.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "SCREENDIR")


def _environment(**added: str) -> dict[str, str]:
    """Returns the few variables that a runner needs. The job's variables come from the attempt folder."""
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | added


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
        return observe(attempt.folder, attempt.token, attempt.runner)

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Writes `stop` and wakes the runner. Raises OSError."""
        request_stop(attempt.folder, attempt.token, stop, attempt.runner)

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Wakes the runner, so that it reads `stop`."""
        wake_runner(attempt.folder, attempt.token, attempt.runner)

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Claims the attempt so that it can never run, unless a runner has claimed it. Raises OSError.

        Creates the folder if it is missing.
        """
        void_claim(attempt.folder, attempt.token)

    def kill(self, attempt: AttemptRef) -> None:
        """Kills only the runner. A scan of /proc finds the job's processes that are left."""
        kill_runner(attempt.folder, attempt.token, attempt.runner)

    def reap(self) -> None:
        """Collects the child processes that have ended."""
        self._children.reap()

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


class EngineExecutor:
    """The executor of an engine. It only writes requests into the attempt folder, which the agent reads."""

    is_local = False
    has_terminal = False

    def __init__(self, name: str) -> None:
        self.name = name

    def launch(self, attempt: AttemptRef) -> None:
        """Does nothing: the agent submits every open attempt whose folder is complete."""

    def observe(self, attempt: AttemptRef) -> AttemptStatus:
        """Reads the status of an attempt from its local folder. Raises OSError."""
        return observe_on_engine(attempt.folder, attempt.token)

    def request_stop(self, attempt: AttemptRef, stop: StopRequest) -> None:
        """Writes `stop`, which the agent passes on to the runner. Raises OSError."""
        request_stop(attempt.folder, attempt.token, stop)

    def repeat_stop(self, attempt: AttemptRef) -> None:
        """Does nothing: a runner on an engine looks for `stop` by itself."""

    def cancel_launch(self, attempt: AttemptRef) -> None:
        """Asks the agent to void the claim, unless a runner has claimed the attempt. Raises OSError."""
        if is_prepared(attempt.folder):
            self._ask(attempt, GIVE_UP_FILE)
        else:
            void_claim(attempt.folder, attempt.token)  # the agent submits only what is complete

    def kill(self, attempt: AttemptRef) -> None:
        """Asks the agent to cancel the attempt in the engine. Raises OSError."""
        self._ask(attempt, KILL_FILE)

    def reap(self) -> None:
        """Does nothing: there are no child processes."""

    def close(self) -> None:
        """Does nothing: there are no resources to release."""

    def _ask(self, attempt: AttemptRef, name: str) -> None:
        if not (attempt.folder / name).exists():
            write_file(attempt.folder, name, b"")


# Starts runners as independent processes, which have no terminal and outlive the scheduler.


class DirectExecutor(LocalExecutor):
    """An executor that starts each runner directly."""

    name = "direct"
    has_terminal = False

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            env = _environment(**{TOKEN: read_spec(attempt.folder)["token"]})
            self._children.start((*self._command, str(attempt.folder)), env)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error


INSTALL_REMEDY = "install it (sudo apt-get install screen), or start without --screen"
_SCREENDIR_REMEDY = "set SCREENDIR to a folder that you own, with mode 700"
#: Maximum length of a Unix socket's path, minus "/", a pid of 7 digits, "." and a session name of 40 bytes.
_MAX_SOCKET_FOLDER_BYTES = 107 - 49
#: Screen's settings. They replace the user's .screenrc, which could keep ended windows, write logs or open
#: more windows.
_SCREENRC = """\
startup_message off
defflow off
defnonblock on
defscrollback 10000
defutf8 on
zombie off
setenv {token_name} {token}
"""


class ScreenExecutor(LocalExecutor):
    """An executor that starts each runner in a detached Screen session.

    The executor's child processes are the `screen` commands that start sessions, not the SCREEN processes.
    """

    name = "screen"
    has_terminal = True

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner in a session with the name that the attempt's spec gives. Raises LaunchError.

        Passes the token through Screen's settings. If it were in the environment of the SCREEN process, a
        sweep would find it there and end the session, and its output would disappear.
        """
        try:
            folder = attempt.folder
            spec = read_spec(folder)
            screenrc = _SCREENRC.format(token_name=TOKEN, token=spec["token"])
            write_file(folder, "screenrc", screenrc.encode("ascii"))
            screen = shutil.which("screen")
            if screen is None:
                raise LaunchError(f"GNU Screen is not installed: {INSTALL_REMEDY}")
            settings = str(folder / "screenrc")
            argv = (screen, "-c", settings, "-dmS", spec["session"], *self._command, str(folder))
            self._children.start(argv, _screen_environment())
        except OSError as error:
            raise LaunchError(f"Screen cannot be started: {error}") from error


def _screen_environment() -> dict[str, str]:
    return _environment(TERM="screen", SYSSCREENRC=os.devnull)


def screen_problem() -> str | None:
    """Returns why Screen sessions cannot be created, and the remedy; None if they can be created.

    Runs `screen -ls` for at most 5 s.
    """
    program = shutil.which("screen")
    if program is None:
        return f"GNU Screen is not installed: {INSTALL_REMEDY}"
    listed = run_program([program, "-ls"], _screen_environment())
    if listed.problem:
        return f"GNU Screen does not respond ({listed.problem}): repair it, or start without --screen"
    answer = listed.output.strip()
    folder = parse_session_list(answer).folder
    if folder is None:
        output = answer.splitlines()[-1] if answer else f"exit code {listed.exit_code}"
        return f"GNU Screen cannot use its socket folder: {output}\n{_SCREENDIR_REMEDY}"
    if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER_BYTES:
        return (
            f"GNU Screen's socket folder {folder} has a path longer than {_MAX_SOCKET_FOLDER_BYTES} bytes, "
            f"so sessions would not start\n{_SCREENDIR_REMEDY} and a shorter path"
        )
    return None


#: Seconds to wait for an answer before the helper is replaced. An answer usually takes a millisecond.
_ANSWER_S = 2.0
#: Minimum seconds between two starts of a helper.
_START_EVERY_S = 10.0
#: Number of launches to remember, in order to recognise a second launch of the same attempt.
_RECENT_LAUNCHES = 64


class ForkingExecutor(DirectExecutor):
    """An executor that starts runners through a helper process.

    interpreter: the path of a Python interpreter. start: the script that it runs to become a runner or a
    helper.
    """

    def __init__(self, interpreter: str = sys.executable, start: str = START) -> None:
        super().__init__(interpreter, start)
        self._helper: _Helper | None = None
        self._next_start_at = 0.0
        #: Tokens of the attempts that helpers were asked to launch most recently.
        self._recent_launches = deque[str](maxlen=_RECENT_LAUNCHES)
        self._start()

    def launch(self, attempt: AttemptRef) -> None:
        """Starts a runner. Raises LaunchError."""
        try:
            forked = self._fork(read_spec(attempt.folder)["token"], attempt.folder)
        except OSError as error:
            raise LaunchError(f"the runner cannot be started: {error}") from error
        if not forked:
            super().launch(attempt)

    def close(self) -> None:
        """Ends the helper; its runners keep running."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _fork(self, token: str, folder: Path) -> bool:
        """Asks the helper to fork a runner; returns whether it did. Raises OSError on a shortage."""
        helper = self._helper
        if token in self._recent_launches and helper is not None:
            # The runner of the first launch never claimed the attempt. The helper's limits may be lower than
            # the scheduler's.
            self._replace(helper)
            return False
        if helper is None:
            self._start()
            return False
        if len(token) != len(NO_TOKEN):
            return False
        self._recent_launches.append(token)
        try:
            refused = helper.fork(token, folder) if helper.ready() else ENOSYS
        except OSError:
            # Kill a helper that has not answered, so that it cannot act on the request later.
            self._replace(helper)
            if not helper.was_ready:
                self._next_start_at = float("inf")  # forking does not work on this machine
            return False
        if refused in SHORTAGE:
            if refused == EMFILE:
                # A new helper inherits the scheduler's limit on open files, which may have been raised.
                self._replace(helper)
            raise OSError(refused, os.strerror(refused))
        return not refused

    def _replace(self, helper: _Helper) -> None:
        """Kills the helper; a later launch starts another one."""
        self._children.kill(helper.pid)
        self.close()

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._next_start_at:
            return
        self._next_start_at = now + _START_EVERY_S
        try:
            self._helper = _Helper(self._children, (*self._command, "--forks", "." * TITLE_BYTES))
        except OSError:
            pass  # launching without the helper will report the problem


class _Helper:
    """A helper process and our ends of its pipes. Raises OSError if it cannot be started or used."""

    def __init__(self, children: ChildProcesses, command: tuple[str, ...]) -> None:
        far_in, self._requests = _pipe()
        try:
            self._answers, far_out = _pipe()
        except OSError:
            _close((far_in, self._requests))
            raise
        try:
            env = _environment(**{TOKEN: NO_TOKEN})
            self.pid = children.start(command, env, (far_in, far_out))
        except OSError:
            self.close()
            raise
        finally:
            os.close(far_in)
            os.close(far_out)
        self.was_ready = False

    def ready(self) -> bool:
        """Returns whether the helper has reported that it can fork; does not block."""
        if not self.was_ready:
            self.was_ready = self._read_answer(0.0) == READY
        return self.was_ready

    def fork(self, token: str, folder: Path) -> int:
        """Asks the helper to fork a runner for this folder; returns 0, or the errno of the failure."""
        os.write(self._requests, token.encode("ascii") + os.fsencode(folder.absolute()) + b"\0")
        answer = self._read_answer(_ANSWER_S)
        if answer is None:
            raise TimeoutError
        if answer == FORKED:
            return 0
        why = self._read_answer(_ANSWER_S) if answer == REFUSED else None
        return why[0] if why else ENOSYS

    def _read_answer(self, timeout_s: float) -> bytes | None:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return None
        answer = os.read(self._answers, 1)
        if not answer:
            raise BrokenPipeError
        return answer

    def close(self) -> None:
        """Closes the pipes, which makes the helper exit."""
        os.close(self._requests)
        os.close(self._answers)


def _pipe() -> tuple[int, int]:
    """Makes a pipe whose descriptors are 3 or higher, even if 0, 1 or 2 is free."""
    ends = os.pipe()
    above: list[int] = []
    try:
        for fd in ends:
            above.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError:
        _close(above)
        raise
    finally:
        _close(ends)
    return above[0], above[1]


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
