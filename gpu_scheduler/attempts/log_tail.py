"""Finds the log of a job and reads its end."""

from __future__ import annotations

import os
import stat

from gpu_scheduler.runner.folder import SHORTAGE, fields_of
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.system.running_process import output_file

#: Number of bytes to read from the end of a log in order to find its last error.
TAIL_BYTES = 64 * 1024
#: A cut first line is dropped, unless it is longer than this many bytes. If it is longer, its last bytes up
#: to this number are kept.
_LONG_LINE_BYTES = 4 * 1024


def current_log(attempt: AttemptRecord) -> str | None:
    """Returns the path of an attempt's log. That of an adopted process may have been renamed or deleted."""
    if attempt.log is None or attempt.watched_pid is None or attempt.watched_ticks is None:
        return attempt.log
    return log_of_process(attempt.watched_pid, attempt.watched_ticks, attempt.log)


def log_of_process(pid: int, ticks: int, log: str | None) -> str | None:
    """Returns the path of the log of an adopted process; `log`, its first path, if it has ended.

    ticks: the start of the process in kernel ticks since boot.
    """
    fields = None if log is None else fields_of(pid)
    return log if fields is None or int(fields[19]) != ticks else output_file(pid) or log


def read_tail(path: str | None, max_bytes: int = TAIL_BYTES) -> str:
    """Returns the last `max_bytes` bytes of a log as text, starting at a line; "" if the log cannot be read.

    If the first line is cut and long, as a progress bar is, the text starts with its last 4 KiB. Reads
    only regular files and follows no links, because other users may write to the folder. Raises OSError for a
    shortage of processes, memory or open files.
    """
    if path is None:
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return ""
            start = max(0, status.st_size - max_bytes)
            data = os.pread(fd, max_bytes, start)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return ""
    if start:
        cut, end, rest = data.partition(b"\n")
        data = cut[-_LONG_LINE_BYTES:] + end + rest if len(cut) > _LONG_LINE_BYTES or not rest else rest
    return data.decode("utf-8", "replace")
