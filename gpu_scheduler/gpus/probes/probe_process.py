"""Starts one process that runs `gpus.probes.probe_server`, reads its output, and ends it. Never blocks.

The caller decides what to query and how long to wait.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Sequence

from gpu_scheduler.runner.folder import TOKEN, living_fields

#: Loads our package from its own location. Then removes that folder and the current folder from the path, so
#: that a `queue.py` there cannot shadow the module of the standard library.
_START = """
import sys
root = sys.argv.pop(1)
sys.path[:] = [root] + [p for p in sys.path if p]
import gpu_scheduler
sys.path.remove(root)
from gpu_scheduler.gpus.probes.probe_server import main
main()
"""
#: The signal that ends a process and all processes that it started.
_KILL = signal.SIGKILL
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class ProbeProcess:
    """A probe process, which has its own session. Raises OSError if it cannot be started.

    Because of the session, Ctrl-C in the scheduler's terminal does not reach the process, and the process can
    be killed together with all processes that it started.
    """

    def __init__(self, interpreter: str, arguments: Sequence[str]) -> None:
        self._stderr = os.memfd_create("probe-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [interpreter, "-c", _START, _ROOT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                cwd="/",
                # If a job started this scheduler, a sweep of that job must not end the probe.
                env={name: value for name, value in os.environ.items() if name != TOKEN},
                start_new_session=True,
            )
        except OSError:
            os.close(self._stderr)
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The pid of the probe process."""
        return self._process.pid

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable when a line has arrived or the process has ended."""
        return self._stdout.fileno()

    def send(self, line: bytes) -> None:
        """Writes one query. If this fails, the query is not answered, and the caller's deadline passes."""
        os.ftruncate(self._stderr, 0)
        try:
            os.write(self._stdin.fileno(), line)
        except (BrokenPipeError, BlockingIOError):
            pass

    def lines(self) -> tuple[list[bytes], bool]:
        """Returns the complete lines received since the last call, and whether the output has ended."""
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

    def last_error_line(self) -> str:
        """Returns the last line that the process wrote to stderr since the newest query; "" if none."""
        size = os.fstat(self._stderr).st_size
        tail = os.pread(self._stderr, 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(tail) if line.strip()), "")

    def kill(self) -> None:
        """Kills the process and all processes that it started, without waiting, and closes the pipes."""
        try:
            # The pid of the process, and thus its group id, cannot be reused before `has_ended` collects it.
            if self._process.returncode is None:
                os.killpg(self._process.pid, _KILL)
        except (ProcessLookupError, PermissionError):
            pass
        for pipe in (self._stdin, self._stdout):
            pipe.close()
        os.close(self._stderr)

    def abandon(self) -> None:
        """Leaves a killed process that is blocked in the kernel to init, which collects it later."""
        if self._process.returncode is None:
            self._process.returncode = -_KILL  # otherwise Python warns about the process

    def has_ended(self) -> bool:
        """Collects the process; returns whether it and all processes that it started have ended.

        A killed process that is blocked in the kernel, such as an `nvidia-smi` waiting for the driver, has
        not ended.
        """
        return self._process.poll() is not None and not _group_lives(self._process.pid)


def _group_lives(group: int) -> bool:
    """Returns whether any process in this group is alive. Zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        tables = [living_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True  # out of file descriptors; the caller will check again
    return any(fields is not None and int(fields[2]) == group for fields in tables)
