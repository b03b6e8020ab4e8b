"""Reads the claims of other programs on the GPUs of one scheduler.

Every lock is a foreign claim, except those of the scheduler's runners and those on a whole GPU that the
scheduler itself or a process from which it descends holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.claims.gpu_claims import (
    check_writable,
    claims_of,
    inherited_descriptors,
    is_lock_of,
    lock_problem,
    read_gpu_locks,
)
from gpu_scheduler.core.model.gpu_claim import GpuClaim
from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.runner.record_lock import Lock

#: Key in `meta` for the folder with the lock files of the scheduler's GPUs.
LOCK_FOLDER_KEY = "lock_folder"


@dataclass(frozen=True)
class ForeignClaims:
    """The foreign claims on GPUs, by UUID.

    claims: only for GPUs that have any. problems: why some GPUs cannot be claimed: this user
    cannot write to the lock file, or cannot even read the claims.
    """

    claims: Mapping[str, tuple[GpuClaim, ...]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LockReading:
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
        # Imported only for a claim, so that `status` stays fast where nobody claims GPUs.
        from gpu_scheduler.claims.own_claims import ancestor_pids, is_whole_claim_of

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
    own: dict[str, tuple[Lock, ...]] = {}
    if inherited_descriptors(str(folder)):
        from gpu_scheduler.claims.own_claims import own_locks

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
