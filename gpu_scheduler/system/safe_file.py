"""Reads files that the scheduler does not own: regular files only, up to a size limit, and never blocking.

`check_status` alone decides, from the open descriptor, whether a file is used: by its kind, size, owner and
permissions. `check_folder_status` decides the same for a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

#: Largest JSON file that is read (state file, llm_config.json, the name of a host).
MAX_JSON_BYTES = 16 * 1024 * 1024
#: Bytes of one read call.
_CHUNK_BYTES = 256 * 1024


class ProblemKind(Enum):
    """The reason why a file is not read; the value is the predicate in messages."""

    MISSING = "does not exist"
    NOT_REGULAR = "is not a regular file"
    TOO_LARGE = "is larger than {}"
    UNREADABLE = "cannot be read: {}"
    LINK = "is a link"
    NOT_A_FOLDER = "is not a folder"
    OTHER_OWNER = "belongs to another user (uid {})"
    OTHER_OWNER_LINK = "is a link of another user (uid {})"
    WORLD_WRITABLE = "is writable by everyone"
    WRONG_CONTENT = "{}"


_ERRNOS = {
    ProblemKind.MISSING: errno.ENOENT,
    ProblemKind.TOO_LARGE: errno.EFBIG,
    ProblemKind.LINK: errno.ELOOP,
    ProblemKind.NOT_A_FOLDER: errno.ENOTDIR,
    ProblemKind.OTHER_OWNER: errno.EPERM,
    ProblemKind.OTHER_OWNER_LINK: errno.EPERM,
    ProblemKind.WORLD_WRITABLE: errno.EPERM,
}
#: Remedies for a file that is not used because others could change it.
_REMEDIES = {
    ProblemKind.OTHER_OWNER: "use a file that you own, or `start --trust-files`",
    ProblemKind.OTHER_OWNER_LINK: "use a file that you own, or `start --trust-files`",
    ProblemKind.WORLD_WRITABLE: "`chmod o-w` it, or `start --trust-files`",
    ProblemKind.LINK: "remove it",
}


@dataclass(frozen=True)
class FileProblem:
    """The problem of an unusable file or folder. detail: fills the kind's text, such as a limit or a uid."""

    kind: ProblemKind
    detail: str = ""
    errno: int = errno.EIO

    @property
    def description(self) -> str:
        """Returns the problem as a predicate, without a remedy."""
        return self.kind.value.format(self.detail)

    @property
    def remedy(self) -> str:
        """Returns the remedy if it is the same for every file, or ""."""
        return _REMEDIES.get(self.kind, "")

    def __str__(self) -> str:
        return f"{self.description}; {self.remedy}" if self.remedy else self.description

    def as_error(self, path: Path) -> OSError:
        """Returns the problem as an OSError, for callers that pass on system errors."""
        if self.kind is ProblemKind.UNREADABLE:
            return OSError(self.errno, self.detail, str(path))
        return OSError(_ERRNOS.get(self.kind, errno.EINVAL), str(self), str(path))


@dataclass(frozen=True)
class Content:
    """The content of a file. status: the descriptor's status before the first byte was read."""

    data: bytes
    status: os.stat_result


def read(path: str | Path, max_bytes: int = MAX_JSON_BYTES, *, trust: bool = False) -> Content | FileProblem:
    """Returns the whole file, following links, or why it is not read. Never blocks on a FIFO or device.

    trust: read it regardless of its owner and mode.
    """
    try:
        allowed = None if trust else trusted_owners(path)
        if (problem := _check_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            status = os.fstat(fd)
            problem = check_status(status, max_bytes, allowed)
            data = read_descriptor(fd, max_bytes) if problem is None else problem
        finally:
            os.close(fd)
    except OSError as error:
        return problem_from_error(error)
    return data if isinstance(data, FileProblem) else Content(data, status)


def inspect(
    path: str | Path, max_bytes: int | None, *, trust: bool = False, follow_links: bool = True
) -> os.stat_result | FileProblem:
    """Returns a file's status, or the reason why it must not be used, without reading the file."""
    try:
        allowed = None if trust else trusted_owners(path)
        if follow_links and (problem := _check_link(path, allowed)) is not None:
            return problem
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW))
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return check_status(status, max_bytes, allowed) or status
    except OSError as error:
        return problem_from_error(error)


