"""One scheduler per record: a POSIX lock that the kernel frees with its holder, and who holds it."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct(
    "hhqqi4x"
)  # short type, short whence, off_t start, off_t len, pid_t pid (Linux, 64 bit)


class InstanceLock:
    """The lock of the one scheduler. Not inherited by children; held until `release` or death.

    The file must not be opened and closed elsewhere in this process: that would drop the lock.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Whether the lock is ours now."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def holder(self) -> int | None:
        """The pid of the process that holds it instead of us."""
        return _asked(self._fd)

    def release(self) -> None:
        """Give it back."""
        os.close(self._fd)


def scheduler_pid(path: Path) -> int | None:
    """The pid of the scheduler that holds the lock; None when none is up. Takes nothing.

    Not for the scheduler's own process, whose lock the closing here would drop.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _asked(fd)
    finally:
        os.close(fd)


def _asked(fd: int) -> int | None:
    # A write lock is asked about, which needs no write access to ask: F_GETLK takes nothing.
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return pid if kind != fcntl.F_UNLCK else None
