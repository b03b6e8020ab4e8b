"""One process that runs `probes.serve`: its pipes, its last words, its end. Nothing here ever blocks.

Refuses to know what is asked and how long an answer may take.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Sequence

from gpu_scheduler.runner.folder import TOKEN

#: Loads our package from where it lies and from nowhere else, and keeps that folder, and the folder that the
#: user happens to be in, off the path: a `queue.py` there must not become the standard library's.
_START = """
import sys
root = sys.argv.pop(1)
sys.path[:] = [root] + [p for p in sys.path if p]
import gpu_scheduler
sys.path.remove(root)
from gpu_scheduler.probes.serve import main
main()
"""
#: What ends a process and all that it started.
_KILL = signal.SIGKILL
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Child:
    """A probe's process, in a session of its own: Ctrl-C in the scheduler's terminal does not reach it, and
    what it started can be killed with it. Raises OSError if it cannot be started."""

    def __init__(self, interpreter: str, arguments: Sequence[str]) -> None:
        self._last_words = os.memfd_create("probe-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self._last_words, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [interpreter, "-c", _START, _ROOT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._last_words,
                bufsize=0,
                cwd="/",
                # Of a scheduler that a job restarted: the sweep of that job must not end its own probe.
                env={name: value for name, value in os.environ.items() if name != TOKEN},
                start_new_session=True,
            )
        except OSError:
            os.close(self._last_words)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when a line may be there, or the process has ended."""
        return self._stdout.fileno()

    def send(self, line: bytes) -> None:
        """Writes one question. One that cannot be written is answered by the end of the process, or never."""
        os.ftruncate(self._last_words, 0)
        try:
            os.write(self._stdin.fileno(), line)
        except (BrokenPipeError, BlockingIOError):
            pass

    def lines(self) -> tuple[list[bytes], bool]:
        """The whole lines that have come, and whether none will come any more."""
        ended = False
        while True:
            try:
                data = os.read(self._stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return lines, ended

    def last_words(self) -> str:
        """The last line that it wrote to stderr since the last question, "" if none."""
        size = os.fstat(self._last_words).st_size
        tail = os.pread(self._last_words, 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(tail) if line.strip()), "")

    def kill(self) -> None:
        """Kills it with all that it started and closes its pipes. Does not wait: it may be in the kernel."""
        try:
            # Its pid, and so its group, is ours until it is reaped, which `gone` alone does.
            if self._process.returncode is None:
                os.killpg(self._process.pid, _KILL)
        except (ProcessLookupError, PermissionError):
            pass
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        os.close(self._last_words)

    def abandon(self) -> None:
        """Leaves a killed process that the kernel still holds to init, which reaps it after us."""
        if self._process.returncode is None:
            self._process.returncode = -_KILL  # else Python warns of it

    def gone(self) -> bool:
        """Whether it has ended, and all that it started; reaps it. A killed process that is in the kernel's
        hands, such as an `nvidia-smi` that waits for the driver, is not gone."""
        return self._process.poll() is not None and not _group_lives(self._process.pid)


def _group_lives(group: int) -> bool:
    """Whether a process of that group is left. A zombie is none: where nobody reaps it, it stays for ever."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        entries = os.listdir("/proc")
    except OSError:
        return True  # for want of open files; it is looked for again
    for entry in entries:
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):
                continue  # it has ended meanwhile
            if int(its_group) == group and state not in (b"Z", b"X"):
                return True
    return False
