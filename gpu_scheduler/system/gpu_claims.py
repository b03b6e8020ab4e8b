"""Reads which processes claim the memory of GPUs, and lets programs that wait for the same GPU take turns.

`run` holds the claim in the process that executes the command, so a scheduler or another `run` that it starts
either is that process or descends from it. If the claim covers the whole GPU, such a program uses the GPU
without a claim of its own. A claim on a part of the memory belongs to the command alone.

Nothing here locks a lock file. A process that has just claimed GPUs must not read the claims, because the
kernel would release its own when it closes a lock file. A process that `run` has executed may read them.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import UNKNOWN_UUID_PREFIX, GpuClaim
from gpu_scheduler.runner.folder import SHORTAGE, START
from gpu_scheduler.runner.locks import (
    MANY_LOCKS_END,
    NOT_WRITABLE,
    Lock,
    LockFileError,
    conflicting_lock,
    open_or_create,
    open_to_read,
    read_locks,
    try_lock,
    unlock,
)
from gpu_scheduler.system.procfs import Proc
from gpu_scheduler.system.safe_file import name_of_user

#: The options of the interpreter of a runner, and the end of the path of the script that it runs, in any
#: installation.
_RUNNER_OPTIONS = " -I -S "
_RUNNER_SCRIPT = os.path.join(os.sep, "gpu_scheduler", "runner", os.path.basename(START))
#: Key in `meta` for the folder with the lock files of the scheduler's GPUs.
LOCK_FOLDER_KEY = "lock_folder"
#: The beginning of a line in /proc/PID/fdinfo/FD that shows a lock which the process holds through FD.
_LOCK_LINE = "lock:"


def can_be_claimed(uuid: str) -> bool:
    """Returns whether a GPU with this UUID can have claims. A GPU whose UUID was never read cannot."""
    return bool(uuid) and "/" not in uuid and not uuid.startswith(UNKNOWN_UUID_PREFIX)


def read_gpu_locks(folder: Path, uuid: str) -> tuple[Lock, ...]:
    """Returns the locks on a GPU, sorted by their start; none if the lock file does not exist.

    Raises OSError if the lock file cannot be read.
    """
    if not can_be_claimed(uuid):
        return ()
    inherited = inherited_descriptors(str(folder)).get(uuid)
    fd = open_to_read(str(folder), uuid) if inherited is None else inherited
    if fd is None:
        return ()
    try:
        return tuple(read_locks(fd))
    finally:
        if inherited is None:
            os.close(fd)


def check_writable(folder: Path, uuid: str) -> None:
    """Raises LockFileError if the lock file exists but this user cannot write to it, which a claim needs.

    Opens no file.
    """
    path = f"{folder}/{uuid}"
    if not can_be_claimed(uuid) or os.access(path, os.W_OK, effective_ids=True):
        return
    if os.path.lexists(path):
        raise LockFileError(errno.EACCES, NOT_WRITABLE, path)


def lock_problem(error: OSError) -> str:
    """Returns why a lock file cannot be used, as a sentence that begins with its path."""
    if isinstance(error, LockFileError):
        return f"{error.filename} {error.strerror}"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


@lru_cache
def inherited_descriptors(folder: str) -> Mapping[str, int]:
    """Returns the descriptors of lock files that were open when this process executed this program, by name.

    `run` leaves them open. This process holds claims through them, and must neither close them nor open and
    close the same files. Call this function before the process claims GPUs itself.
    """
    # Compared by inode, because the path of an open file does not lead to it through a bind mount.
    opened: dict[tuple[int, int], int] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(number)
        except OSError:
            continue  # this descriptor was open only while the folder was listed
        if stat.S_ISREG(status.st_mode):
            opened[status.st_dev, status.st_ino] = number
    found: dict[str, int] = {}
    try:
        names = os.listdir(folder) if opened else []
    except OSError:
        return {}  # the lock files cannot be opened either
    for name in names:
        try:
            status = os.lstat(f"{folder}/{name}")
        except OSError:
            continue  # somebody has removed the file
        if (status.st_dev, status.st_ino) in opened:
            found[name] = opened[status.st_dev, status.st_ino]
    return found


def claims_of(
    locks: Iterable[Lock], total_mib: int | None, without: Collection[int] = ()
) -> tuple[GpuClaim, ...]:
    """Returns one claim for each process that holds locks, in the order of the locks.

    total_mib: the memory of the GPU; None if unknown. without: the pids of processes to leave out, such as
    our own runners.
    """
    amounts: dict[int, int | None] = {}
    for lock in locks:
        if is_lock_of(without, lock):
            continue
        before = amounts.get(lock.pid, 0)
        end = lock.end if lock.end is not None else total_mib
        covers_all = lock.end in (None, MANY_LOCKS_END) and lock.start == 0
        if covers_all or before is None or end is None:
            amounts[lock.pid] = None
        else:
            amounts[lock.pid] = before + max(0, min(end, total_mib or end) - lock.start)
    return tuple(_claim(pid, mib) for pid, mib in amounts.items())


def is_lock_of(pids: Collection[int], lock: Lock) -> bool:
    """Returns whether one of these processes holds the lock, and no other process a part of it."""
    return bool(lock.pid) and lock.pid in pids and lock.end != MANY_LOCKS_END


def turn_claim(pid: int) -> GpuClaim:
    """Returns the turn of a process on a GPU, which counts as a claim on the whole GPU."""
    return replace(_claim(pid, None), is_turn=True)


def _claim(pid: int, mib: int | None) -> GpuClaim:
    if not pid:
        return GpuClaim(mib, 0)
    proc = Proc()
    uid, command = proc.user_id(pid), proc.command_line(pid)
    user = "" if uid is None else name_of_user(uid)
    return GpuClaim(mib, pid, user, is_runner(command), False, *_job_of(command))


def _job_of(command: Sequence[str]) -> tuple[int | None, str]:
    """Returns the job of a runner and the folder of its data directory; (None, "") if unknown."""
    data_dir, _, attempt = " ".join(command).rpartition("/runs/")
    job = attempt.partition("/")[0]
    if not is_runner(command) or not job.isdigit():
        return None, ""
    return int(job), data_dir.partition(f"{_RUNNER_SCRIPT} ")[2].rpartition("/")[0] or "/"


def is_runner(command: Sequence[str]) -> bool:
    """Returns whether this is the command line of a runner: "python -I -S …/start.py FOLDER"."""
    # A runner that the fork server made has its command line in one word.
    arguments = " ".join(command).partition(_RUNNER_OPTIONS)[2]
    return f"{_RUNNER_SCRIPT} " in arguments


# Reads the claims of other programs on the GPUs of one scheduler.
#
# Every lock is a foreign claim, except those of the scheduler's runners and those on a whole GPU that the
# scheduler itself or a process from which it descends holds.


class ForeignClaims(Struct, frozen=True):
    """The foreign claims on GPUs, by UUID.

    claims: only for GPUs that have any. problems: why some GPUs cannot be claimed: this user
    cannot write to the lock file, or cannot even read the claims.
    """

    claims: Mapping[str, tuple[GpuClaim, ...]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


class LockReading(Struct, frozen=True):
    """The locks on GPUs at one moment, by UUID.

    problems: why some GPUs cannot be claimed, as in ForeignClaims.
    """

    locks: Mapping[str, tuple[Lock, ...]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def foreign_claims(
        self, totals_mib: Mapping[str, int | None], runners: Collection[int], scheduler: int | None = None
    ) -> ForeignClaims:
        """Returns the foreign claims.

        totals_mib: the memory of each GPU; None if unknown. runners: the pids of the scheduler's runners,
        which must be read after the locks. scheduler: the pid of the scheduler; None for this process.
        """
        foreign = {
            uuid: locks
            for uuid, locks in self.locks.items()
            if not all(is_lock_of(runners, lock) for lock in locks)
        }
        if not foreign:
            return ForeignClaims(problems=self.problems)
        ancestors = ancestor_pids(scheduler)
        claims = {
            uuid: claims_of(
                [lock for lock in locks if not is_whole_claim_of(ancestors, lock)],
                totals_mib.get(uuid),
                runners,
            )
            for uuid, locks in foreign.items()
        }
        return ForeignClaims({uuid: found for uuid, found in claims.items() if found}, self.problems)


def read_locks_of(folder: Path, uuids: Iterable[str]) -> LockReading:
    """Returns the locks on these GPUs, with those that this process inherited when it was executed.

    Raises OSError in a shortage of open files or memory.
    """
    own = own_locks(folder)
    locks: dict[str, tuple[Lock, ...]] = {}
    problems: dict[str, str] = {}
    for uuid in uuids:
        try:
            if held := (*own.get(uuid, ()), *read_gpu_locks(folder, uuid)):
                locks[uuid] = held
            check_writable(folder, uuid)
        except OSError as error:
            if error.errno in SHORTAGE:
                raise
            problems[uuid] = lock_problem(error)
    return LockReading(locks, problems)


def own_claims(locks: Mapping[str, Collection[Lock]]) -> set[str]:
    """Returns the GPUs, by UUID, of which this process or an ancestor claims the whole.

    locks: the locks on GPUs that have any, with those of this process. Call this function before the process
    claims GPUs itself.
    """
    ancestors = ancestor_pids() if any(locks.values()) else frozenset()
    return {uuid for uuid, held in locks.items() if any(is_whole_claim_of(ancestors, lock) for lock in held)}


def is_whole_claim_of(pids: Collection[int], lock: Lock) -> bool:
    """Returns whether one of these processes holds the lock, and the lock covers the whole GPU."""
    return lock.pid in pids and lock.start == 0 and lock.end is None


def own_locks(folder: Path) -> dict[str, tuple[Lock, ...]]:
    """Returns the locks that this process inherited from the program that executed it, by UUID.

    folder: the folder of the lock files. The kernel shows the locks in a file only to other processes.
    """
    found = {uuid: tuple(_locks_through(fd)) for uuid, fd in inherited_descriptors(str(folder)).items()}
    return {uuid: locks for uuid, locks in found.items() if locks}


def _locks_through(fd: int) -> Iterator[Lock]:
    """Yields the record locks that this process holds through a descriptor."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            # The line is, for example, "lock: 1: POSIX ADVISORY WRITE 4711 08:01:262 0 99", or "0 EOF".
            words = line.split()
            if words[0] == _LOCK_LINE and words[2] == "POSIX":
                yield Lock(int(words[-2]), None if words[-1] == "EOF" else int(words[-1]) + 1, os.getpid())


