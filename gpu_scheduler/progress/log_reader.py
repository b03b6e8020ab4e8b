"""Reads the end of a log, and later only what has been added to it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence

from gpu_scheduler.core.progress.log_window import MAX_LINES, LogWindow
from gpu_scheduler.core.progress.marks import Mark

#: Number of bytes that are read at first. More are read only if they have too few lines.
_FIRST_BYTES = 64 * 1024
#: Maximum number of bytes to read at a time. A bar that is drawn ten times a second fills them in an hour.
_MAX_BYTES = 4 * 1024 * 1024
#: Number of bytes at the beginning of a log in which the first progress of an attempt is looked for.
_HEAD_BYTES = 128 * 1024
#: Seconds of CPU time that one reading may take, and seconds for which a log that takes longer is not read.
_BUDGET_S, _PAUSE_S = 0.25, 60.0


class LogReader:
    """The end of one log, and its beginning.

    modified_at: when the log was last written, in wall seconds; None if unknown. head: its first bytes.
    """

    def __init__(self) -> None:
        self.head = b""
        self.modified_at: float | None = None
        self._file: tuple[int, int] | None = None
        self._end = 0
        self._window = LogWindow()
        self._paused_until = float("-inf")

    def read(self, path: str) -> bool:
        """Reads what is new; returns whether anything is. A log that cannot be read has no progress.

        Follows no link in the last part of the path and reads only regular files. A log that takes too long
        shows no progress for a minute.
        """
        if time.monotonic() < self._paused_until:
            return False
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return self._forget()
        try:
            status = os.fstat(fd)
            return self._read(fd, status) if stat.S_ISREG(status.st_mode) else self._forget()
        except OSError:
            return self._forget()
        finally:
            os.close(fd)

    def marks(self) -> Sequence[Mark]:
        """Returns what the last lines show, oldest first."""
        return self._window.marks()

    def _read(self, fd: int, status: os.stat_result) -> bool:
        file, size = (status.st_dev, status.st_ino), status.st_size
        self.modified_at = status.st_mtime
        if file == self._file and size == self._end:
            return False
        if file != self._file or not 0 <= size - self._end <= _MAX_BYTES:
            self._window = LogWindow()
            data = _read_end(fd, size)
            self.head = data[:_HEAD_BYTES] if len(data) == size else os.pread(fd, _HEAD_BYTES, 0)
        else:
            data = os.pread(fd, size - self._end, self._end)
            size = self._end + len(data)
            self.head += data[: max(0, _HEAD_BYTES - len(self.head))]
        end = time.thread_time() + _BUDGET_S
        if not self._window.feed(data, lambda: time.thread_time() > end):
            self._paused_until = time.monotonic() + _PAUSE_S
            self._forget()
            return True
        self._file, self._end = file, size
        return True

    def _forget(self) -> bool:
        was_known = self._file is not None
        self.modified_at, self._file, self._end, self._window = None, None, 0, LogWindow()
        self.head = b""
        return was_known


def _read_end(fd: int, size: int) -> bytes:
    """Returns the last bytes of a file, beginning with a whole line if they contain one."""
    count = _FIRST_BYTES
    while True:
        start = max(0, size - count)
        data = os.pread(fd, size - start, start)
        if start == 0:
            return data
        if count >= _MAX_BYTES or _line_count(data) > MAX_LINES:
            _, newline, rest = data.partition(b"\n")
            return rest if newline else data
        count *= 4


def _line_count(data: bytes) -> int:
    """Returns the number of lines, without those that are only frames of an enclosed bar."""
    return data.count(b"\n") - data.count(b"\x1b[A\n")
