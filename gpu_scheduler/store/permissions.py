"""Keeps the data directory and its content private to the user and free of links.

Once the directory belongs to the user and is closed to others, nobody else can put anything into it. The
scheduler closes the user's own folders and files to others, and rejects whatever belongs to another user.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.system import safe_file
from gpu_scheduler.system.safe_file import FileProblem, ProblemKind, check_folder_status, writable_by_others
from gpu_scheduler.system.users import name_of_user

_OTHERS_BITS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class ExposedPath:
    """A folder or file to which other users could write until now. mode: its previous permissions."""

    path: Path
    mode: int

    def __str__(self) -> str:
        return (
            f"{self.path} was writable by other users (mode {self.mode:o}) and is now private; it is unknown"
            " whether they changed it"
        )


def allowed_owners(folder: Path) -> frozenset[int]:
    """Returns the uids that may own the folder: this user's or, for root, `safe_file.trusted_owners`."""
    me = os.geteuid()
    try:
        return safe_file.trusted_owners(folder) if me == 0 else frozenset((me,))
    except OSError:
        return frozenset((me,))


def is_ours(folder: Path) -> bool:
    """Returns whether the path is a folder that belongs to this user, and not a link."""
    try:
        return check_folder_status(os.lstat(folder), allowed_owners(folder)) is None
    except OSError:
        return False


def check_access(folder: Path, files: tuple[Path, ...]) -> None:
    """Checks that a data directory belongs to this user, is not a link and can be entered.

    Accepts a missing directory. files: the store's files outside the directory, which the remedy names.
    Raises SchedulerError with a message that names the owner and the remedy.
    """
    try:
        status = os.lstat(folder)
    except OSError:
        return  # a missing or inaccessible path is reported when it is used
    problem = check_folder_status(status, allowed_owners(folder))
    if problem is None:
        if os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
            return
        raise SchedulerError(f"{folder} cannot be entered; run `chmod u+rwx {shlex.quote(str(folder))}`")
    if problem.kind is not ProblemKind.OTHER_OWNER:
        remedy = "remove it, or name another folder with --data-dir"
        target = Path(os.path.realpath(folder))
        if problem.kind is ProblemKind.LINK and status.st_uid == os.geteuid() and is_ours(target):
            # If the user only removed the link, every line of the jobs file would count as new.
            there, here = shlex.quote(str(target)), shlex.quote(str(folder))
            remedy = (
                f"to use the store at the link's target, add --data-dir {there} to every command, or run"
                f" `rm {here} && mv {there} {here}` once"
            )
        raise SchedulerError(
            f"{folder} {problem.description}, but must be the data directory itself; {remedy}"
        )
    owner = status.st_uid
    if owner != 0:
        raise SchedulerError(
            f"{folder} belongs to another user ({name_of_user(owner)}); name your own state file"
            " with --state-file"
        )
    paths = shlex.join(map(str, (folder, *files)))
    raise SchedulerError(
        f"{folder} belongs to root, because a `start` with sudo created it\n"
        "use sudo for every command, or end the scheduler (`stop --jobs` with sudo) and take ownership:"
        f" sudo chown -R {os.geteuid()} {paths}"
    )


def open_folder(folder: Path) -> int:
    """Opens a folder that belongs to this user and is not a link. Returns its descriptor. Raises OSError."""
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

    Returns the paths to which other users could write. If these include the folder itself, checks its whole
    tree. Raises OSError, and SchedulerError if something belongs to another user or the file system does not
    store permissions.
    """
    status = os.fstat(fd)
    found = [ExposedPath(folder, stat.S_IMODE(status.st_mode))] if writable_by_others(status) else []
    if status.st_mode & _OTHERS_BITS:
        with suppress(PermissionError):  # raised by vfat
            os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_OTHERS_BITS)
        if os.fstat(fd).st_mode & _OTHERS_BITS:
            raise SchedulerError(
                f"{folder} is open to other users and cannot be made private, because its file system"
                " does not store permissions; name a folder on another file system with --data-dir"
            )
    return [*found, *_check_entries(fd, folder, allowed_owners(folder) | {0}, deep=bool(found))]


def check_entries(folder: Path) -> None:
    """Checks the content of the folder without changing it.

    Raises OSError, and SchedulerError if the folder contains a link or a file that belongs to another user.
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