def is_below_runner() -> bool:
    """Returns whether this process descends from the runner of a job."""
    proc = Proc()
    return any(is_runner(proc.command_line(pid)) for pid in ancestor_pids())


def ancestor_pids(pid: int | None = None) -> frozenset[int]:
    """Returns the pids of the processes from which a process descends, and its own pid.

    pid: the process; None for this process.
    """
    proc = Proc()
    own = proc.own_process if pid is None else proc.process(pid)
    return frozenset() if own is None else frozenset(one.pid for one in proc.ancestry(own))


# Lets programs that wait for the same GPU take turns (docs/design.md, Turns).
#
# Each GPU has an empty turn file beside its lock file. The locks in it are the state, so it ends with the
# processes. Byte 0 is the *hold* of the program that is taking the GPU, or that keeps it for a job. A *place*
# in line is a lock on a block of bytes: its start says when the program began to wait, and its length how
# long after that it moved last. The earliest place that has moved lately is the first in line.
#
# A process loses its locks in a file when it closes any descriptor of that file, so it keeps one open.


#: Seconds after which a program that has not moved is passed over, and in which one that waits moves.
PASSED_OVER_S, MOVE_EVERY_S = 5.0, 1.0
#: Seconds between two readings of the turns on a free GPU, which the program whose turn it is takes at once.
TURN_EVERY_S = 0.1
#: A block begins at the milliseconds since boot times its size, and has one byte for each second of the wait.
_BLOCK = 1 << 23
#: Two times with at most this difference in seconds are the same beginning of a wait.
_SAME_S = 0.05


