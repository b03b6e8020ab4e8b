"""Defines the probe, which reads the GPUs of this machine, and creates the one of the requested kind.

A probe may block for as long as a driver hangs, so the loop queries it through `gpus.probes.probe_client`,
never directly. An unknown value is None, never zero.
"""

from __future__ import annotations

from typing import Protocol

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError

#: Remedy when no GPU can be read.
DRIVER_REMEDY = (
    "install the NVIDIA driver (the CUDA toolkit alone is not enough): `nvidia-smi` must list the GPUs, and"
    " `ldconfig -p | grep nvidia-ml` the driver's library; or try without a GPU: --simulate 4"
)
REBOOT_REMEDY = "the driver was updated, but its old kernel module is still loaded: reboot"


class ProbeError(GpuStateError):
    """No GPU can be read. remedy: the advice to the user; "" if unknown."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class Probe(Protocol):
    """A source of samples of the GPUs of this machine."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU, in PCI order, which `index` counts. May block.

        Includes a GPU that does not respond, with a `fault`. Raises ProbeError if no GPU can be read.
        """


def make_probe(kind: ProbeKind, simulate: str | None = None, sim_dir: str | None = None) -> Probe:
    """Returns a probe of that kind, without reading anything yet; imports only the modules of that kind.

    simulate  the text of `--simulate` ("4", "2:24G,2:80G"); if given, it overrides `kind`.
    sim_dir   folder in which simulated jobs write their usage; None = no usage.

    Raises ValueError, with the accepted forms, for an invalid `simulate`.
    """
    if simulate is not None or kind == "simulated":
        from gpu_scheduler.gpus.probes.simulated import SimulatedProbe, parse_simulate

        return SimulatedProbe(parse_simulate(simulate if simulate is not None else "4"), sim_dir)
    if kind == "nvml":
        from gpu_scheduler.gpus.probes.nvml import NvmlProbe

        return NvmlProbe()
    if kind == "gputil":
        from gpu_scheduler.gpus.probes.gputil import GputilProbe

        return GputilProbe()
    from gpu_scheduler.gpus.probes.auto import AutoProbe

    return AutoProbe()
