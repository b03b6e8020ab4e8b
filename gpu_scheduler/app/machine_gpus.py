"""Reads the GPUs of this machine and the claims on them, without a scheduler or a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpu_scheduler.app.gpu_source import GpuSource
from gpu_scheduler.claims.foreign_claims import LockReading, read_locks_of
from gpu_scheduler.claims.gpu_claims import can_be_claimed, claims_of
from gpu_scheduler.claims.lock_folder import ClaimFolder, LockFolderError, find_lock_folder
from gpu_scheduler.claims.own_claims import ancestor_pids
from gpu_scheduler.core.model.claimed_gpu import ClaimedGpu
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_claim import GpuClaim


def machine_gpus(source: GpuSource) -> tuple[ClaimedGpu, ...]:
    """Returns every GPU with its claims, in PCI order. Raises GpuStateError if no GPU can be read."""
    samples = source.probe.sample().gpus
    return with_claims(samples, read_locks_of(claim_folder(source).path, uuids_of(samples)))


def lock_folder_problem(source: GpuSource) -> str | None:
    """Returns why no program can claim these GPUs, with the remedy; None if they can be claimed."""
    try:
        claim_folder(source).check()
    except LockFolderError as error:
        return str(error)
    return None


def claim_folder(source: GpuSource) -> ClaimFolder:
    """Returns the folder with the lock files of these GPUs, which need not exist.

    Raises UsageError if the variable that names it cannot be used.
    """
    return ClaimFolder.of(find_lock_folder(), source.simulation)


def uuids_of(samples: Iterable[GpuSample]) -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs."""
    return tuple(sample.uuid for sample in samples)


def with_claims(
    samples: Iterable[GpuSample], reading: LockReading, own: Collection[str] = ()
) -> tuple[ClaimedGpu, ...]:
    """Returns the GPUs with the claims that these locks represent.

    own: the UUIDs of GPUs whose claims are left out, because the caller uses them under an ancestor's claim.
    """
    return tuple(
        ClaimedGpu(replace(sample, exclusive=False))  # the caller may be the process that uses it
        if sample.uuid in own
        else ClaimedGpu(
            sample,
            claims_of(reading.locks.get(sample.uuid, ()), sample.total_mib),
            reading.problems.get(sample.uuid, "" if can_be_claimed(sample.uuid) else "its UUID is unknown"),
        )
        for sample in samples
    )


def surrounding_claims(samples: Iterable[GpuSample], reading: LockReading) -> dict[str, GpuClaim]:
    """Returns the claims that this process or an ancestor holds on these GPUs, by UUID; one for each GPU."""
    ancestors = ancestor_pids()
    found = {}
    for sample in samples:
        locks = [lock for lock in reading.locks.get(sample.uuid, ()) if lock.pid in ancestors]
        if locks:
            found[sample.uuid] = claims_of(locks, sample.total_mib)[0]
    return found
