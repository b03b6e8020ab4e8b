"""Reads the GPUs of this machine and the claims on them, without a scheduler or a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gpu_scheduler.app.gpu_source import GpuSource
from gpu_scheduler.claims.gpu_claims import claims_of, lock_problem, read_gpu_locks
from gpu_scheduler.claims.lock_folder import find_lock_folder, simulated_folder
from gpu_scheduler.core.model.claimed_gpu import ClaimedGpu
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.runner.record_lock import Lock

#: The locks on a GPU, or the reason why they cannot be read.
GpuLocks = tuple[Lock, ...] | str


def machine_gpus(source: GpuSource) -> tuple[ClaimedGpu, ...]:
    """Returns every GPU with its claims, in PCI order. Raises GpuStateError if no GPU can be read."""
    samples = source.probe.first_sample().gpus
    return with_claims(samples, read_locks(lock_folder(source), uuids_of(samples)))


def lock_folder(source: GpuSource) -> Path:
    """Returns the folder with the lock files of these GPUs, which need not exist.

    Raises UsageError if the variable that names it is a relative path.
    """
    folder = find_lock_folder()
    return folder if source.simulation is None else simulated_folder(folder, source.simulation)


def uuids_of(samples: Iterable[GpuSample]) -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs."""
    return tuple(sample.uuid for sample in samples)


def read_locks(folder: Path, uuids: Iterable[str]) -> dict[str, GpuLocks]:
    """Returns the locks of other processes on each GPU, by UUID."""
    return {uuid: _read(folder, uuid) for uuid in uuids}


def _read(folder: Path, uuid: str) -> GpuLocks:
    try:
        return read_gpu_locks(folder, uuid)
    except OSError as error:
        return lock_problem(error)


def with_claims(
    samples: Iterable[GpuSample], locks: Mapping[str, GpuLocks], own: Collection[str] = ()
) -> tuple[ClaimedGpu, ...]:
    """Returns the GPUs with the claims that these locks represent.

    own: the UUIDs of GPUs whose claims are left out, because the caller uses them under an ancestor's claim.
    """
    return tuple(_with_claims(sample, () if sample.uuid in own else locks[sample.uuid]) for sample in samples)


def _with_claims(sample: GpuSample, locks: GpuLocks) -> ClaimedGpu:
    if isinstance(locks, str):
        return ClaimedGpu(sample, claims_problem=locks)
    return ClaimedGpu(sample, claims_of(locks, sample.total_mib))
