"""Chooses a probe for the real GPUs of this machine: NVML if it works, otherwise GPUtil."""

from __future__ import annotations

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, Probe, ProbeError, as_probe_error
from gpu_scheduler.gpus.probes.gputil import GputilProbe
from gpu_scheduler.gpus.probes.nvml import NvmlProbe


class AutoProbe:
    """A probe that uses NVML if it works, otherwise GPUtil. Tries both in this order at each sample.

    note: why NVML was not used for the newest sample; "" if it was.
    """

    def __init__(self) -> None:
        self._probes: tuple[Probe, ...] = (NvmlProbe(), GputilProbe())
        self.note = ""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        errors: list[ProbeError] = []
        samples: tuple[GpuSample, ...] | None = None
        for probe in self._probes:
            try:
                samples = probe.sample()
            except Exception as error:  # noqa: BLE001 - a library that fails in any way must not hide the GPUs
                errors.append(as_probe_error(error))
                continue
            if samples:
                instead = "the GPUs are read with nvidia-smi instead of NVML, so their processes are unknown"
                self.note = f"{errors[0]}; {instead}" if errors else ""
                return samples
        if samples is not None:
            return samples
        raise ProbeError("; ".join(map(str, errors)), _remedy(errors))


def _remedy(errors: list[ProbeError]) -> str:
    """Returns the first specific remedy; if there is none, the general remedy of installing the driver."""
    return next((error.remedy for error in errors if error.remedy != DRIVER_REMEDY), DRIVER_REMEDY)
