"""Reads files that the scheduler does not own: regular files only, up to a size, and never waiting.

`judge` is the one place that decides, from the open descriptor, whether a file is used at all: its kind, its
size, whose it is and who may write it. `judge_folder` decides the same of a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
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
    LINK = "is a link"
    NOT_A_FOLDER = "is not a folder"
    FOREIGN = "belongs to another user (uid {})"
    FOREIGN_LINK = "is a link of another user (uid {})"
    WORLD_WRITABLE = "may be written by everybody"


_ERRNO = {
    Kind.MISSING: errno.ENOENT,
    Kind.TOO_LARGE: errno.EFBIG,
    Kind.LINK: errno.ELOOP,
    Kind.NOT_A_FOLDER: errno.ENOTDIR,
    Kind.FOREIGN: errno.EPERM,
    Kind.FOREIGN_LINK: errno.EPERM,
    Kind.WORLD_WRITABLE: errno.EPERM,
}
#: What to do about a file that is not used for the sake of those who may change it.
_REMEDIES = {
    Kind.FOREIGN: "use a file of yours, or `start --trust-files`",
    Kind.FOREIGN_LINK: "use a file of yours, or `start --trust-files`",
    Kind.WORLD_WRITABLE: "`chmod o-w` it, or `start --trust-files`",
    Kind.LINK: "remove it",
}


@dataclass(frozen=True)
class FileProblem:
    """Why a file or folder is not used. detail: a limit, the system's word for an error, or a uid."""

    kind: Kind
    detail: str = ""
    errno: int = errno.EIO

    @property
    def says(self) -> str:
        """The problem as a predicate, without a remedy."""
        return self.kind.value.format(self.detail)

    @property
    def remedy(self) -> str:
        """What to do, where that is the same for every file; else ""."""
        return _REMEDIES.get(self.kind, "")

    def __str__(self) -> str:
        return f"{self.says}; {self.remedy}" if self.remedy else self.says

    def error(self, path: Path) -> OSError:
        """The same as an exception, for what passes the system's errors on."""
        if self.kind is Kind.UNREADABLE:
            return OSError(self.errno, self.detail, str(path))
        return OSError(_ERRNO.get(self.kind, errno.EINVAL), str(self), str(path))


@dataclass(frozen=True)
class Content:
    """The content of a file. status: of the descriptor that it was read from, before the first byte."""

    data: bytes
    status: os.stat_result


def read(path: str | Path, most: int = JSON_BYTES, *, trust: bool = False) -> Content | FileProblem:
    """The whole file, links followed, or why it is not read. A FIFO or a device holds up nobody.

    trust: read it whoever owns it or may write it.
    """
    try:
        allowed = None if trust else owners(path)
        if (problem := _judge_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            problem = judge(status, most, allowed)
            data = read_descriptor(fd, most) if problem is None else problem
        finally:
            os.close(fd)
    except OSError as error:
        return of_error(error)
    return data if isinstance(data, FileProblem) else Content(data, status)


def look(
    path: str | Path, most: int | None, *, trust: bool = False, follow: bool = True
) -> os.stat_result | FileProblem:
    """The status of a file that may be used, or why it may not; nothing is read. follow: links are."""
    try:
        allowed = None if trust else owners(path)
        if follow and (problem := _judge_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return judge(status, most, allowed) or status
    except OSError as error:
        return of_error(error)


def owners(path: str | Path) -> frozenset[int]:
    """The users whose file is used at this path: ourselves and root.

    For root, who may be root of a container alone, also the owner of the folder, if nobody else may write it.
    A group with the number of the owner is his alone, as Linux systems make one for each user.
    """
    me = os.geteuid()
    if me != 0:
        return frozenset((me, 0))
    folder = os.stat(os.path.dirname(path) or ".")
    others = stat.S_IWOTH if folder.st_gid == folder.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return frozenset((0, *(() if folder.st_mode & others else (folder.st_uid,))))


def judge(
    status: os.stat_result, most: int | None, allowed: Collection[int] | None = None
) -> FileProblem | None:
    """Judges a file by the status of its open descriptor; None: it may be used.

    most: the bytes that it may have, None = any number. allowed: its `owners`; None: anybody may own and
    write it.
    """
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(Kind.LINK)
    if not stat.S_ISREG(status.st_mode):
        return FileProblem(Kind.NOT_REGULAR)
    if most is not None and status.st_size > most:
        return _too_large(most)
    if allowed is None:
        return None
    if status.st_uid not in allowed:
        return FileProblem(Kind.FOREIGN, str(status.st_uid))
    return FileProblem(Kind.WORLD_WRITABLE) if status.st_mode & stat.S_IWOTH else None


def judge_folder(status: os.stat_result, allowed: Collection[int | None]) -> FileProblem | None:
    """Judges a folder that is private to us by its status, links not followed; None: it may be used."""
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(Kind.LINK)
    if not stat.S_ISDIR(status.st_mode):
        return FileProblem(Kind.NOT_A_FOLDER)
    return None if status.st_uid in allowed else FileProblem(Kind.FOREIGN, str(status.st_uid))


def writable_by_others(status: os.stat_result) -> bool:
    """Whether its group or everybody may write it."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _judge_link(path: str | Path, allowed: Collection[int] | None) -> FileProblem | None:
    """Judges who made the link that the path may be, even where it leads to nothing: through a planted one
    any file of ours could be taken, and one be made anywhere."""
    if allowed is None:
        return None
    status = os.lstat(path)
    is_foreign = stat.S_ISLNK(status.st_mode) and status.st_uid not in allowed
    return FileProblem(Kind.FOREIGN_LINK, str(status.st_uid)) if is_foreign else None


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


def json_bytes(path: Path, *, trust: bool) -> bytes:
    """The bytes of a JSON file. trust: as in `read`. Raises OSError, also for what only we refuse to read."""
    found = read(path, trust=trust)
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