def trusted_owners(path: str | Path) -> frozenset[int]:
    """Returns the users whose files are used at this path: ourselves and root.

    For root, possibly of a container only, also the folder's owner if nobody else may write the folder.
    A group whose id equals the owner's uid is treated as the owner's private group, as Linux creates them.
    """
    me = os.geteuid()
    if me != 0:
        return frozenset((me, 0))
    folder = os.stat(os.path.dirname(path) or ".")
    others = stat.S_IWOTH if folder.st_gid == folder.st_uid else stat.S_IWOTH | stat.S_IWGRP
    return frozenset((0, *(() if folder.st_mode & others else (folder.st_uid,))))


def check_status(
    status: os.stat_result, max_bytes: int | None, allowed_owners: Collection[int] | None = None
) -> FileProblem | None:
    """Returns why a file must not be used, by the status of its open descriptor; None: it may be used.

    max_bytes: None: no limit. allowed_owners: its `trusted_owners`; None: anyone may own and write it.
    """
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(ProblemKind.LINK)
    if not stat.S_ISREG(status.st_mode):
        return FileProblem(ProblemKind.NOT_REGULAR)
    if max_bytes is not None and status.st_size > max_bytes:
        return _too_large(max_bytes)
    if allowed_owners is None:
        return None
    if status.st_uid not in allowed_owners:
        return FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
    return FileProblem(ProblemKind.WORLD_WRITABLE) if status.st_mode & stat.S_IWOTH else None


def check_folder_status(status: os.stat_result, allowed_owners: Collection[int | None]) -> FileProblem | None:
    """Returns why a folder cannot be our private one, by its status from `lstat`; None: it can."""
    if stat.S_ISLNK(status.st_mode):
        return FileProblem(ProblemKind.LINK)
    if not stat.S_ISDIR(status.st_mode):
        return FileProblem(ProblemKind.NOT_A_FOLDER)
    return (
        None if status.st_uid in allowed_owners else FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
    )


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Returns a value that differs for each version of a file, and after a change of owner or permissions."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def writable_by_others(status: os.stat_result) -> bool:
    """Returns whether the group or everyone may write it."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _check_link(path: str | Path, allowed_owners: Collection[int] | None) -> FileProblem | None:
    """Returns the problem if the path is another user's link, even a dangling one.

    A planted link could make us read any of our files, or create one anywhere.
    """
    if allowed_owners is None:
        return None
    status = os.lstat(path)
    is_foreign = stat.S_ISLNK(status.st_mode) and status.st_uid not in allowed_owners
    return FileProblem(ProblemKind.OTHER_OWNER_LINK, str(status.st_uid)) if is_foreign else None


def read_descriptor(fd: int, max_bytes: int) -> bytes | FileProblem:
    """Returns all bytes of a descriptor, or TOO_LARGE if there are more than `max_bytes`. Raises OSError.

    The size at opening is not a limit: a file may grow while it is read.
    """
    pieces: list[bytes] = []
    size = 0
    while size <= max_bytes:
        piece = os.read(fd, min(_CHUNK_BYTES, max_bytes + 1 - size))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return _too_large(max_bytes)


def read_json_bytes(path: Path, *, trust: bool) -> bytes:
    """Returns the bytes of a JSON file. trust: as in `read`. Raises OSError, also for a rejected file."""
    found = read(path, trust=trust)
    if isinstance(found, FileProblem):
        raise found.as_error(path)
    return found.data


def problem_from_error(error: OSError) -> FileProblem:
    """Returns the problem that an OSError of opening or reading stands for."""
    if error.errno == errno.ENOENT:
        return FileProblem(ProblemKind.MISSING)
    if error.errno == errno.ENXIO:  # a socket, a device without a driver
        return FileProblem(ProblemKind.NOT_REGULAR)
    return FileProblem(ProblemKind.UNREADABLE, error.strerror or str(error), error.errno or errno.EIO)


def _too_large(max_bytes: int) -> FileProblem:
    return FileProblem(ProblemKind.TOO_LARGE, f"{max_bytes / 1024**2:g} MiB")
