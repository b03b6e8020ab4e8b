"""Takes POSIX record locks, and claims GPU memory with them, so that programs can share GPUs.

Each GPU has an empty lock file. Byte N of the file stands for MiB N of the GPU's memory. A process that
claims memory locks as many bytes, not necessarily contiguous; a process that claims the whole GPU locks all
of them, to infinity. The kernel prevents overlaps, keeps the locks when the process executes another program,
and releases them when the process ends.

The kernel also releases all locks of a process on a file when the process closes any descriptor of that file.
A process that holds a claim must therefore never open the lock file again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The size of struct flock of 64-bit Linux: short type, short whence, off_t start, off_t len, pid_t pid.
_FLOCK_BYTES = 32


class Lock:
    """A lock on the bytes from `start` up to, but not including, `end` (None means to infinity).

    pid: the process that holds the lock; 0 if that process is in another pid namespace.
    """

    __slots__ = ("end", "pid", "start")

    def __init__(self, start: int, end: int | None, pid: int) -> None:
        self.start, self.end, self.pid = start, end, pid

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lock) and (self.start, self.end, self.pid) == (
            other.start,
            other.end,
            other.pid,
        )

    def __hash__(self) -> int:
        return hash((self.start, self.end, self.pid))


def try_lock(fd: int, start: int = 0, end: int | None = None) -> bool:
    """Locks these bytes unless another process holds a lock on any of them; returns whether it succeeded.

    Raises OSError if the file system has no locks or the kernel has no memory for one.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0 if end is None else end - start, start)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def conflicting_lock(fd: int, start: int = 0, end: int | None = None) -> Lock | None:
    """Returns any one lock of another process on these bytes; None if there is none. Takes no lock."""
    length = 0 if end is None else end - start
    # Written and read through views, because importing `_struct` would delay a runner by 0.2 ms.
    flock = bytearray(_FLOCK_BYTES)
    view = memoryview(flock)
    shorts, ints, longs = view.cast("h"), view.cast("i"), view.cast("q")
    # F_GETLK only queries, so asking about a write lock needs no write access.
    shorts[0], shorts[1], longs[1], longs[2] = fcntl.F_WRLCK, os.SEEK_SET, start, length
    flock[:] = fcntl.fcntl(fd, fcntl.F_GETLK, bytes(flock))
    if shorts[0] == fcntl.F_UNLCK:
        return None
    # The pid is -1 for a lock that belongs to an open file instead of a process.
    return Lock(longs[1], longs[1] + longs[2] if longs[2] else None, max(ints[6], 0))


def unlock(fd: int, start: int, end: int) -> None:
    """Releases the locks of this process on these bytes."""
    fcntl.lockf(fd, fcntl.LOCK_UN, end - start, start)


#: Inheritable claims use descriptors from this number on, because shell scripts use low numbers.
_FIRST_FD = 200
#: Maximum number of locks that are read from one file. A file with more locks counts as locked up to
#: MANY_LOCKS_END by one of the processes that hold them; no lock of one process ends there.
MAX_LOCKS, MANY_LOCKS_END = 256, 1 << 62
#: Seconds for which a claim is tried again if other processes take the same bytes at the same moment.
_COLLISIONS_S = 0.5
#: Seconds to wait after the first collision, and number of collisions until the wait becomes no longer.
_COLLISION_WAIT_S, _MAX_COLLISION_WAITS = 0.0005, 10
#: Number of times that a lock file is opened again if somebody replaces it at the same moment.
_MAX_REPLACEMENTS = 10
_REPLACED = "is replaced again and again by another program; end that program"
#: The remedy for a path that cannot be a lock file. In a shared folder, only these users can remove it.
_REMEDY = "its owner or root must remove it while no program uses this GPU"
#: The mode of a new lock file. All users can lock it, and the sticky bit keeps systemd-tmpfiles from removing
#: it when it is old.
_MODE = 0o1666
#: The problem of a lock file that this user cannot write to, and the remedy.
NOT_WRITABLE = "is not writable for this user; its owner must run chmod 1666 on it"
#: The owner of a file, or root, can take a lease on it (F_SETLEASE in `man fcntl`).
_LEASED = "is leased by another program; end that program, which /proc/locks lists with the word LEASE"


