"""Appends a line to a file that others may be writing too."""

from __future__ import annotations

import fcntl
import os

from gpu_scheduler.errors import SchedulerError


def append_line(path: str, line: str) -> None:
    """Appends a line to a file in a single write under the file's lock; creates the file if it is missing.

    If the last line has no newline, one is added first. Raises SchedulerError if the file cannot be written.
    """
    try:
        fd = _open_locked(path)
        try:
            size = os.fstat(fd).st_size
            begun = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if begun else b"") + line.encode() + b"\n"
            written = os.write(fd, data)
            if written < len(data):
                os.ftruncate(fd, size)
                raise OSError(f"only {written} of {len(data)} bytes were written")
        finally:
            os.close(fd)
    except OSError as error:
        raise SchedulerError(
            f"{path} cannot be written: {error.strerror or error}; nothing was added"
        ) from None


def _open_locked(path: str) -> int:
    """Opens the file that is at `path` now and locks it against other `add`s; returns the descriptor."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # An editor may have replaced the file while this waited for the lock.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
