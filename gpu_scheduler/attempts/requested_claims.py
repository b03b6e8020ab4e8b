"""Determines the claims on GPUs that the runner of an attempt holds (docs/design.md, GPU claims)."""

from __future__ import annotations

from gpu_scheduler.claims.gpu_claims import can_be_claimed, read_gpu_locks
from gpu_scheduler.claims.lock_folder import ClaimFolder
from gpu_scheduler.claims.own_claims import own_claims
from gpu_scheduler.core.scheduling.claim_size import capped_claim, claimable_total
from gpu_scheduler.store.records import AttemptRecord
from gpu_scheduler.store.store import Store


def requested_claims(store: Store, attempt: AttemptRecord, folder: ClaimFolder) -> dict[str, object] | None:
    """Returns the value of `gpu_claims` in spec.json; None if the attempt claims nothing.

    GPUs whose UUID is unknown are left out, and so are GPUs on which a process claims memory from which this
    scheduler descends. Prepares the folder if it is missing. Raises LockFolderError if it cannot be used, and
    OSError if a lock file cannot be read.
    """
    if not folder.path.is_dir():
        folder.prepare()
    names = [uuid for uuid in attempt.gpus if can_be_claimed(uuid)]
    inherited = own_claims(folder.path, {uuid: read_gpu_locks(folder.path, uuid) for uuid in names})
    totals = {gpu.uuid: gpu.total_mib for gpu in store.gpus()}
    # Of two attempts that start in the same round, only the later one gives way.
    earlier = [one for one in store.active_attempts() if one.id < attempt.id and one.state.holds_gpus]
    gpus = []
    for uuid in names:
        beside = [one.allocation_on(uuid) for one in earlier if uuid in one.gpus]
        total = totals.get(uuid)
        mib = capped_claim(attempt.allocation_on(uuid), beside, total)
        if uuid not in inherited and mib != 0:
            whole_mib = total if mib is None else claimable_total(total)
            gpus.append({"name": uuid, "mib": mib, "total_mib": whole_mib})
    return {"folder": str(folder.path), "gpus": gpus} if gpus else None
