"""Defines the interface of probes, which read the GPUs of this machine, and what the kinds of probes share.

A probe may block for as long as a driver hangs. The loop therefore never calls a probe directly, but queries
it through `gpus.probes.probe_process`. An unknown value is None, never zero.
"""

from __future__ import annotations

import re
from typing import Protocol

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError

#: The general remedy if no GPU can be read.
DRIVER_REMEDY = (
    "install the NVIDIA driver (the CUDA toolkit alone is not enough); `nvidia-smi` must then list the GPUs,"
    " and `ldconfig -p | grep nvidia-ml` must show the driver's library; or try --simulate 4 without a GPU,"
    " or `start --gpus none` for jobs that need none"
)
REBOOT_REMEDY = "the driver was updated, but its old kernel module is still loaded; reboot the machine"
MEMINFO = "/proc/meminfo"


class ProbeError(GpuStateError):
    """No GPU can be read. remedy: advice for the user; "" if there is none."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


def as_probe_error(error: Exception) -> ProbeError:
    """Returns an error of a driver's library, which may be of any kind, as a ProbeError."""
    return error if isinstance(error, ProbeError) else ProbeError(f"{type(error).__name__}: {error}")


class Probe(Protocol):
    """Takes samples of the GPUs of this machine."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU, in PCI order; `index` is the position in this order. May block.

        For a GPU that does not respond, the sample has a `fault`. Raises ProbeError if no GPU can be read.
        """


def with_machine_memory(sample: GpuSample) -> GpuSample:
    """Returns a GPU that uses the memory of the machine, with that memory; other GPUs unchanged."""
    if not sample.unified:
        return sample
    try:
        with open(MEMINFO, encoding="ascii") as file:
            kib = dict(re.findall(r"(?m)^(\w+): +([0-9]{1,12}) kB$", file.read()))
        total, available = int(kib["MemTotal"]) // 1024, int(kib["MemAvailable"]) // 1024
    except (OSError, ValueError, KeyError):
        return sample
    return replace(sample, total_mib=total, used_mib=max(0, total - available))


def printable(text: str, max_length: int = 200) -> str:
    """Returns a line of arbitrary output, cut to a length, with `?` for each unprintable character."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_length].strip())
