"""The end of a job's log, as far as it is needed."""

from __future__ import annotations

import os
import stat

from gpu_scheduler.shortages import reraise

#: Bytes of a log that are looked through for its last error.
TAIL = 64 * 1024
#: Of a line that is longer than that, the bytes at its end that count.
_END = 4 * 1024


def tail_of(path: str | None, most: int = TAIL) -> str:
    """The end of a log, from the beginning of a line, or where that would be all of it or most of it, as of a
    progress bar, from somewhere in its end; "" where it cannot be read.

    Neither a link nor anything but a plain file is opened: the folder may be one that others write to.
    Raises OSError for a shortage.
    """
    if path is None:
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return ""
            start = max(0, status.st_size - most)
            data = os.pread(fd, most, start)
        finally:
            os.close(fd)
    except OSError as error:
        reraise(error)
        return ""
    if start:
        cut, end, rest = data.partition(b"\n")
        data = cut[-_END:] + end + rest if len(cut) > _END or not rest else rest
    return data.decode("utf-8", "replace")