class Wanted:
    """The memory to claim on one GPU.

    name: the name of the GPU's lock file. mib: the memory in MiB; None means the whole GPU. total_mib: the
    memory of the GPU; None if unknown, in which case `mib` must be None.
    """

    __slots__ = ("mib", "name", "total_mib")

    def __init__(self, name: str, mib: int | None, total_mib: int | None) -> None:
        self.name, self.mib, self.total_mib = name, mib, total_mib


class Refusal:
    """The claim of another process that prevents a claim. name: the name of the GPU's lock file.

    pid: one process that holds a claim on the GPU; 0 if it is unknown.
    """

    __slots__ = ("name", "pid")

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid


class LockFileError(OSError):
    """A lock file that cannot be used. filename: its path; strerror: the problem and the remedy.

    Its errno never reports a shortage, because the error concerns only this file.
    """


def claim_gpus(folder: str, wanted: Sequence[Wanted], *, inheritable: bool = False) -> list[int] | Refusal:
    """Claims memory on all these GPUs or on none, in the order of their names.

    Returns the descriptors that hold the locks. inheritable: keep the descriptors, and thus the claims, when
    this process executes another program. Raises OSError if a lock file cannot be used.
    """
    held: list[int] = []
    end_s = time.monotonic() + _COLLISIONS_S
    try:
        for one in sorted(wanted, key=lambda one: one.name):
            answer = _claim(folder, one, inheritable, end_s)
            if isinstance(answer, Refusal):
                release(held)
                return answer
            held.append(answer)
    except BaseException:
        release(held)
        raise
    return held


def release(descriptors: Sequence[int]) -> None:
    """Releases the claims that these descriptors hold."""
    for fd in descriptors:
        os.close(fd)


def _claim(folder: str, wanted: Wanted, inheritable: bool, end_s: float) -> int | Refusal:
    for _ in range(_MAX_REPLACEMENTS):
        fd = open_or_create(folder, wanted.name)
        if inheritable:
            fd = _inheritable_copy(fd)
        try:
            if wanted.mib is not None:
                pid = _lock_amount(fd, wanted.mib, wanted.total_mib, end_s)
            elif try_lock(fd):
                pid = None
            else:
                pid = next((lock.pid for lock in read_locks(fd)), 0)
            is_current = pid is not None or _is_current(fd, folder, wanted.name)
        except OSError as error:
            os.close(fd)
            error.filename = f"{folder}/{wanted.name}"
            raise
        if pid is not None:
            os.close(fd)
            return Refusal(wanted.name, pid)
        if is_current:
            return fd
        os.close(fd)
    raise LockFileError(errno.ESTALE, _REPLACED, f"{folder}/{wanted.name}")


def _lock_amount(fd: int, mib: int, total_mib: int | None, end_s: float) -> int | None:
    """Locks `mib` free bytes; returns None, or the pid of a process that holds a lock.

    If it returns a pid, some of the bytes may be locked until the file is closed.

    Locks of several processes can collide. A process that gets some of its bytes keeps them and looks for
    more. It gives up only if too few bytes are free, so processes that fit side by side do not fail, unless
    they collide until `end_s`, a time of the monotonic clock.
    """
    if total_mib is None or mib > total_mib:
        return 0
    mine: list[tuple[int, int]] = []
    collisions = 0
    while True:
        locks = read_locks(fd)
        missing = mib - sum(end - start for start, end in mine)
        gaps = free_ranges(locks, total_mib, mine)
        if sum(end - start for start, end in gaps) < missing:
            return max(locks, key=_size).pid if locks else 0
        for start, end in gaps:
            end = min(end, start + missing)
            if end > start and try_lock(fd, start, end):
                mine.append((start, end))
                missing -= end - start
        if not missing:
            return None
        if time.monotonic() >= end_s:
            return 0
        # Different waits keep two processes from colliding again and again.
        collisions = min(collisions + 1, _MAX_COLLISION_WAITS)
        time.sleep(_COLLISION_WAIT_S * collisions * (1 + os.getpid() % 5))


def _size(lock: Lock) -> float:
    return float("inf") if lock.end is None else lock.end - lock.start


