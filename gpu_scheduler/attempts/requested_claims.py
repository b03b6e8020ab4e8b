"""Determines the claims on GPUs that the runner of an attempt holds (docs/design.md, GPU claims)."""

from __future__ import annotations

from gpu_scheduler.claims.foreign_claims import read_locks_of
from gpu_scheduler.claims.gpu_claims import can_be_claimed
from gpu_scheduler.claims.lock_folder import ClaimFolder
from gpu_scheduler.claims.own_claims import own_claims
from gpu_scheduler.core.scheduling.claim_size import BEYOND_MIB, capped_claim, claimable_total
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.store.store import Store


def requested_claims(store: Store, attempt: AttemptRecord, folder: ClaimFolder) -> dict[str, object] | None:
    """Returns the value of `gpu_claims` in spec.json; None if the attempt claims nothing.

    GPUs whose UUID is unknown are left out, and so are GPUs that a process claims entirely from which this
    scheduler descends. Prepares the folder if it is missing. Raises LockFolderError if it cannot be used, and
    OSError in a shortage of open files or memory.
    """
    if not attempt.gpus:
        return None
    if not folder.path.is_dir():
        folder.prepare()
    names = [uuid for uuid in attempt.gpus if can_be_claimed(uuid)]
    locks = read_locks_of(folder.path, names).locks
    inherited = own_claims(locks)
    # An adopted process may hold a claim itself, if `run` has executed it.
    held = {uuid for uuid, found in locks.items() if attempt.watched_pid in [lock.pid for lock in found]}
    totals = {gpu.uuid: gpu.total_mib for gpu in store.gpus()}
    exclusive = {gpu.uuid for gpu in store.gpus() if gpu.exclusive}
    # Of two attempts that start in the same round, only the later one gives way.
    earlier = [one for one in store.active_attempts() if one.id < attempt.id and one.state.holds_gpus]
    gpus = []
    for uuid in names:
        beside = [one.allocation_on(uuid) for one in earlier if uuid in one.gpus]
        total = totals.get(uuid)
        mib = None if uuid in exclusive else capped_claim(attempt.allocation_on(uuid), beside, total)
        range_mib = total if mib is None else claimable_total(total)
        if mib == 0:
            # Nothing is left. A claim beyond the memory still keeps others from claiming the whole GPU.
            mib, range_mib = 1, claimable_total(total) + BEYOND_MIB
        if uuid not in inherited and uuid not in held:
            gpus.append({"name": uuid, "mib": mib, "total_mib": range_mib})
    return {"folder": str(folder.path), "gpus": gpus} if gpus else None
