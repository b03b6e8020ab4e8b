"""Keeps the data directory and its content private to the user and free of links.

Once the directory belongs to the user and is closed to others, nobody else can put anything into it. Own
folders and files that are open to others are closed; anything that belongs to another user is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, check_folder_status, writable_by_others

_OTHERS_BITS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class ExposedPath:
    """A folder or file that others could write until now. mode: its previous permissions."""

    path: Path
    mode: int

    def __str__(self) -> str:
        return (
            f"{self.path} was writable by other users (mode {self.mode:o}) and is now private; it is unknown"
            " whether they changed it"
        )


def allowed_owners(folder: Path) -> frozenset[int]:
    """Returns the users who may own the folder: this user; for root those that `safefile.owners` returns."""
    me = os.geteuid()
    try:
        return safe_file.trusted_owners(folder) if me == 0 else frozenset((me,))
    except OSError:
        return frozenset((me,))


def is_ours(folder: Path) -> bool:
    """Returns whether this is a folder of this user and not a link."""
    try:
        return check_folder_status(os.lstat(folder), allowed_owners(folder)) is None
    except OSError:
        return False


def open_folder(folder: Path) -> int:
    """Opens a folder of this user that is not a link; returns its descriptor. Raises OSError."""
    problem = check_folder_status(os.lstat(folder), allowed_owners(folder))
    if problem is None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        problem = check_folder_status(os.fstat(fd), allowed_owners(folder))
        if problem is None:
            return fd
        os.close(fd)
    raise problem.as_error(folder)


def close_to_others(fd: int, folder: Path) -> list[ExposedPath]:
    """Removes the permissions of other users from the folder and its content.

    Returns the paths that they could write. If that includes the folder itself, its whole tree is checked.
    Raises SchedulerError if something belongs to another user or the file system keeps no permissions, and
    OSError.
    """
    status = os.fstat(fd)
    found = [ExposedPath(folder, stat.S_IMODE(status.st_mode))] if writable_by_others(status) else []
    if status.st_mode & _OTHERS_BITS:
        with suppress(PermissionError):  # raised by vfat
            os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_OTHERS_BITS)
        if os.fstat(fd).st_mode & _OTHERS_BITS:
            raise SchedulerError(
                f"{folder} is open to other users and cannot be made private: its file system keeps no"
                " permissions; name a folder on another file system with --data-dir"
            )
    return [*found, *_check_entries(fd, folder, allowed_owners(folder) | {0}, deep=bool(found))]


def check_entries(folder: Path) -> None:
    """Checks the content of the folder without changing it.

    Raises SchedulerError for links and files of other users, and OSError.
    """
    fd = open_folder(folder)
    try:
        for _ in _check_entries(fd, folder, allowed_owners(folder) | {0}, deep=False, change=False):
            pass
    finally:
        os.close(fd)


def _check_entries(
    fd: int, folder: Path, allowed: frozenset[int], *, deep: bool, change: bool = True
) -> Iterator[ExposedPath]:
    for name in os.listdir(fd):
        path = folder / name
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except FileNotFoundError:
            continue  # a temporary file that has been renamed
        try:
            status = os.fstat(inner)
            _check_entry(path, status, allowed)
            if change and status.st_mode & _OTHERS_BITS and os.geteuid() in (0, status.st_uid):
                with suppress(PermissionError):
                    os.chmod(f"/proc/self/fd/{inner}", stat.S_IMODE(status.st_mode) & ~_OTHERS_BITS)
                if writable_by_others(status):
                    yield ExposedPath(path, stat.S_IMODE(status.st_mode))
            if deep and stat.S_ISDIR(status.st_mode):
                below = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=inner)
                try:
                    yield from _check_entries(below, path, allowed, deep=True, change=change)
                finally:
                    os.close(below)
        finally:
            os.close(inner)


def _check_entry(path: Path, status: os.stat_result, allowed: frozenset[int]) -> None:
    problem = None
    if stat.S_ISLNK(status.st_mode):
        problem = FileProblem(ProblemKind.LINK)
    elif status.st_uid not in allowed:
        problem = FileProblem(ProblemKind.OTHER_OWNER, str(status.st_uid))
    if problem is not None:
        raise SchedulerError(
            f"{path} {problem.description}, which is not allowed in a data directory; remove it, or name"
            " another folder with --data-dir"
        )
