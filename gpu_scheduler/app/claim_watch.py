"""Waits until claims on GPUs or turns change, by watching the processes that hold them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_scheduler.claims.foreign_claims import LockReading, read_locks_of
from gpu_scheduler.claims.turns import MOVE_EVERY_S, TURN_EVERY_S, Turns, boot_s

#: Seconds between two readings of the locks. They show changes that are not the end of a process.
_READ_EVERY_S = MOVE_EVERY_S


class ClaimWatch:
    """Notices changes of the locks on GPUs, and at once the end of a process that holds one.

    since: when this program began to wait, in seconds since boot. ahead: the process whose turn it is before
    this one, by the GPU's UUID.
    """

    def __init__(self, folder: Path) -> None:
        self.turns, self.since = Turns(folder), boot_s()
        self.ahead: dict[str, int] = {}
        self._folder = folder
        self._uuids: tuple[str, ...] = ()
        self._reading = LockReading({}, {})
        #: The processes that have ended. They are not watched again, even if they seem to hold a lock.
        self._ended: set[int] = set()

    def read(self, uuids: Iterable[str]) -> LockReading:
        """Reads the locks on these GPUs, and returns them. `wait` waits until they change."""
        self._uuids = tuple(uuids)
        self._reading = read_locks_of(self._folder, self._uuids)
        return self._reading

    def read_turns(self) -> dict[str, int]:
        """Reads and returns `ahead`."""
        ahead = {uuid: self.turns.ahead(uuid, self.since) for uuid in self._uuids}
        self.ahead = {uuid: pid for uuid, pid in ahead.items() if pid is not None}
        return self.ahead

    def wait(self, timeout_s: float) -> bool:
        """Waits until locks or turns change, at most for `timeout_s`, and moves on in line.

        Returns whether they have changed.
        """
        end = time.monotonic() + timeout_s
        before, turns = self._reading, self.ahead
        watched = self._open_pidfds()
        try:
            ready = select.poll()
            for fd in watched:
                ready.register(fd, select.POLLIN)
            # The first reading shows changes before the descriptors were open.
            while self.read(self._uuids) == before and (not turns or self.read_turns() == turns):
                self.turns.move()
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return False
                every_s = TURN_EVERY_S if turns.keys() - before.locks.keys() else _READ_EVERY_S
                ended = ready.poll(min(left_s, every_s) * 1000)
                self._ended.update(watched[fd] for fd, _ in ended)
                if ended:
                    return True
            return True
        finally:
            for fd in watched:
                os.close(fd)

    def _open_pidfds(self) -> dict[int, int]:
        """Returns a descriptor for each process that holds a lock, with its pid."""
        holders = {pid for pid in self.ahead.values() if pid} | {
            lock.pid for locks in self._reading.locks.values() for lock in locks if lock.pid
        }
        watched = {}
        for pid in holders - self._ended:
            try:
                watched[os.pidfd_open(pid)] = pid
            except OSError:
                continue  # it has ended or no descriptor is free; the locks also show its end
        return watched
