"""Starts the command of an attempt, signals its process group, and collects the command and its orphans.

The caller decides when to send a signal, and interprets the exit code or signal of the command.
"""

from __future__ import annotations

import errno
import os
import select
import time

from .folder import SHORTAGE, TOKEN
from .output import move_fd_up
from .termination import ALL, CONT, HUP, TERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .group_signals import WaitingShells
    from .output import Poller

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
_PR_SET_CHILD_SUBREAPER = 36
#: The variables, besides those of Slurm itself, by which an engine tells a program which GPUs it may use.
_DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES",
)  # fmt: skip
#: The failure code for each errno with which spawning the command can fail.
SPAWN_FAILURES = {
    errno.ENOENT: "file_missing",
    errno.ENOTDIR: "file_missing",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
}


class Child:
    """The process of command.sh, which becomes the job's command.

    exit_code, signal   how the process ended; both None if it is still running or could not be spawned.
    began               whether command.sh has reported that it reached the job's command.
    message, failure    why the command did not begin, as a text and as a code.
    shortage            the errno of the resource shortage that prevented the command from beginning.
    other_failure       the exit code and the signal of the first orphan that failed; None if none did.
    """

    def __init__(self, folder: str, spec: dict[str, Any], poller: Poller) -> None:
        self._script = os.path.join(folder, "command.sh")
        self._spec = spec
        self._poller = poller
        self._pid = 0
        self._startup_report = b""
        self._report_fd = -1
        self._failure: str | None = None
        self._is_subreaper = become_subreaper()
        #: The shells that wait for programs which have been asked to end, and the signal for them.
        self._shells: WaitingShells | None = None
        self._asked_with: int = TERM
        self.running = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.other_failure: tuple[int | None, int | None] | None = None
        self.problem: str | None = None
        self.shortage: int | None = None
        self.started_at: float | None = None
        self.spawned = self.ended = 0.0

    @property
    def began(self) -> bool:
        """Whether command.sh has reached the job's command."""
        return self._startup_report.startswith(b".")

    @property
    def message(self) -> str | None:
        """The reason why the command did not begin; None if none was reported."""
        if self._startup_report.startswith(b"!"):
            return self._startup_report.partition(b" ")[2].decode("utf-8", "replace").strip()
        return self.problem

    @property
    def failure(self) -> str | None:
        """The code of the reason why the command did not begin; None if none was reported."""
        if self._startup_report.startswith(b"!"):
            return self._startup_report[1:].partition(b" ")[0].decode("ascii", "replace")
        return self._failure

    def fail(self, problem: str, failure: str | None = None, number: int | None = None) -> None:
        """Records why the command did not begin. failure: the code of the reason; number: the errno, if any.

        If the errno reports a shortage, that is the reason, and the code is ignored.
        """
        self.shortage = number if number in SHORTAGE else None
        self._failure = None if self.shortage else failure
        self._startup_report, self.problem = b"", problem

    def spawn(self, output_fd: int, terminal: str | None, record_fd: int | None) -> None:
        """Starts the command. After a failure, `message` gives the reason.

        output_fd: the end of the pipe to which the command writes, if it has no terminal. terminal: the path
        of the terminal for its input and output, or None. record_fd: the open file in which the command
        records itself, or None. This method closes it.
        """
        self.spawned = time.monotonic()
        try:
            if record_fd is not None:
                record_fd = move_fd_up(record_fd)
            self._start(output_fd, terminal, record_fd)
            self.running = True
            self.started_at = time.time()
        except OSError as error:
            self.ended = self.spawned
            problem = f"the command could not be started: {error.filename or 'bash'}: {error.strerror}"
            self.fail(problem, SPAWN_FAILURES.get(error.errno or 0), error.errno)
        except ValueError as error:  # a path or a variable contains a null byte
            self.ended = self.spawned
            self.fail(f"the command could not be started: {error}")
        finally:
            if record_fd is not None:
                os.close(record_fd)

    def _start(self, output_fd: int, terminal: str | None, record_fd: int | None) -> None:
        self._report_fd, report_end = os.pipe()
        report_end = move_fd_up(report_end)
        if terminal is None:
            actions: list[tuple[Any, ...]] = [
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output_fd, 1),
            ]
        else:
            # The first terminal that a session leader opens becomes the controlling terminal of the session.
            actions = [(os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
        actions += [(os.POSIX_SPAWN_DUP2, 1, 2), (os.POSIX_SPAWN_DUP2, report_end, 3)]
        if record_fd is not None:
            actions.append((os.POSIX_SPAWN_DUP2, record_fd, 4))
        try:
            self._pid = self._spawn(actions, terminal is not None)
        finally:
            os.close(report_end)
        os.set_blocking(self._report_fd, False)
        self._poller.watch(self._report_fd, select.POLLIN, self._read_report)

    def _spawn(self, actions: list[tuple[Any, ...]], terminal: bool) -> int:
        shell = next((path for path in _SHELLS if os.path.exists(path)), _SHELLS[0])
        env = {**self._spec["env"], TOKEN: self._spec["token"]}
        if self._spec["engine"] is not None:
            env.update(_variables_of_engine())
        if terminal:
            env.setdefault("TERM", os.environ.get("TERM", "screen"))
        ignores_hangup = terminal and self._spec["ignore_hangup"]
        os.chdir(self._spec["cwd"])
        os.umask(self._spec["umask"])
        try:
            # -p keeps BASH_ENV, functions and shell options in the environment from changing the script.
            return os.posix_spawn(
                shell,
                ["bash", "-p", self._script],
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                # The kernel hangs up the programs of a terminal whose first program ends. The runner itself
                # ignores the signal, so that work in the background goes on as it does without a terminal.
                setsigdef=ALL - ({HUP} if ignores_hangup else set()),
            )
        finally:
            os.umask(0o077)

    def reap(self) -> None:
        """Collects every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self.running, self.ended = False, time.monotonic()
                self.exit_code, self.signal = _end_of(status)
                self._read_report(0)
            elif status and self.other_failure is None:
                self.other_failure = _end_of(status)

    def _read_report(self, _events: int) -> None:
        try:
            data = os.read(self._report_fd, 1 << 16)
        except OSError:
            return
        self._startup_report += data
        if not data:
            self._poller.unwatch(self._report_fd)

    def signal_group(self, number: int) -> None:
        """Signals the command's process group, unless the command has been collected.

        Before it is collected, the kernel cannot reuse the group's id.
        """
        if self.running:
            try:
                os.killpg(self._pid, number)
                if os.getpgid(self._pid) != self._pid:
                    os.kill(self._pid, number)
            except OSError:
                pass

    def ask_to_end(self, number: int) -> None:
        """Sends a signal to the command and its programs. If a shell waits for programs, these come first.

        In that case, `check_shells` must be called from time to time.
        """
        if not self.running:
            return
        self._shells, self._asked_with = None, number
        try:
            from .group_signals import ask_programs

            self._shells = ask_programs(self._pid, number)
        except (ImportError, OSError):
            pass  # out of file descriptors or memory
        if self._shells is None:
            self._signal_all()

    def check_shells(self) -> float | None:
        """Signals the shells that wait for programs once these have ended.

        Returns the seconds until the next check; None if no shell waits.
        """
        if self._shells is None:
            return None
        try:
            wait_s = self._shells.check()
        except OSError:
            wait_s = None
        if wait_s is None:
            self._shells = None
            self._signal_all()
        return wait_s

    def continue_shells(self) -> None:
        """Lets the shells wait for their programs again, because the command may continue."""
        if self._shells is not None:
            self._shells.resume()
            self._shells = None

    def _signal_all(self) -> None:
        self.signal_group(self._asked_with)
        # A stopped process would not receive the signal.
        self.signal_group(CONT)

    @property
    def group(self) -> int:
        """The process group of the command, which may be empty."""
        return self._pid

    @property
    def may_have_left_processes(self) -> bool:
        """Whether the ended command may have left processes running; False if it certainly has not."""
        return self._pid != 0 and not (self._is_subreaper and not has_children())


def _end_of(status: int) -> tuple[int | None, int | None]:
    """Returns the exit code and the signal in a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def _variables_of_engine() -> dict[str, str]:
    """Returns the variables that the engine has set for this attempt, in the runner's own environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _DEVICE_VARIABLES or name.startswith("SLURM_")
    }


def become_subreaper() -> bool:
    """Makes this process the parent of the command's orphans; returns False if the kernel refuses.

    If it refuses, only the token identifies the orphans.
    """
    return call_c("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def call_c(name: str, *arguments: int) -> bool:
    """Calls a function of the C library; returns whether it was called and returned 0."""
    try:
        # Importing `ctypes` would delay the job by 5 ms.
        from _ctypes import call_function, dlopen, dlsym

        function = dlsym(dlopen(None, os.RTLD_NOW), name)  # type: ignore[arg-type]
        return bool(call_function(function, arguments) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def has_children() -> bool:
    """Returns whether this process has children, including ended ones and adopted orphans."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
