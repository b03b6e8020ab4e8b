"""Values of a GPU sample. An unknown value is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_scheduler.core.model.gpu_fault import GpuFault

#: Prefix of the identity of a GPU whose UUID was never read; the GPU's index follows it.
UNKNOWN_UUID_PREFIX = "unknown-"
#: Prefix of the identity of a simulated GPU; the GPU's index follows it.
SIMULATED_UUID_PREFIX = "SIM-"
#: Upper bound of plausible GPU memory: 1 PiB, in MiB.
MAX_MIB = 1 << 30
#: Number of samples over which loads are averaged.
LOAD_SAMPLES = 3


def is_simulated(uuid: str) -> bool:
    """Returns whether this identity belongs to a simulated GPU."""
    return uuid.startswith(SIMULATED_UUID_PREFIX)


@dataclass(frozen=True)
class GpuProcess:
    """A process that a probe listed on a GPU. load_percent: the load that it causes in percent."""

    pid: int
    used_mib: int | None
    graphics_only: bool = False
    load_percent: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """The state of one GPU at one moment.

    `fault` is None for a GPU that answered; otherwise the other values may be incomplete. `processes` is None
    if the probe cannot list processes (GPUtil). exclusive: whether its compute mode lets only one process use
    it. unified: whether its memory is that of the machine, as total_mib and used_mib then are.
    """

    uuid: str
    index: int
    name: str
    total_mib: int | None = None
    used_mib: int | None = None
    load_percent: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    fault: GpuFault | None = None
    exclusive: bool = False
    unified: bool = False


@dataclass(frozen=True)
class Snapshot:
    """One result of a probe: every GPU, in PCI order, at `taken_at` (seconds since boot), and a note."""

    taken_at: float
    gpus: tuple[GpuSample, ...]
    note: str = ""


def without_impossible_values(sample: GpuSample) -> GpuSample:
    """Returns the sample with every impossible value replaced by None, so that no placement relies on it."""
    total, used, load = sample.total_mib, sample.used_mib, sample.load_percent
    if total is not None and not 0 < total <= MAX_MIB:
        total = None
    if used is not None and not 0 <= used <= (MAX_MIB if total is None else total):
        used = None
    if load is not None and not 0 <= load <= 100:
        load = None
    return replace(sample, total_mib=total, used_mib=used, load_percent=load)
