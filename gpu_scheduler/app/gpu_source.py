"""Starts the probe for the commands that use GPUs without a scheduler.

Few modules are imported here, so that the probe reads the GPUs while the command imports the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_scheduler.app.location import Location
from gpu_scheduler.config import ProbeKind
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.gpus.probes.probe_client import ProbeClient
from gpu_scheduler.gpus.probes.simulated import check_simulate
from gpu_scheduler.gpus.probes.simulated_usage import FOLDER_VARIABLE
from gpu_scheduler.store.scheduler_lock import scheduler_pid


@dataclass(frozen=True)
class GpuSource:
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
    from gpu_scheduler.app.store_access import open_store  # needed only beside a scheduler

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
