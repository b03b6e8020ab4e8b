"""Starts the probe for the commands that use GPUs without a scheduler.

Few modules are imported here, so that the probe reads the GPUs while the command imports the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_scheduler.app.location import Location
from gpu_scheduler.config import ProbeKind
from gpu_scheduler.gpus.probes.probe_client import ProbeClient
from gpu_scheduler.gpus.probes.simulated import check_simulate
from gpu_scheduler.gpus.probes.simulated_usage import FOLDER_VARIABLE


@dataclass(frozen=True)
class GpuSource:
    """The GPUs of this machine or simulated ones. The caller closes the probe.

    simulation: the folder in which simulated jobs write their usage; None for real GPUs.
    """

    probe: ProbeClient
    simulation: str | None


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