def read_locks(fd: int) -> list[Lock]:
    """Returns the locks that other processes hold on an open file, sorted by their start.

    Takes no lock. If there are more than MAX_LOCKS, possibly of several processes, returns one lock of one of
    these processes that ends at MANY_LOCKS_END.
    """
    found: list[Lock] = []
    unread: list[tuple[int, int | None]] = [(0, None)]
    while unread:
        start, end = unread.pop()
        lock = conflicting_lock(fd, start, end)
        if lock is None:
            continue
        if len(found) == MAX_LOCKS:
            return [Lock(0, MANY_LOCKS_END, lock.pid)]
        found.append(lock)
        # The kernel reports any one of the locks, so there may be more on both sides of it.
        if lock.start > start:
            unread.append((start, lock.start))
        if lock.end is not None and (end is None or lock.end < end):
            unread.append((lock.end, end))
    return sorted(found, key=lambda lock: lock.start)


def free_ranges(
    locks: Sequence[Lock], total_mib: int, mine: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Returns the ranges (start, end) of the first `total_mib` bytes that nobody has locked."""
    taken = sorted([*((lock.start, total_mib if lock.end is None else lock.end) for lock in locks), *mine])
    gaps = []
    at = 0
    for start, end in taken:
        if start > at:
            gaps.append((at, min(start, total_mib)))
        at = max(at, end)
        if at >= total_mib:
            return gaps
    return [*gaps, (at, total_mib)]


def open_to_read(folder: str, name: str) -> int | None:
    """Opens a lock file to read its locks; returns None if it does not exist.

    A process that holds a claim on this GPU must not call this function. Raises OSError.
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            fd = os.open(f"{folder}/{name}", os.O_RDWR | flags)
        except PermissionError:
            fd = os.open(f"{folder}/{name}", os.O_RDONLY | flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(error, folder, name) from None
    try:
        _check(fd, folder, name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_or_create(folder: str, name: str) -> int:
    """Opens a lock file, and makes it for all users if it does not exist. Raises OSError."""
    path = f"{folder}/{name}"
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(_MAX_REPLACEMENTS):
        # Tried first without O_CREAT, because in a folder with the sticky bit the kernel may refuse O_CREAT
        # for a file of another user (the setting fs.protected_regular).
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            # The file must be usable for other users from its first moment.
            umask = os.umask(0)
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
            except FileExistsError:
                continue
            finally:
                os.umask(umask)
        except OSError as error:
            raise _unusable(error, folder, name) from None
        try:
            _keep_from_cleaners(fd, _check(fd, folder, name))
        except BaseException:
            os.close(fd)
            raise
        return fd
    raise LockFileError(errno.ESTALE, _REPLACED, path)


def _check(fd: int, folder: str, name: str) -> os.stat_result:
    """Returns the status of a lock file. Raises LockFileError unless it is a regular file.

    Any user who can write to a file may be able to add hard links, so only a file with contents, which may be
    somebody's data, must have a single one.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file"
    elif status.st_nlink > 1 and status.st_size:
        problem = "has contents and several hard links"
    else:
        return status
    raise LockFileError(errno.EINVAL, f"{problem}; {_REMEDY}", f"{folder}/{name}")


def _keep_from_cleaners(fd: int, status: os.stat_result) -> None:
    """Sets the sticky bit of a lock file that another program made, if this user owns it."""
    is_ours = status.st_uid == os.geteuid() and status.st_nlink == 1
    if is_ours and not status.st_mode & stat.S_ISVTX:
        try:
            os.fchmod(fd, stat.S_IMODE(status.st_mode) | stat.S_ISVTX)
        except OSError:
            pass  # the file can be locked without it


def _unusable(error: OSError, folder: str, name: str) -> OSError:
    path = f"{folder}/{name}"
    if error.errno == errno.ELOOP:
        return LockFileError(errno.ELOOP, f"is a symbolic link; {_REMEDY}", path)
    if error.errno in (errno.EISDIR, errno.ENXIO):
        return LockFileError(errno.EINVAL, f"is not a regular file; {_REMEDY}", path)
    if error.errno == errno.EACCES:
        return LockFileError(errno.EACCES, NOT_WRITABLE, path)
    if error.errno == errno.EAGAIN:
        return LockFileError(errno.EBUSY, _LEASED, path)
    return error


def _is_current(fd: int, folder: str, name: str) -> bool:
    """Returns whether the open file is still the one at its path, so that every program uses this file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(f"{folder}/{name}", follow_symlinks=False))
    except FileNotFoundError:
        return False


def _inheritable_copy(fd: int) -> int:
    """Returns an inheritable copy of the descriptor, and closes the original before it has locks."""
    try:
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST_FD)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EMFILE):
                raise
            return fcntl.fcntl(fd, fcntl.F_DUPFD, 3)  # the limit of open files is low
    finally:
        os.close(fd)
