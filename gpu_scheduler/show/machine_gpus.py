"""Reads the GPUs of this machine and the claims on them, without a scheduler or a store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import ClaimedGpu, GpuClaim, GpuSample
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.gpus.probes.probe_process import ProbeClient
from gpu_scheduler.gpus.probes.simulated import check_simulate
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from gpu_scheduler.system.gpu_claims import (
    LockReading,
    ancestor_pids,
    can_be_claimed,
    claims_of,
    read_locks_of,
)
from gpu_scheduler.system.lock_folder import ClaimFolder, LockFolderError, find_lock_folder
from gpu_scheduler.system.simulated_usage import FOLDER_VARIABLE

# Starts the probe for the commands that use GPUs without a scheduler.
#
# Few modules are imported here, so that the probe reads the GPUs while the command imports the others.


class GpuSource(Struct, frozen=True):
    """The GPUs of this machine or simulated ones. The caller closes the probe.

    simulation: the folder in which simulated jobs write their usage; None for real GPUs.
    """

    probe: ProbeClient
    simulation: str | None


def simulation_of_scheduler(
    kind: ProbeKind, simulate: str | None, location: Location
) -> tuple[ProbeKind, str | None] | None:
    """Returns `--gpu-probe` and `--simulate` of the scheduler that runs there, if it simulates GPUs.

    kind, simulate: the options of the command; if they choose GPUs, returns None.
    """
    if kind != "auto" or simulate is not None or scheduler_pid(location.resolve().lock) is None:
        return None
    from gpu_scheduler.show.store_access import open_store  # needed only beside a scheduler

    try:
        with open_store(location, read_only=True) as store:
            options = store.recorded_options()
    except SchedulerError:
        return None
    return (options.gpu_probe, options.simulate) if options.simulated else None


def open_source(kind: ProbeKind, simulate: str | None, location: Location) -> GpuSource:
    """Starts the probe and queries it without waiting for the answer.

    simulate: the text of `--simulate`; None for real GPUs. location: determines the simulation's folder
    unless $GPU_SCHEDULER_SIM is set. Raises UsageError for an invalid `simulate`.
    """
    check_simulate(simulate, kind)
    simulation: str | None = None
    if simulate is not None or kind == "simulated":
        simulation = os.environ.get(FOLDER_VARIABLE) or str(location.resolve().simulation)
    source = GpuSource(ProbeClient(kind, simulate, simulation), simulation)
    source.probe.query()
    return source


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
