"""Reads the jobs file from disk, and detects whether another process has it open for writing.

This module reads bytes and does not interpret lines. Reading an unchanged file costs one stat call.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind
from gpu_scheduler.system.shortages import reraise_shortage

#: Maximum size of a jobs file, in bytes and in lines. Each line takes about 2 KiB of memory.
MAX_BYTES = 64 * 1024 * 1024
MAX_LINES = 250_000
#: Two changes to a file within this many nanoseconds may produce the same timestamps, which are coarse.
_RACY_WINDOW_NS = 2_000_000_000


class JobsFile:
    """A jobs file that is read repeatedly. trust: accept the file regardless of its owner and mode."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self._trust = trust
        self._last_version: tuple[int, ...] | None = None
        self._last_content: bytes | FileProblem = FileProblem(ProblemKind.MISSING)

    def read(self) -> bytes | FileProblem:
        """Reads the file. Returns the same object as the last time if the file has not changed.

        Raises OSError if memory, processes or open files run out, which does not mean that the file is bad.
        """
        try:
            if self._last_version == safe_file.file_version(os.stat(self.path)):
                return self._last_content
        except OSError:
            pass  # the read below returns the reason
        found = safe_file.read(self.path, MAX_BYTES, trust=self._trust)
        if isinstance(found, FileProblem):
            reraise_shortage(found.as_error(self.path))
            self._last_version = None
            content: bytes | FileProblem = found
        else:
            changed_ns = max(found.status.st_mtime_ns, found.status.st_ctime_ns)
            settled = abs(time.time_ns() - changed_ns) > _RACY_WINDOW_NS
            self._last_version = safe_file.file_version(found.status) if settled else None
            content = _check_content(found.data)
        if content != self._last_content:
            self._last_content = content
        return self._last_content


def read_standard_input(fd: int) -> bytes | FileProblem:
    """Reads standard input, such as a pipe, to its end in place of a jobs file."""
    try:
        found = safe_file.read_descriptor(fd, MAX_BYTES)
    except OSError as error:
        return safe_file.problem_from_error(error)
    return found if isinstance(found, FileProblem) else _check_content(found)


def _check_content(content: bytes) -> bytes | FileProblem:
    """Returns the content, or the reason why it cannot be a jobs file."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return FileProblem(ProblemKind.WRONG_CONTENT, "is UTF-16 text; save it as UTF-8")
    if b"\0" in content:
        return FileProblem(ProblemKind.WRONG_CONTENT, "is binary: it contains NUL bytes")
    lines = content.count(b"\n")
    if lines > MAX_LINES:
        problem = f"has {lines:,} lines; a jobs file may have at most {MAX_LINES:,}"
        return FileProblem(ProblemKind.WRONG_CONTENT, problem)
    return content


def is_open_for_writing(path: Path) -> bool:
    """Returns whether a process has the file open for writing.

    If one has, the kernel refuses a read lease. Otherwise, it grants the lease, which is released at once.
    Returns False where leases are unavailable (on another user's file or on a network file system). Raises
    OSError if memory, processes or open files run out.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reraise_shortage(error)
        return False
    try:
        # If a process opens the file at this moment, the kernel breaks the lease and sends a signal. SIGURG
        # is ignored by default, whereas SIGIO would kill this process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
