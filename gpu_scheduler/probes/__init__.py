"""What the GPUs look like: one small protocol, and the choice of who answers.

A probe may block, for as long as a driver hangs: the loop asks through `probes.asked`, never directly. Probes
refuse to know what is done with the values; unknown is None, never zero.
"""

from __future__ import annotations

from typing import Literal, Protocol

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError

ProbeKind = Literal["auto", "nvml", "gputil", "simulated"]
KINDS: tuple[ProbeKind, ...] = ("auto", "nvml", "gputil", "simulated")

#: What a user without readable GPUs can do.
DRIVER_REMEDY = (
    "install the NVIDIA driver, which the CUDA toolkit is not: `nvidia-smi` must list the GPUs, and"
    " `ldconfig -p | grep nvidia-ml` its library; or try without a GPU: --simulate 4"
)
REBOOT_REMEDY = "the driver was updated while its old kernel module is loaded: reboot"

#: Faults of a GPU. With MIG on a job would get one slice of the card, not the share that it was promised.
LOST = "lost"
MIG_FAULT = "in MIG mode, and only whole GPUs are shared out (`sudo nvidia-smi -i GPU -mig 0` ends it)"


class ProbeError(GpuStateError):
    """No GPU can be read. `remedy` says what the user can do about it; "" where we do not know."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class Probe(Protocol):
    """Something that can look at the GPUs of this machine."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Every GPU, in PCI order, `index` counting in that order. May block.

        A GPU that does not answer is there all the same, with a `fault`. Raises ProbeError when none can be
        read.
        """


def make_probe(kind: ProbeKind, simulate: str | None = None, sim_dir: str | None = None) -> Probe:
    """The probe of that kind; nothing is read yet, and only what the kind needs is imported.

    simulate  the text of `--simulate` ("4", "2:24G,2:80G"); given, it decides whatever `kind` says.
    sim_dir   where simulated jobs write what they use; None = nobody uses anything.

    Raises ValueError, with what is accepted, for a bad `simulate`.
    """
    if simulate is not None or kind == "simulated":
        from gpu_scheduler.probes.simulated import SimulatedProbe, parse_simulate

        return SimulatedProbe(parse_simulate(simulate if simulate is not None else "4"), sim_dir)
    if kind == "nvml":
        from gpu_scheduler.probes.nvml import NvmlProbe

        return NvmlProbe()
    if kind == "gputil":
        from gpu_scheduler.probes.gputil import GputilProbe

        return GputilProbe()
    from gpu_scheduler.probes.auto import AutoProbe

    return AutoProbe()
