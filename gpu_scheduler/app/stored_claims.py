"""Reads the claims of other programs on the managed GPUs, in the lock folder that the scheduler recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.claims.foreign_claims import (
    LOCK_FOLDER_KEY,
    ForeignClaims,
    LockReading,
    read_locks_of,
)
from gpu_scheduler.claims.gpu_claims import turn_claim
from gpu_scheduler.claims.turns import keeper
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Attempt


def read_locks(store: Store) -> LockReading:
    """Returns the locks on the managed GPUs. Raises OSError in a shortage of open files or memory."""
    folder = store.db.meta(LOCK_FOLDER_KEY)
    return LockReading() if folder is None else read_locks_of(Path(folder), store.managed_gpus().values())


def foreign_claims(
    store: Store, before: LockReading, attempts: Iterable[Attempt], scheduler_pid: int | None
) -> ForeignClaims:
    """Returns the claims of other programs, and the GPUs that they keep for jobs without a claim.

    before: the locks that were read before the attempts. attempts: the open attempts. scheduler_pid: None if
    no scheduler is running. Raises OSError in a shortage of open files or memory.
    """
    found = _foreign_claims(store, before, attempts, scheduler_pid)
    folder = store.db.meta(LOCK_FOLDER_KEY)
    uuids = () if folder is None else store.managed_gpus().values()
    keepers = {uuid: keeper(Path(folder or ""), uuid) for uuid in uuids}
    kept = {uuid: (turn_claim(pid),) for uuid, pid in keepers.items() if pid not in {None, scheduler_pid}}
    return replace(found, claims={**kept, **found.claims})


def _foreign_claims(
    store: Store, before: LockReading, attempts: Iterable[Attempt], scheduler_pid: int | None
) -> ForeignClaims:
    if not before.locks:
        return ForeignClaims(problems=before.problems)
    # Imported only if there are locks, so that `status` stays fast where no job is running.
    from gpu_scheduler.attempts.observe import runner_pids

    totals = {gpu.uuid: gpu.total_mib for gpu in store.gpus()}
    found = before.foreign_claims(totals, runner_pids(attempts), scheduler_pid)
    if not found.claims:
        return found
    # The scheduler may have recorded the end of an attempt in the meantime, so that its runner is not left
    # out. Such a runner no longer holds a lock.
    after = read_locks(store).locks
    held = {uuid: {lock.pid for lock in after.get(uuid, ())} for uuid in found.claims}
    remaining = {
        uuid: tuple(claim for claim in claims if claim.pid in held[uuid])
        for uuid, claims in found.claims.items()
    }
    return ForeignClaims({uuid: claims for uuid, claims in remaining.items() if claims}, found.problems)
