"""What a look at the GPUs shows. Unknown is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: How the identity of a GPU that never told its UUID begins; the rest is its index.
NAMELESS = "unknown-"
#: How the identity of a simulated GPU begins; the rest is its index.
SIMULATED = "SIM-"
#: More memory than any GPU has: 1 PiB.
MOST_MIB = 1 << 30
#: Samples over which loads are averaged.
LOAD_SAMPLES = 3


def is_simulated(uuid: str) -> bool:
    """Whether this identity is that of a simulated GPU."""
    return uuid.startswith(SIMULATED)


@dataclass(frozen=True)
class GpuProcess:
    """A process that a probe saw on a GPU. load_percent: the part of the GPU's load that it makes."""

    pid: int
    used_mib: int | None
    graphics_only: bool = False
    load_percent: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment.

    `fault` is None for a GPU that answered; else why it did not ("lost", "query failed: …"), and the values
    are then whatever is known. `processes` is None where the probe cannot list any (GPUtil).
    """

    uuid: str
    index: int
    name: str
    total_mib: int | None
    used_mib: int | None
    load_percent: float | None
    processes: tuple[GpuProcess, ...] | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """One answer of a probe: every GPU of the machine, in PCI order, at `taken_at` (seconds since boot)."""

    taken_at: float
    gpus: tuple[GpuSample, ...]


def without_impossible(sample: GpuSample) -> GpuSample:
    """The sample with every value that cannot be true taken back to unknown: none is placed by."""
    total, used, load = sample.total_mib, sample.used_mib, sample.load_percent
    if total is not None and not 0 < total <= MOST_MIB:
        total = None
    if used is not None and not 0 <= used <= (MOST_MIB if total is None else total):
        used = None
    if load is not None and not 0 <= load <= 100:
        load = None
    return replace(sample, total_mib=total, used_mib=used, load_percent=load)
