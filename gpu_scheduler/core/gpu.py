"""What a look at the GPUs shows. Unknown is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that a probe saw on a GPU."""

    pid: int
    used_mib: int | None
    graphics_only: bool = False


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
