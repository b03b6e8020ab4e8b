"""Reads the claims of other programs on the GPUs of one scheduler.

Every lock that neither a runner of the scheduler nor a process from which the scheduler descends holds is a
foreign claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.claims.gpu_claims import claims_of, read_gpu_locks
from gpu_scheduler.claims.own_claims import ancestor_pids
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.runner.record_lock import Lock
from gpu_scheduler.system.shortages import reraise_shortage


@dataclass(frozen=True)
class LockReading:
    """The locks on GPUs at one moment.

    locks: the locks on each GPU that has any, by UUID. problems: why the lock files of some other GPUs cannot
    be read, by UUID.
    """

    locks: Mapping[str, tuple[Lock, ...]]
    problems: Mapping[str, str]

    def foreign_claims(
        self, uuid: str, total_mib: int | None, runners: Collection[int], scheduler: int | None = None
    ) -> tuple[GpuClaim, ...]:
        """Returns the foreign claims on a GPU.

        total_mib: the memory of the GPU; None if unknown. runners: the pids of the scheduler's runners, which
        must be read after the locks. scheduler: the pid of the scheduler; None for this process.
        """
        locks = self.locks.get(uuid, ())
        if all(lock.pid in runners for lock in locks):
            return ()
        return claims_of(locks, total_mib, {*runners, *ancestor_pids(scheduler)})


def read_locks_of(folder: Path, uuids: Iterable[str]) -> LockReading:
    """Returns the locks on these GPUs. Raises OSError in a shortage of open files or memory."""
    locks: dict[str, tuple[Lock, ...]] = {}
    problems: dict[str, str] = {}
    for uuid in uuids:
        try:
            if held := read_gpu_locks(folder, uuid):
                locks[uuid] = held
        except OSError as error:
            reraise_shortage(error)
            problems[uuid] = f"{error.filename or folder / uuid} {error.strerror}"
    return LockReading(locks, problems)
