"""Which real probe answers on this machine: NVML, else GPUtil; the first that does is kept."""

from __future__ import annotations

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.probes import DRIVER_REMEDY, Probe, ProbeError
from gpu_scheduler.probes.gputil import GputilProbe
from gpu_scheduler.probes.nvml import NvmlProbe


class AutoProbe:
    """NVML where it works, else GPUtil; asked anew until one of them works."""

    def __init__(self) -> None:
        self._chosen: Probe | None = None

    def sample(self) -> tuple[GpuSample, ...]:
        """See Probe.sample."""
        if self._chosen is not None:
            return self._chosen.sample()
        troubles: list[ProbeError] = []
        for probe in (NvmlProbe(), GputilProbe()):
            try:
                samples = probe.sample()
            except ProbeError as error:
                troubles.append(error)
                continue
            self._chosen = probe
            return samples
        raise ProbeError("; ".join(map(str, troubles)), _remedy(troubles))


def _remedy(troubles: list[ProbeError]) -> str:
    """The most particular one: that the driver is to be installed is what is said of everything else."""
    return next((error.remedy for error in troubles if error.remedy != DRIVER_REMEDY), DRIVER_REMEDY)
