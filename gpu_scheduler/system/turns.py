"""Lets programs that wait for the same GPU take turns (docs/design.md, Turns).

Each GPU has an empty turn file beside its lock file. The locks in it are the state, so it ends with the
processes. Byte 0 is the *hold* of the program that is taking the GPU, or that keeps it for a job. A *place*
in line is a lock on a block of bytes: its start says when the program began to wait, and its length how long
after that it moved last. The earliest place that has moved lately is the first in line.

A process loses its locks in a file when it closes any descriptor of that file, so it keeps one open.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.runner.locks import (
    Lock,
    conflicting_lock,
    open_or_create,
    open_to_read,
    read_locks,
    try_lock,
    unlock,
)
from gpu_scheduler.system.gpu_claims import can_be_claimed

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
