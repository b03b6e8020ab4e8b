"""Finds health issues of the files and folders to which the scheduler writes.

The checks try to write, because the number of free bytes does not show whether quotas, mounts and permissions
allow writing. `find_issues` runs all checks once, both for the scheduler and for readers.
"""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.core.model.finding import Check, HealthIssue
from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.system.safe_file import MAX_JSON_BYTES, FileProblem, ProblemKind, inspect

#: Errors that can have a temporary cause outside this program, such as a full disk or a locked store.
STORAGE_ERRORS = (OSError, sqlite3.OperationalError)
#: The key under which the store keeps the log folder.
LOG_FOLDER_KEY = "log_folder"
#: The free bytes that one more attempt folder and the results of the running attempts need.
REQUIRED_BYTES = 64 * 1024

_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM)
#: These errors mean that a folder cannot be written. Other errors only mean that its file system does not
#: support unnamed files.
_CONCLUSIVE_ERRNOS = (
    *_PERMISSION_ERRNOS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.ENOTDIR,
    errno.ESTALE,
)


def find_issues(
    data_dir: DataDir, log_folder: LogFolder | None, *, trust: bool = False
) -> tuple[HealthIssue, ...]:
    """Returns the current health issues; those that stop new starts come first. Changes nothing.

    log_folder: None if unknown; trust: use files regardless of their owner and mode.
    """
    found = [*_log_folder_issues(log_folder)] if log_folder is not None else []
    store = _folder_issue("store", data_dir.folder, data_dir.runs)
    if store is not None:
        found.append(store)
    is_reported = store is not None and _same_disk(
        data_dir.folder, state_file.link_target(data_dir.state_file).parent
    )
    found += _file_issues(data_dir, disk_reported=is_reported, trust=trust)
    return tuple(sorted(found, key=lambda issue: not issue.blocks_starts))


def describe_store_error(data_dir: DataDir, error: Exception) -> str:
    """Returns a message that says why the store cannot be used, with the remedy."""
    for issue in find_issues(data_dir, None):
        if issue.blocks_starts:
            return f"{issue} ({error})"
    if "locked" in str(error):
        return f"{data_dir.database}: {error}; end the program that holds the lock, then try again"
    return f"{data_dir.database}: {error}; check the permissions of the file and of its folder"


def _log_folder_issues(log_folder: LogFolder) -> Iterator[HealthIssue]:
    usable = log_folder.usable_path()
    remedy = "remove it, or name a folder that you own with --log-dir"
    for path in log_folder.paths:
        why = log_folder.problem_with(path)
        if why is None:
            break
        instead = f"{remedy}; until then, job logs go to {usable}" if usable is not None else remedy
        yield HealthIssue("log folder", str(path), why, instead, blocks_starts=usable is None)
    if usable is not None:
        issue = _folder_issue("log folder", usable)
        if issue is not None:
            yield issue


def _folder_issue(subject: Check, folder: Path, path_within: Path | None = None) -> HealthIssue | None:
    """Returns the reason why a folder cannot be written, as an issue; None if it can be written.

    A missing folder is created when it is needed, so the check tests its nearest existing parent.
    path_within: a path inside the folder that the check tests instead.
    """
    path = path_within or folder
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    error = _write_error(path)
    if error is None:
        return None
    return HealthIssue(subject, str(folder), *_problem_and_remedy(error, path), blocks_starts=True)


def _file_issues(data_dir: DataDir, *, disk_reported: bool, trust: bool) -> Iterator[HealthIssue]:
    """Yields the issues of the state file and the main log, which do not stop new starts.

    disk_reported: whether another issue already reports their disk; if so, only issues with other causes are
    yielded.
    """
    path = state_file.link_target(data_dir.state_file)
    error = _write_error(path.parent)
    if error is not None and (not disk_reported or error.errno in _PERMISSION_ERRNOS):
        problem, remedy = _problem_and_remedy(error, path.parent)
        yield HealthIssue("state file", str(path), problem, remedy, blocks_starts=False)
    elif error is None:
        yield from _file_access_issues("state file", data_dir.state_file, os.R_OK, trust)
        yield from _file_access_issues("main log", data_dir.main_log, os.W_OK, trust)


def unusable_file_issue(
    subject: Check, path: Path, *, trust: bool, max_bytes: int | None = MAX_JSON_BYTES
) -> HealthIssue | None:
    """Returns an issue if a file is rejected for its kind, size, owner or permissions.

    Returns None if the file is missing or can be used.
    """
    found = inspect(path, max_bytes, trust=trust, follow_links=max_bytes is not None)
    if not isinstance(found, FileProblem) or found.kind is ProblemKind.MISSING:
        return None
    if found.kind is ProblemKind.UNREADABLE and found.errno in SHORTAGE:
        return None  # the machine is short of resources, so nothing is known about the file
    problem, remedy = found.description, found.remedy or "remove it, or move it aside"
    if found.kind is ProblemKind.UNREADABLE:
        problem, remedy = f"cannot be opened ({found.detail})", "remove it"
    return HealthIssue(subject, str(path), problem, remedy, blocks_starts=False)


def _file_access_issues(subject: Check, path: Path, access: int, trust: bool) -> Iterator[HealthIssue]:
    max_bytes = MAX_JSON_BYTES if access == os.R_OK else None
    issue = unusable_file_issue(subject, path, trust=trust, max_bytes=max_bytes)
    if issue is not None:
        yield issue
    elif path.exists() and not os.access(path, access, effective_ids=True):
        verb = "readable" if access == os.R_OK else "writable"
        remedy = f"chmod u+rw {shlex.quote(str(path))}"
        yield HealthIssue(subject, str(path), f"is not {verb}", remedy, blocks_starts=False)


def _write_error(folder: Path) -> OSError | None:
    """Writes REQUIRED_BYTES into an unnamed file in the folder; returns the error, None on success."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error if error.errno in _CONCLUSIVE_ERRNOS else _write_error_from_stat(folder)
    try:
        if os.write(fd, bytes(REQUIRED_BYTES)) < REQUIRED_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None
    except OSError as error:
        return error
    finally:
        os.close(fd)


def _write_error_from_stat(folder: Path) -> OSError | None:
    number = 0
    try:
        if not folder.is_dir():
            number = errno.ENOTDIR
        elif not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            number = errno.EACCES
        else:
            disk = os.statvfs(folder)
            free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
            number = errno.ENOSPC if free * disk.f_frsize < REQUIRED_BYTES else 0
    except OSError as error:
        return error
    return OSError(number, os.strerror(number)) if number else None


def _problem_and_remedy(error: OSError, folder: Path) -> tuple[str, str]:
    if error.errno == errno.ENOSPC:
        return "is on a full disk", "free some space there"
    if error.errno == errno.EDQUOT:
        return "is over your quota", "free some space there"
    if error.errno == errno.EROFS:
        return "is on a read-only file system", "remount it for writing"
    if error.errno in _PERMISSION_ERRNOS:
        return "is not writable", f"chmod u+rwx {shlex.quote(str(folder))}"
    return f"cannot be written ({error.strerror})", f"check {folder}"


def _same_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return False
