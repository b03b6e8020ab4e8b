"""One scheduler per record: locks that the kernel frees with their holder, and who holds them.

The lock that counts is one on the folder of the record, which cannot be removed without the folder. The file
`lock` in it is locked beside that, for readers, who ask who holds it and take nothing. Where the file is not
there, /proc/locks tells who holds the folder. Other programs may lock the folder, too, as a backup does: a
scheduler is one that has the file `lock` of it open, even if that was removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from pathlib import Path

from gpu_scheduler.store import private

_FLOCK = struct.Struct(
    "hhqqi4x"
)  # short type, short whence, off_t start, off_t len, pid_t pid (Linux, 64 bit)
#: Seconds to wait for a lock on a folder whose holder has died: a process that it had begun to start has that
#: lock as well until it executes its program.
_LEFT_BEHIND_S = 2.0
_LOOK_AGAIN_S = 0.01
#: What a file system says that knows no such lock on a folder, as those of a network do.
_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class InstanceLock:
    """The locks of the one scheduler, held until `release` or death; programs that it starts inherit none.

    path: of the file in the folder of the record; it must not be opened and closed elsewhere in this process:
    that would drop its lock. Raises OSError, also where the folder is not ours or a link.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = private.open_folder(path.parent)
        try:
            self._file = self._opened()
        except BaseException:
            os.close(self._folder)
            raise

    def acquire(self) -> bool:
        """Whether the locks are ours now."""
        return self._lock_folder() and self.is_of(self._path.parent) and _locked(self._file)

    def _lock_folder(self) -> bool:
        """Whether the lock on the folder is ours, or there is no such lock on its file system."""
        end = time.monotonic() + _LEFT_BEHIND_S
        while True:
            try:
                fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_FOLDER_LOCKS:
                    return True
                if self.holder() is not None or time.monotonic() > end:
                    return False
                time.sleep(_LOOK_AGAIN_S)
            else:
                return True

    def is_of(self, folder: Path) -> bool:
        """Whether the locked folder is what is at this path now."""
        try:
            return os.path.samestat(os.lstat(folder), os.fstat(self._folder))
        except OSError:
            return False

    def keep(self) -> bool:
        """Put a locked file back where it was removed or replaced. False: another process holds that."""
        try:
            there = os.stat(self._path.name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self._file)):
                return True
        except OSError:
            pass
        try:
            fresh = self._opened()
        except OSError:
            return True  # it cannot be made now: the folder itself is locked
        if not _locked(fresh):
            os.close(fresh)
            return False
        os.close(self._file)
        self._file = fresh
        return True

    def holder(self) -> int | None:
        """The pid of the scheduler that holds them instead of us; 0: it is in another pid namespace. None:
        no scheduler does."""
        pid = _asked(self._file)
        return pid if pid is not None else _folder_holder(self._path.parent)

    def release(self) -> None:
        """Give them back."""
        os.close(self._file)
        os.close(self._folder)

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(self._path.name, flags, 0o600, dir_fd=self._folder)


def scheduler_pid(path: Path) -> int | None:
    """The pid of the scheduler that holds the lock at this path, or its folder; 0: it is in another pid
    namespace, as that of a container; None when none is up. Takes nothing.

    Not for the scheduler's own process, whose lock the closing here would drop.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _folder_holder(path.parent)
    try:
        pid = _asked(fd)
    finally:
        os.close(fd)
    return pid if pid is not None else _folder_holder(path.parent)


def _locked(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _asked(fd: int) -> int | None:
    # A write lock is asked about, which needs no write access to ask: F_GETLK takes nothing.
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return pid if kind != fcntl.F_UNLCK else None


def locking_programs(folder: Path) -> list[int]:
    """The pids of the processes that are seen to hold a lock on a folder, shared ones included.

    From /proc/locks: "1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF".
    """
    try:
        status = os.stat(folder)
        with open("/proc/locks", "rb") as file:
            held = [line.split() for line in file]
    except OSError:
        return []
    lockers = [(int(f[4]), f[5]) for f in held if len(f) > 5 and f[1] == b"FLOCK"]
    # The kernel names who took the lock, also after its death.
    lockers = [(pid, locked) for pid, locked in lockers if _lives(pid)]
    device = status.st_dev
    name = b"%02x:%02x:%d" % (os.major(device), os.minor(device), status.st_ino)
    found = [pid for pid, locked in lockers if locked == name]
    # Some file systems (overlay, btrfs) have numbers of their own there: their open files tell.
    return found or [pid for pid, _ in lockers if _has_locked(pid, status)]


def _folder_holder(folder: Path) -> int | None:
    """The pid of the scheduler that holds a folder."""
    return next((pid for pid in locking_programs(folder) if _has_lock_file(pid)), None)


def _has_lock_file(pid: int) -> bool:
    """Whether a process that holds a folder has the file `lock` open, too."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    except PermissionError:
        return True  # it is another user's, and cannot be told
    except OSError:
        return False
    return any(link.removesuffix(" (deleted)").endswith("/lock") for link in links)


def _has_locked(pid: int, status: os.stat_result) -> bool:
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), status):
                with open(f"/proc/{pid}/fdinfo/{name}", "rb") as file:
                    if b"FLOCK" in file.read():
                        return True
    except OSError:
        pass  # it has ended, or is another user's
    return False


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X")
