"""Chooses a probe for the real GPUs of this machine: NVML if it works, otherwise GPUtil."""

from __future__ import annotations

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, Probe, ProbeError
from gpu_scheduler.gpus.probes.gputil import GputilProbe
from gpu_scheduler.gpus.probes.nvml import NvmlProbe


class AutoProbe:
    """A probe that uses NVML if it works, otherwise GPUtil.

    Tries both at each sample until one of them works, and then keeps using that one.
    """

    def __init__(self) -> None:
        self._chosen: Probe | None = None

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        if self._chosen is not None:
            return self._chosen.sample()
        errors: list[ProbeError] = []
        for probe in (NvmlProbe(), GputilProbe()):
            try:
                samples = probe.sample()
            except ProbeError as error:
                errors.append(error)
                continue
            self._chosen = probe
            return samples
        raise ProbeError("; ".join(map(str, errors)), _remedy(errors))


def _remedy(errors: list[ProbeError]) -> str:
    """Returns the first specific remedy; if there is none, the general remedy of installing the driver."""
    return next((error.remedy for error in errors if error.remedy != DRIVER_REMEDY), DRIVER_REMEDY)
