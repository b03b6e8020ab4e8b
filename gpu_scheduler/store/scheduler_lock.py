"""Ensures that a store has only one scheduler, with locks that the kernel releases when their holder dies.

The lock that counts is on the data directory, because nobody can remove it without removing the directory.
The scheduler also locks the file `lock` in the directory, so that readers can find the holder without taking
a lock. If the file is missing, they find the holder of the directory's lock in /proc/locks. Other programs,
such as a backup, may lock the directory too. A holder is a scheduler if it also has the file `lock` open,
even if that file was removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import asdict

from gpu_scheduler.core.text.parsing import parse_json
from gpu_scheduler.errors import NotOwnerError, SchedulerError
from gpu_scheduler.runner.locks import conflicting_lock, try_lock
from gpu_scheduler.store import data_dir as permissions
from gpu_scheduler.store.data_dir import DataDir, Host, is_ours, this_host
from gpu_scheduler.system.safe_file import FileProblem, read, user_state_dir, writable_by_others

#: Seconds to wait for the lock on a folder whose holder is not a scheduler. If a scheduler has died, a child
#: that it had just forked keeps the lock until it executes its program; and a command may be creating the
#: store or running a round.
_OTHER_HOLDER_WAIT_S = 5.0
_RETRY_S = 0.01
#: Errors from file systems, mostly network file systems, that do not support locks on folders.
_UNSUPPORTED_ERRNOS = (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class InstanceLock:
    """The locks of a scheduler, held until it calls `release` or dies. Child programs do not inherit them.

    path: the lock file in the data directory. Opening and closing it elsewhere in this process would release
    the lock. Raises OSError if the files cannot be opened, or if the folder is a link or belongs to another
    user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = permissions.open_folder(path.parent)
        try:
            self._file = self._open_lock_file()
        except BaseException:
            os.close(self._folder)
            raise

    def acquire(self) -> bool:
        """Tries to take the locks. Returns whether this process has them now."""
        return self._lock_folder() and self.locks_folder(self._path.parent) and _try_lock(self._file)

    def _lock_folder(self) -> bool:
        """Tries to lock the folder. Also returns True if the file system does not support such a lock."""
        end = time.monotonic() + _OTHER_HOLDER_WAIT_S
        while not _try_flock(self._folder):
            if self.holder_pid() is not None or time.monotonic() > end:
                return False
            time.sleep(_RETRY_S)
        return True

    def locks_folder(self, folder: Path) -> bool:
        """Returns whether the folder at this path is the locked one."""
        try:
            return os.path.samestat(os.lstat(folder), os.fstat(self._folder))
        except OSError:
            return False

    def restore_lock_file(self) -> bool:
        """Recreates and locks the lock file if it was removed or replaced.

        Returns False if another process holds the lock on the replacement.
        """
        try:
            current = os.stat(self._path.name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(current, os.fstat(self._file)):
                return True
        except OSError:
            pass
        try:
            fresh = self._open_lock_file()
        except OSError:
            return True  # the file cannot be created at the moment, but the folder is locked
        if not _try_lock(fresh):
            os.close(fresh)
            return False
        os.close(self._file)
        self._file = fresh
        return True

    def holder_pid(self) -> int | None:
        """Returns the pid of the scheduler that holds the locks instead of this process.

        Returns 0 if that scheduler is in another pid namespace, and None if no scheduler holds the locks.
        """
        pid = lock_holder(self._file)
        return pid if pid is not None else _folder_lock_holder(self._path.parent)

    def release(self) -> None:
        """Releases the locks."""
        os.close(self._file)
        os.close(self._folder)

    def _open_lock_file(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self._path.name, flags, 0o600, dir_fd=self._folder)


def supports_lock(folder: Path) -> bool:
    """Returns whether a data directory can be locked, as not on every file system. Raises OSError."""
    fd = permissions.open_folder(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _UNSUPPORTED_ERRNOS
    finally:
        os.close(fd)
    return True


@contextmanager
def no_scheduler_starts(folder: Path) -> Iterator[bool]:
    """Locks a data directory during the block, which must be short. Yields False if it was locked already.

    A `start` waits for the end of the block, and no command takes this process for a scheduler, because it
    does not have the file `lock` open. Raises OSError.
    """
    fd = permissions.open_folder(folder)
    try:
        yield _try_flock(fd)
    finally:
        os.close(fd)


def _try_flock(fd: int) -> bool:
    """Tries to lock a folder. Also returns True if the file system does not support such a lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _UNSUPPORTED_ERRNOS
    return True


def scheduler_pid(path: Path) -> int | None:
    """Returns the pid of the scheduler that holds the lock at this path or on its folder.

    Takes no lock. Returns 0 if the scheduler is in another pid namespace, such as a container, and None if no
    scheduler is running. The scheduler itself must not call this function, because closing the file here
    would release its lock.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _folder_lock_holder(path.parent)
    try:
        pid = lock_holder(fd)
    finally:
        os.close(fd)
    return pid if pid is not None else _folder_lock_holder(path.parent)


def _try_lock(fd: int) -> bool:
    """Locks an open file; returns whether that succeeded.

    A file that cannot be locked at all, for example because the file system has no locks (ENOLCK), counts as
    locked by another process: without the lock, nobody can find this scheduler.
    """
    try:
        return try_lock(fd)
    except OSError:
        return False


def lock_holder(fd: int) -> int | None:
    """Returns the pid of the process that has locked an open file, or None if the file is not locked.

    Returns 0 if that process is in another pid namespace.
    """
    lock = conflicting_lock(fd)
    return None if lock is None else lock.pid


def locking_pids(folder: Path) -> list[int]:
    """Returns the pids of the visible processes that hold an exclusive or shared lock on a folder.

    Reads /proc/locks, with lines such as "1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF".
    """
    try:
        status = os.stat(folder)
        with open("/proc/locks", "rb") as file:
            held = [line.split() for line in file]
    except OSError:
        return []
    lockers = [(int(f[4]), f[5]) for f in held if len(f) > 5 and f[1] == b"FLOCK"]
    # The kernel lists the process that took the lock even after that process has died.
    lockers = [(pid, locked) for pid, locked in lockers if _is_alive(pid)]
    device = status.st_dev
    name = b"%02x:%02x:%d" % (os.major(device), os.minor(device), status.st_ino)
    found = [pid for pid, locked in lockers if locked == name]
    # For some file systems (overlay, btrfs), /proc/locks shows other device numbers, so compare open files.
    return found or [pid for pid, _ in lockers if _has_flock(pid, status)]


def _folder_lock_holder(folder: Path) -> int | None:
    """Returns the pid of the scheduler that holds a lock on a folder, or None."""
    return next((pid for pid in locking_pids(folder) if _has_lock_file(pid)), None)


def _has_lock_file(pid: int) -> bool:
    """Returns whether a process that holds a lock on a folder also has the file `lock` open."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except PermissionError:
        return True  # another user's process: assume that it is a scheduler
    except OSError:
        return False
    return any(link.removesuffix(" (deleted)").endswith("/lock") for link in links)


def _has_flock(pid: int, status: os.stat_result) -> bool:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), status):
                with open(f"/proc/{pid}/fdinfo/{name}", "rb") as file:
                    if b"FLOCK" in file.read():
                        return True
    except OSError:
        pass  # the process has ended or belongs to another user
    return False


def _is_alive(pid: int) -> bool:
    from gpu_scheduler.runner.folder import living_fields

    return living_fields(pid) is not None


# Checks that a scheduler still owns its store: same data directory, same database file, same host.


class Ownership:
    """Ownership of an open store whose locks this process holds. Once lost, ownership stays lost."""

    def __init__(self, data_dir: DataDir, lock: InstanceLock) -> None:
        self._data_dir = data_dir
        self._lock = lock
        self._database = os.stat(data_dir.database)
        self._loss: str | None = None

    def loss(self, *, check_host: bool = False) -> str | None:
        """Returns why ownership was lost, or None. check_host: also check whether another host took over."""
        if self._loss is None:
            self._loss = self._replacement()
        if self._loss is None and check_host:
            try:
                self._data_dir.take_ownership()
            except SchedulerError as error:
                self._loss = str(error)
            except OSError:
                pass  # a failed check proves nothing, and the next write of the state file reports the error
        return self._loss

    def mark_lost(self, reason: str) -> None:
        """Marks the ownership as lost for this reason."""
        self._loss = self._loss or reason

    def check(self, *, check_host: bool = False) -> None:
        """Raises NotOwnerError if the ownership is lost."""
        lost = self.loss(check_host=check_host)
        if lost is not None:
            raise NotOwnerError(lost)

    def _replacement(self) -> str | None:
        if not self._lock.locks_folder(self._data_dir.folder):
            return f"{self._data_dir.folder} was removed or replaced"
        if not self._lock.restore_lock_file():
            return f"another scheduler has locked {self._data_dir.lock}, which was removed or replaced"
        try:
            same = os.path.samestat(os.stat(self._data_dir.database), self._database)
        except OSError:
            same = False
        return None if same else f"{self._data_dir.database} was removed or replaced"


# Lists the running schedulers of this user, so that commands in other folders find their queues.
#
# Each running scheduler has a file in a private folder of its user. The file counts only on the host that it
# names, because hosts may share a home folder, and while a scheduler holds the lock of a store of this user.


def running_schedulers() -> list[tuple[str, str | None, int]]:
    """Returns the state file, the data directory and the pid of each scheduler of this user on this machine.

    The data directory is None if it is beside the state file; the pid is 0 in another pid namespace. A
    scheduler must not call this function while it holds its lock (`scheduler_pid`).
    """
    found = []
    for state_file, folder, _ in sorted(_entries()):
        pid = scheduler_pid(Path(folder, "lock")) if is_ours(Path(folder)) else None
        if pid is not None:
            is_beside = os.path.realpath(DataDir.of(state_file).folder) == folder
            found.append((state_file, None if is_beside else folder, pid))
    return found


@contextmanager
def listed(home: DataDir) -> Iterator[str | None]:
    """Lists the caller, which holds the lock of the store, during the block.

    Yields why that is not possible; None if it is. Removes the files of stores that no longer exist.
    """
    from gpu_scheduler.system.safe_file import replace_file  # needed only by `start`

    value = asdict(this_host(os.path.realpath(home.folder)))
    digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
    path, problem = _folder() / f"{digest}.json", None
    try:
        _create(path.parent)
        replace_file(path, json.dumps(value | {"state_file": str(home.state_file)}).encode())
        for _, folder, other in _entries():
            if not os.path.lexists(folder):
                other.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{error.filename or path.parent}: {error.strerror}"
    try:
        yield problem
    finally:
        with suppress(OSError):
            path.unlink()


def _folder() -> Path:
    return user_state_dir() / "gpu_scheduler" / "schedulers"


def _create(folder: Path) -> None:
    above = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    # With `sudo`, HOME may be that of another user, who could not write to a folder that root creates there.
    if folder.is_absolute() and os.stat(above).st_uid in (0, os.geteuid()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(errno.EPERM, "is no folder that only this user can write to", str(folder))


def _entries() -> Iterator[tuple[str, str, Path]]:
    """Yields the state file and the data directory of each entry of this host, and the entry's path."""
    here, folder = this_host(), _folder()
    for path in folder.glob("[!.]*.json") if _is_private(folder) else ():
        content = read(path)
        if isinstance(content, FileProblem) or content.status.st_uid != os.geteuid():
            continue
        try:
            value = parse_json(content.data)
            if Host(str(value["name"]), value["machine"]).is_same_machine(here):
                yield str(value["state_file"]), str(value["data_dir"]), path
        except (ValueError, LookupError, TypeError):
            continue


def _is_private(folder: Path) -> bool:
    return is_ours(folder) and not writable_by_others(os.lstat(folder))