def boot_s() -> float:
    """Returns the seconds since boot, by which programs compare when they began to wait."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keeper(folder: Path, uuid: str) -> int | None:
    """Returns the process that has the hold on a GPU; None if there is none or its turn file is unusable.

    Must not be called by a process that has places or holds. Makes no turn file.
    """
    try:
        fd = open_to_read(str(folder), _file_name(uuid)) if can_be_claimed(uuid) else None
    except OSError:
        return None
    if fd is None:
        return None
    try:
        hold = conflicting_lock(fd, 0, 1)
    finally:
        os.close(fd)
    return None if hold is None else hold.pid


class Turns:
    """The places and holds of this process on the GPUs with lock files in one folder.

    held: the UUIDs of the GPUs on which it has the hold. places: since when it waits for each GPU, and the
    first byte of its block. problem: why a turn file cannot be used; there are then no turns on its GPU.
    """

    def __init__(self, folder: Path) -> None:
        self.held: set[str] = set()
        self.places: dict[str, tuple[float, int]] = {}
        self.problem: OSError | None = None
        self._moving: frozenset[str] = frozenset()
        self._folder = str(folder)
        self._files: dict[str, int | None] = {}

    def wait_in_line(self, since: Mapping[str, float], moving: Collection[str]) -> None:
        """Takes these places and no others. moving: the GPUs that it cannot take yet, so it moves."""
        for uuid, (at, start) in list(self.places.items()):
            if abs(since.get(uuid, math.inf) - at) > _SAME_S:
                unlock(self._files[uuid] or 0, start, start + _BLOCK)
                del self.places[uuid]
        for uuid, at in since.items():
            fd = self._file(uuid)
            if fd is not None and uuid not in self.places:
                start = _block(at)
                while not try_lock(fd, start, start + _length(start)):
                    start += _BLOCK  # another program began to wait in the same millisecond
                self.places[uuid] = at, start
        self._moving = frozenset(moving)
        self.move()

    def move(self) -> None:
        """Moves on in line. Must be called every MOVE_EVERY_S seconds."""
        for uuid in self._moving & self.places.keys():
            start = self.places[uuid][1]
            try_lock(self._files[uuid] or 0, start, start + _length(start))

    def ahead(self, uuid: str, since: float = 0.0) -> int | None:
        """Returns the process that has the hold or is ahead of one that has waited since then; else None.

        Returns 0 for a process in another pid namespace.
        """
        fd = self._file(uuid)
        hold = None if fd is None else conflicting_lock(fd, 0, 1)
        if fd is None or hold is not None or not since:
            return None if hold is None else hold.pid
        at, start = self.places.get(uuid, (math.inf, 0))
        before = start if abs(at - since) <= _SAME_S else _block(since)
        # A lock that covers the hold stands for more locks than can be read.
        places = [one for one in read_locks(fd) if 0 < one.start < before and not _is_left(one)]
        return places[0].pid if places else None

    def take(self, uuid: str, since: float) -> int | None:
        """Takes the hold on a GPU, unless another process is ahead, which it returns as `ahead` does."""
        pid = self.ahead(uuid, since)
        if pid is None and not self.hold(uuid):
            return self.ahead(uuid) or 0
        return pid

    def hold(self, uuid: str) -> bool:
        """Takes the hold on a GPU, whoever waits in line; returns whether nobody else has it."""
        fd = self._file(uuid)
        if fd is not None and not try_lock(fd, 0, 1):
            return False
        self.held.add(uuid)
        return True

    def keep(self, uuids: Collection[str]) -> None:
        """Gives up the holds on all other GPUs."""
        for uuid in self.held.difference(uuids):
            fd = self._file(uuid)
            if fd is not None:
                unlock(fd, 0, 1)
            self.held.discard(uuid)

    def close(self) -> None:
        """Gives up all places and holds."""
        for fd in self._files.values():
            if fd is not None:
                os.close(fd)
        self._files, self.places, self.held = {}, {}, set()

    def _file(self, uuid: str) -> int | None:
        fd = self._files.get(uuid)
        if fd is not None and not os.fstat(fd).st_nlink:
            # Somebody has removed or replaced the file, so others no longer see the locks of this process.
            os.close(fd)
            del self._files[uuid]
            self.places.pop(uuid, None)
            self.held.discard(uuid)
        if uuid not in self._files and can_be_claimed(uuid):
            try:
                self._files[uuid] = open_or_create(self._folder, _file_name(uuid))
            except FileNotFoundError:
                return None  # the lock folder does not exist yet
            except OSError as error:
                if error.errno in SHORTAGE:
                    raise
                self._files[uuid], self.problem = None, error
        return self._files.get(uuid)


def _file_name(uuid: str) -> str:
    # No UUID begins with a dot, so nothing takes the file for a lock file.
    return f".turn-{uuid}"


def _block(since: float) -> int:
    """Returns the first byte of the block of a program that has waited since this time, or since now."""
    return int(min(max(0.001, since), boot_s()) * 1000) * _BLOCK


def _age_s(start: int) -> float:
    return boot_s() - start / _BLOCK / 1000


def _length(start: int) -> int:
    """Returns the bytes that a place has locked in its block if its program moves now."""
    return min(_BLOCK, 1 + max(0, int(_age_s(start))))


def _is_left(place: Lock) -> bool:
    """Returns whether the program with this place has not moved lately: it is stopped or hangs."""
    return _age_s(place.start) - ((place.end or 0) - place.start - 1) > PASSED_OVER_S
