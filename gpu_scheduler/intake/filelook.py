"""A look at the jobs file on the disk: its text, or why there is none; and whether somebody is writing it.

It reads bytes and knows nothing of what a line means. An unchanged file costs one stat.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: A larger file is no jobs file.
LARGEST = 64 * 1024 * 1024
#: Nanoseconds within which a file may change again without a change of its times (their resolution).
_RACY_NS = 2_000_000_000

_Signature = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class FileLook:
    """What is there. content: of a file that is present; problem: why it cannot be read, without its path."""

    state: Literal["present", "missing", "unreadable"]
    content: bytes = b""
    problem: str | None = None

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The lines with their line endings."""
        return tuple(io.BytesIO(self.content))


class JobsFile:
    """One path, looked at again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Signature | None = None
        self._look = FileLook("missing", problem="there is no such file")

    def look(self) -> FileLook:
        """The file as it stands. The very same value as the last time means that it has not changed."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self._unseen("missing", "there is no such file")
        except OSError as error:
            return self._unseen("unreadable", f"cannot be read: {error.strerror}")
        if self._seen is not None and self._seen == _signature(status):
            return self._look
        try:
            return self._read()
        except FileNotFoundError:
            return self._unseen("missing", "there is no such file")
        except OSError as error:
            return self._unseen("unreadable", f"cannot be read: {error.strerror}")

    def _read(self) -> FileLook:
        # Without O_NONBLOCK a FIFO at this path would never open.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return self._unseen("unreadable", "is not a regular file")
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            return self._unseen("unreadable", "is larger than 64 MiB, too large for a jobs file")
        settled = abs(time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns)) > _RACY_NS
        self._seen = _signature(status) if settled else None
        if self._look.state != "present" or self._look.content != content:
            self._look = FileLook("present", content)
        return self._look

    def _unseen(self, state: Literal["missing", "unreadable"], why: str) -> FileLook:
        self._seen = None
        if self._look.problem != why:
            self._look = FileLook(state, problem=why)
        return self._look


def _signature(status: os.stat_result) -> _Signature:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def being_written(path: Path) -> bool:
    """Whether some process has the file open for writing: a read lease, taken and given back at once, is
    refused then. False where leases are not to be had (another owner's file, a network file system)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        # A process that opens the file in this moment breaks the lease with a signal: one that is ignored by
        # default, where SIGIO would end us.
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
