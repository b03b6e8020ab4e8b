"""Waits until claims on GPUs change, by watching the processes that hold them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_scheduler.claims.foreign_claims import LockReading, read_locks_of

#: Seconds between two readings of the locks. They show changes that are not the end of a process.
_READ_EVERY_S = 1.0


class ClaimWatch:
    """Notices changes of the locks on GPUs, and at once the end of a process that holds one."""

    def __init__(self, folder: Path) -> None:
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

    def wait(self, timeout_s: float) -> bool:
        """Waits until the locks change, at most for `timeout_s`; returns whether they have changed."""
        end = time.monotonic() + timeout_s
        before = self._reading
        watched = self._open_pidfds()
        try:
            ready = select.poll()
            for fd in watched:
                ready.register(fd, select.POLLIN)
            # The first reading shows changes before the descriptors were open.
            while self.read(self._uuids) == before:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return False
                ended = ready.poll(min(left_s, _READ_EVERY_S) * 1000)
                self._ended.update(watched[fd] for fd, _ in ended)
                if ended:
                    return True
            return True
        finally:
            for fd in watched:
                os.close(fd)

    def _open_pidfds(self) -> dict[int, int]:
        """Returns a descriptor for each process that holds a lock, with its pid."""
        holders = {lock.pid for locks in self._reading.locks.values() for lock in locks if lock.pid}
        watched = {}
        for pid in holders - self._ended:
            try:
                watched[os.pidfd_open(pid)] = pid
            except OSError:
                continue  # it has ended or no descriptor is free; the locks also show its end
        return watched
