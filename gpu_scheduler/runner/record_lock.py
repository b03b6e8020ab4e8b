"""Takes and queries POSIX record locks, which the kernel releases when their process ends.

A process loses all its locks on a file when it closes any descriptor of that file. Its children do not
inherit the locks.
"""

from __future__ import annotations

import errno
import fcntl
import os

#: The size of struct flock of 64-bit Linux: short type, short whence, off_t start, off_t len, pid_t pid.
_FLOCK_BYTES = 32


class Lock:
    """A lock on the bytes from `start` up to, but not including, `end` (None means to infinity).

    pid: the process that holds the lock; 0 if that process is in another pid namespace.
    """

    __slots__ = ("end", "pid", "start")

    def __init__(self, start: int, end: int | None, pid: int) -> None:
        self.start, self.end, self.pid = start, end, pid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lock) and (self.start, self.end, self.pid) == (
            other.start,
            other.end,
            other.pid,
        )

    def __hash__(self) -> int:
        return hash((self.start, self.end, self.pid))


def try_lock(fd: int, start: int = 0, end: int | None = None) -> bool:
    """Locks these bytes unless another process holds a lock on any of them; returns whether it succeeded.

    Raises OSError if the file system has no locks or the kernel has no memory for one.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0 if end is None else end - start, start)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def conflicting_lock(fd: int, start: int = 0, end: int | None = None) -> Lock | None:
    """Returns any one lock of another process on these bytes; None if there is none. Takes no lock."""
    length = 0 if end is None else end - start
    # Written and read through views, because importing `_struct` would delay a runner by 0.2 ms.
    flock = bytearray(_FLOCK_BYTES)
    view = memoryview(flock)
    shorts, ints, longs = view.cast("h"), view.cast("i"), view.cast("q")
    # F_GETLK only queries, so asking about a write lock needs no write access.
    shorts[0], shorts[1], longs[1], longs[2] = fcntl.F_WRLCK, os.SEEK_SET, start, length
    flock[:] = fcntl.fcntl(fd, fcntl.F_GETLK, bytes(flock))
    if shorts[0] == fcntl.F_UNLCK:
        return None
    # The pid is -1 for a lock that belongs to an open file instead of a process.
    return Lock(longs[1], longs[1] + longs[2] if longs[2] else None, max(ints[6], 0))


def unlock(fd: int, start: int, end: int) -> None:
    """Releases the locks of this process on these bytes."""
    fcntl.lockf(fd, fcntl.LOCK_UN, end - start, start)
