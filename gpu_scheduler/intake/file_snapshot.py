"""Reads the jobs file from disk, and detects whether another process is writing it.

Reads bytes only and does not interpret lines. An unchanged file costs one stat.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind
from gpu_scheduler.system.shortages import reraise_shortage

#: Limits of a jobs file in bytes and lines; each line takes about 2 KiB of memory.
MAX_BYTES = 64 * 1024 * 1024
MAX_LINES = 250_000
#: Nanoseconds within which a file may change again with the same timestamps, because of their resolution.
_RACY_WINDOW_NS = 2_000_000_000


@dataclass(frozen=True)
class FileSnapshot:
    """The state of a file when it was read.

    content: set if it is present; problem: why it cannot be read, without the path; remedy: set if it is the
    same for every file.
    """

    state: Literal["present", "missing", "unreadable"]
    content: bytes = b""
    problem: str | None = None
    remedy: str = ""


class JobsFile:
    """A file that is read repeatedly. trust: accept the file whoever owns it or may write it."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self._trust = trust
        self._last_version: tuple[int, ...] | None = None
        self._snapshot = FileSnapshot("missing", problem=ProblemKind.MISSING.value)

    def read(self) -> FileSnapshot:
        """Reads the file; returns the same object as the last time if it has not changed.

        Raises OSError for a shortage, which says nothing about the file.
        """
        try:
            status = os.stat(self.path)
        except OSError as error:
            return self._unavailable(safe_file.problem_from_error(error))
        if self._last_version == safe_file.file_version(status):
            return self._snapshot
        found = safe_file.read(self.path, MAX_BYTES, trust=self._trust)
        if isinstance(found, FileProblem):
            reraise_shortage(found.as_error(self.path))
            return self._unavailable(found)
        settled = (
            abs(time.time_ns() - max(found.status.st_mtime_ns, found.status.st_ctime_ns)) > _RACY_WINDOW_NS
        )
        self._last_version = safe_file.file_version(found.status) if settled else None
        why = _not_a_jobs_file(found.data)
        if why is not None:
            self._set_problem("unreadable", why)
        elif self._snapshot.state != "present" or self._snapshot.content != found.data:
            self._snapshot = FileSnapshot("present", found.data)
        return self._snapshot

    def _unavailable(self, problem: FileProblem) -> FileSnapshot:
        self._last_version = None
        state: Literal["missing", "unreadable"] = (
            "missing" if problem.kind is ProblemKind.MISSING else "unreadable"
        )
        self._set_problem(state, problem.description, problem.remedy)
        return self._snapshot

    def _set_problem(self, state: Literal["missing", "unreadable"], why: str, remedy: str = "") -> None:
        if self._snapshot.problem != why:
            self._snapshot = FileSnapshot(state, problem=why, remedy=remedy)


def read_standard_input(fd: int) -> FileSnapshot:
    """Reads the standard input, of any kind, to its end in place of a jobs file."""
    try:
        found = safe_file.read_descriptor(fd, MAX_BYTES)
    except OSError as error:
        found = safe_file.problem_from_error(error)
    why = str(found) if isinstance(found, FileProblem) else _not_a_jobs_file(found)
    if isinstance(found, FileProblem) or why is not None:
        return FileSnapshot("unreadable", problem=why)
    return FileSnapshot("present", found)


def _not_a_jobs_file(content: bytes) -> str | None:
    """Returns why this cannot be a jobs file, as a predicate; None if it can."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is text in UTF-16; save it as UTF-8"
    if b"\0" in content:
        return "is binary: it holds NUL bytes"
    lines = content.count(b"\n")
    return f"has {lines:,} lines; a jobs file has at most {MAX_LINES:,}" if lines > MAX_LINES else None


def is_open_for_writing(path: Path) -> bool:
    """Returns whether a process has the file open for writing.

    The kernel then refuses a read lease, which is otherwise taken and returned at once. False where leases
    are unavailable (a file of another owner, a network file system). Raises OSError for a shortage.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reraise_shortage(error)
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
