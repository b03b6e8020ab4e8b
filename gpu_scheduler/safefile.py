"""Reads files that the scheduler does not own: regular files only, up to a size, and never waiting.

`judge` is the one place that decides, from the open descriptor, whether a file is used at all.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

#: A larger JSON file (state file, llm_config.json, the name of a host) is refused.
JSON_BYTES = 16 * 1024 * 1024
#: Bytes that one read asks for.
_PIECE = 256 * 1024


class Kind(Enum):
    """Why a file is not read, as the predicate that people are told."""

    MISSING = "there is no such file"
    NOT_REGULAR = "is not a regular file"
    TOO_LARGE = "is larger than {}"
    UNREADABLE = "cannot be read: {}"


_ERRNO = {Kind.MISSING: errno.ENOENT, Kind.NOT_REGULAR: errno.EINVAL, Kind.TOO_LARGE: errno.EFBIG}


@dataclass(frozen=True)
class FileProblem:
    """Why a file has no content for us. detail: the limit in words, or the system's word for the error."""

    kind: Kind
    detail: str = ""
    errno: int = errno.EIO

    def __str__(self) -> str:
        return self.kind.value.format(self.detail)

    def error(self, path: Path) -> OSError:
        """The same as an exception, for what passes the system's errors on."""
        if self.kind is Kind.UNREADABLE:
            return OSError(self.errno, self.detail, str(path))
        return OSError(_ERRNO[self.kind], str(self), str(path))


@dataclass(frozen=True)
class Content:
    """The content of a file. status: of the descriptor that it was read from, before the first byte."""

    data: bytes
    status: os.stat_result


def read(path: str | Path, most: int = JSON_BYTES) -> Content | FileProblem:
    """The whole file, links followed, or why it is not read. A FIFO or a device holds up nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            problem = judge(status, most)
            data = read_descriptor(fd, most) if problem is None else problem
        finally:
            os.close(fd)
    except OSError as error:
        return of_error(error)
    return data if isinstance(data, FileProblem) else Content(data, status)


def judge(status: os.stat_result, most: int | None) -> FileProblem | None:
    """Judges a file by the status of its open descriptor; None: it may be used.

    most: the bytes that it may have, None = any number.
    """
    if not stat.S_ISREG(status.st_mode):
        return FileProblem(Kind.NOT_REGULAR)
    return _too_large(most) if most is not None and status.st_size > most else None


def read_descriptor(fd: int, most: int) -> bytes | FileProblem:
    """All that can be read there, piece by piece; TOO_LARGE once it is more than `most` bytes.

    The size at the opening is no bound: a file may grow while it is read. Raises OSError.
    """
    pieces: list[bytes] = []
    size = 0
    while size <= most:
        piece = os.read(fd, min(_PIECE, most + 1 - size))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return _too_large(most)


def json_bytes(path: Path) -> bytes:
    """The bytes of a JSON file. Raises OSError, also for what only we refuse to read."""
    found = read(path)
    if isinstance(found, FileProblem):
        raise found.error(path)
    return found.data


def of_error(error: OSError) -> FileProblem:
    """The problem that an error of opening or reading comes to."""
    if error.errno == errno.ENOENT:
        return FileProblem(Kind.MISSING)
    if error.errno == errno.ENXIO:  # a socket, a device without a driver
        return FileProblem(Kind.NOT_REGULAR)
    return FileProblem(Kind.UNREADABLE, error.strerror or str(error), error.errno or errno.EIO)


def _too_large(most: int) -> FileProblem:
    return FileProblem(Kind.TOO_LARGE, f"{most / 1024**2:g} MiB")
