"""Finds health issues of the files and folders that we write to.

The checks try to write, since the number of free bytes does not show whether a quota, a mount or a permission
allows it. `find_issues` runs all checks once, for the scheduler and for readers alike.
"""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.safefile import JSON_BYTES, FileProblem, Kind, look
from gpu_scheduler.store import statefile
from gpu_scheduler.store.home import Home

#: Errors that may occur for a while without a defect of ours: a full disk, a locked store.
FAILURES = (OSError, sqlite3.OperationalError)
#: Key of the log folder in the store.
LOG_FOLDER = "log_folder"
#: Bytes that must be free: for one more attempt folder, and for the results of the running attempts.
ROOM = 64 * 1024

_FORBIDDEN = (errno.EACCES, errno.EPERM)
#: Errors that mean a folder cannot be written; others only mean that unnamed files are not supported.
_TOLD = (*_FORBIDDEN, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.ESTALE)


def troubles(home: Home, logs: LogFolder | None, *, trust: bool = False) -> tuple[Trouble, ...]:
    """Returns the present health issues, those that stop new starts first. Changes nothing.

    log_folder: None if not known. trust: files are used whoever owns them or may write them.
    """
    found = [*_of_logs(logs)] if logs is not None else []
    store = _of_folder("store", home.folder, home.runs)
    if store is not None:
        found.append(store)
    is_reported = store is not None and _same_disk(home.folder, statefile.target(home.state_file).parent)
    found += _of_files(home, told=is_reported, trust=trust)
    return tuple(sorted(found, key=lambda issue: not issue.stops))


def refusal(home: Home, error: Exception) -> str:
    """Returns a message saying why the store cannot be used, with the remedy."""
    for issue in troubles(home, None):
        if issue.stops:
            return f"{issue} ({error})"
    if "locked" in str(error):
        return f"{home.database}: {error}: end the program that holds the lock, then try again"
    return f"{home.database}: {error}: check its permissions and those of its folder"


def _of_logs(logs: LogFolder) -> Iterator[Trouble]:
    usable = logs.usable()
    remedy = "remove it, or name a folder that you own with --log-dir"
    for path in logs.paths:
        why = logs.foreign(path)
        if why is None:
            break
        instead = f"job logs go to {usable}; {remedy}" if usable is not None else remedy
        yield Trouble("log folder", str(path), why, instead, stops=usable is None)
    if usable is not None:
        issue = _of_folder("log folder", usable)
        if issue is not None:
            yield issue


def _of_folder(what: str, folder: Path, within: Path | None = None) -> Trouble | None:
    """Returns the issue that keeps a folder from being written; None if it can be.

    For a missing folder, which is created when needed, the nearest existing parent is checked. path_within: a
    path inside the folder, checked in its place.
    """
    path = within or folder
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    error = _cannot_hold(path)
    return None if error is None else Trouble(what, str(folder), *_words(error, path), stops=True)


def _of_files(home: Home, *, told: bool, trust: bool) -> Iterator[Trouble]:
    """Yields issues of the state file and the main log, unless their disk is reported; they stop nothing."""
    path = statefile.target(home.state_file)
    error = _cannot_hold(path.parent)
    if error is not None and (not told or error.errno in _FORBIDDEN):
        yield Trouble("state file", str(path), *_words(error, path.parent), stops=False)
    elif error is None:
        yield from _of_file("state file", home.state_file, os.R_OK, trust)
        yield from _of_file("main log", home.log, os.W_OK, trust)


def refused(what: str, path: Path, *, trust: bool, most: int | None = JSON_BYTES) -> Trouble | None:
    """Returns the issue of a file that is rejected for its kind, size, owner or permissions.

    None: the file is used, or missing.
    """
    found = look(path, most, trust=trust, follow=most is not None)
    if not isinstance(found, FileProblem) or found.kind is Kind.MISSING:
        return None
    if found.kind is Kind.UNREADABLE and found.errno in SHORTAGE:
        return None  # the machine is short of resources; the file may be fine
    if found.kind is Kind.UNREADABLE:
        return Trouble(what, str(path), f"cannot be opened ({found.detail})", "remove it", stops=False)
    return Trouble(what, str(path), found.says, found.remedy or "remove it, or move it aside", stops=False)


def _of_file(what: str, path: Path, access: int, trust: bool) -> Iterator[Trouble]:
    issue = refused(what, path, trust=trust, most=JSON_BYTES if access == os.R_OK else None)
    if issue is not None:
        yield issue
    elif path.exists() and not os.access(path, access, effective_ids=True):
        verb = "readable" if access == os.R_OK else "writable"
        remedy = f"chmod u+rw {shlex.quote(str(path))}"
        yield Trouble(what, str(path), f"is not {verb}", remedy, stops=False)


def _cannot_hold(folder: Path) -> OSError | None:
    """Writes REQUIRED_BYTES into an unnamed file in the folder; returns the error, None on success."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error if error.errno in _TOLD else _by_numbers(folder)
    try:
        if os.write(fd, bytes(ROOM)) < ROOM:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None
    except OSError as error:
        return error
    finally:
        os.close(fd)


def _by_numbers(folder: Path) -> OSError | None:
    number = 0
    try:
        if not folder.is_dir():
            number = errno.ENOTDIR
        elif not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            number = errno.EACCES
        else:
            disk = os.statvfs(folder)
            free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
            number = errno.ENOSPC if free * disk.f_frsize < ROOM else 0
    except OSError as error:
        return error
    return OSError(number, os.strerror(number)) if number else None


def _words(error: OSError, folder: Path) -> tuple[str, str]:
    if error.errno == errno.ENOSPC:
        return "is on a full disk", "free space there"
    if error.errno == errno.EDQUOT:
        return "is over your quota", "free space there"
    if error.errno == errno.EROFS:
        return "is on a read-only file system", "mount it for writing"
    if error.errno in _FORBIDDEN:
        return "is not writable", f"chmod u+rwx {shlex.quote(str(folder))}"
    return f"cannot be written ({error.strerror})", f"check {folder}"


def _same_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return False
