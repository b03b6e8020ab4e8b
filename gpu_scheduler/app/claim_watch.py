"""Waits until claims on GPUs change, by watching the processes that hold them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_scheduler.app.machine_gpus import GpuLocks, read_locks

#: Maximum seconds until a change that is not the end of a process is noticed, such as a new claim.
_READ_EVERY_S = 1.0


class ClaimWatch:
    """The claims that were read last, and the processes that hold them."""

    def __init__(self) -> None:
        self._locks: Mapping[str, GpuLocks] = {}
        #: The processes that have ended. They are not watched again, even if they seem to hold a lock.
        self._ended: set[int] = set()

    def expect(self, locks: Mapping[str, GpuLocks]) -> None:
        """Records the claims, by UUID, from which `wait` waits for a change."""
        self._locks = locks

    def wait(self, folder: Path, timeout_s: float) -> bool:
        """Waits until the claims change, at most for `timeout_s`; returns whether they have changed.

        Notices at once if a process that holds a claim ends.
        """
        end = time.monotonic() + timeout_s
        watched = self._open_pidfds()
        try:
            ready = select.poll()
            for fd in watched:
                ready.register(fd, select.POLLIN)
            while (left_s := end - time.monotonic()) > 0:
                ended = ready.poll(min(left_s, _READ_EVERY_S) * 1000)
                self._ended.update(watched[fd] for fd, _ in ended)
                now = read_locks(folder, self._locks)
                if ended or now != self._locks:
                    self._locks = now
                    return True
            return False
        finally:
            for fd in watched:
                os.close(fd)

    def _open_pidfds(self) -> dict[int, int]:
        """Returns a descriptor for each process that holds a claim, with its pid."""
        watched = {}
        for pid in _holders(self._locks.values()) - self._ended:
            try:
                watched[os.pidfd_open(pid)] = pid
            except OSError:
                continue  # it has ended or no descriptor is free; the locks also show its end
        return watched


def _holders(locks: Iterable[GpuLocks]) -> set[int]:
    return {lock.pid for held in locks if not isinstance(held, str) for lock in held if lock.pid}
