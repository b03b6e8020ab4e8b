"""Reads the jobs file from disk, and detects whether another process is writing it.

Reads bytes only and does not interpret lines. An unchanged file costs one stat.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_scheduler import safefile
from gpu_scheduler.safefile import FileProblem, Kind
from gpu_scheduler.shortages import reraise

#: Limits of a jobs file in bytes and lines; each line takes about 2 KiB of memory.
LARGEST = 64 * 1024 * 1024
MOST_LINES = 250_000
#: Nanoseconds within which a file may change again without a change of its timestamps (their resolution).
_RACY_NS = 2_000_000_000

_Signature = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class FileLook:
    """The state of a file when it was read.

    content: set if it is present; problem: why it cannot be read, without the path; remedy: set if it is the
    same for every file.
    """

    state: Literal["present", "missing", "unreadable"]
    content: bytes = b""
    problem: str | None = None
    remedy: str = ""

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The lines of the file, with their line endings."""
        return tuple(io.BytesIO(self.content))


class JobsFile:
    """A file that is read repeatedly. trust: accept the file whoever owns it or may write it."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self._trust = trust
        self._seen: _Signature | None = None
        self._look = FileLook("missing", problem=Kind.MISSING.value)

    def look(self) -> FileLook:
        """Reads the file; returns the same object as the last time if it has not changed.

        Raises OSError for a shortage, which says nothing about the file.
        """
        try:
            status = os.stat(self.path)
        except OSError as error:
            return self._unseen(safefile.of_error(error))
        if self._seen is not None and self._seen == _signature(status):
            return self._look
        found = safefile.read(self.path, LARGEST, trust=self._trust)
        if isinstance(found, FileProblem):
            reraise(found.error(self.path))
            return self._unseen(found)
        settled = abs(time.time_ns() - max(found.status.st_mtime_ns, found.status.st_ctime_ns)) > _RACY_NS
        self._seen = _signature(found.status) if settled else None
        why = _not_a_text(found.data)
        if why is not None:
            self._note("unreadable", why)
        elif self._look.state != "present" or self._look.content != found.data:
            self._look = FileLook("present", found.data)
        return self._look

    def _unseen(self, problem: FileProblem) -> FileLook:
        self._seen = None
        state: Literal["missing", "unreadable"] = "missing" if problem.kind is Kind.MISSING else "unreadable"
        self._note(state, problem.says, problem.remedy)
        return self._look

    def _note(self, state: Literal["missing", "unreadable"], why: str, remedy: str = "") -> None:
        if self._look.problem != why:
            self._look = FileLook(state, problem=why, remedy=remedy)


def look_at_input(fd: int) -> FileLook:
    """Reads the standard input, of any kind, to its end in place of a jobs file."""
    try:
        found = safefile.read_descriptor(fd, LARGEST)
    except OSError as error:
        found = safefile.of_error(error)
    why = str(found) if isinstance(found, FileProblem) else _not_a_text(found)
    if isinstance(found, FileProblem) or why is not None:
        return FileLook("unreadable", problem=why)
    return FileLook("present", found)


def _not_a_text(content: bytes) -> str | None:
    """Returns why this cannot be a jobs file, as a predicate; None if it can."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is text in UTF-16; save it as UTF-8"
    if b"\0" in content:
        return "is binary: it holds NUL bytes"
    lines = content.count(b"\n")
    return f"has {lines:,} lines; a jobs file has at most {MOST_LINES:,}" if lines > MOST_LINES else None


def _signature(status: os.stat_result) -> _Signature:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def being_written(path: Path) -> bool:
    """Returns whether a process has the file open for writing.

    The kernel then refuses a read lease, which is otherwise taken and returned at once. False where leases
    are unavailable (a file of another owner, a network file system). Raises OSError for a shortage.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reraise(error)
        return False
    try:
        # A process that opens the file at this moment breaks the lease with a signal. SIGURG is ignored by
        # default, whereas SIGIO would kill this process.
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
