"""Reads the file in which a job reports its own progress, named by $GPU_SCHEDULER_PROGRESS.

The last line that is a whole JSON object counts, such as
{"step": 50, "total": 300, "checkpoint": "out/checkpoint-50"}. A value of another type is ignored.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.text.strict_json import decode, parse

#: The name of the file in the attempt folder.
PROGRESS_FILE = "progress"
#: Number of bytes to read from the end of the file.
_MAX_BYTES = 16 * 1024


@dataclass(frozen=True)
class ReportedProgress:
    """The progress that a job reports. Values are None if they are missing.

    at: when it was written, in wall seconds.
    """

    step: float | None = None
    total: float | None = None
    checkpoint: str | None = None
    at: float | None = None


def read_progress_file(path: str | None) -> ReportedProgress | None:
    """Returns what a job reports; None if there is no such file or no usable line in it."""
    if path is None:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = os.pread(fd, _MAX_BYTES, max(0, status.st_size - _MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)
    for line in reversed(data.split(b"\n")):
        value = _object(line)
        if value is not None:
            return ReportedProgress(
                _number(value.get("step")), _number(value.get("total")), _path(value), status.st_mtime
            )
    return None


def first_report(path: str, reported: ReportedProgress) -> ReportedProgress:
    """Returns the first report that anybody has read, which is kept beside the file, or this one.

    A job may write each report over the one before it.
    """
    kept = f"{path}.first"
    first = read_progress_file(kept)
    if first is None and reported.step is not None and reported.at is not None:
        try:
            with open(kept, "x", encoding="ascii") as file:
                file.write(f'{{"step": {reported.step}}}\n')
            os.utime(kept, (reported.at, reported.at))
        except OSError:
            pass  # the folder cannot be written, or another reader is faster
    return first or reported


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse(decode(line.strip()))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else None


def _path(value: dict[str, Any]) -> str | None:
    path = value.get("checkpoint")
    return path if isinstance(path, str) and path and "\0" not in path else None
