"""Values of a GPU sample. An unknown value is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gpu_scheduler.core.model.stored_value import StoredValue

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
#: Seconds until a job may try a suspect GPU again. They double with each job that fails then.
FIRST_TRIAL_S, LONGEST_TRIAL_WAIT_S = 600.0, 4 * 3600.0


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
class Suspicion(StoredValue):
    """The suspicion that a GPU makes jobs fail, so that it accepts no new ones.

    jobs: those that failed on it, the last of them at `since` (wall seconds). error: the device error that
    they reported; None if they failed soon after their start. failed_trials: how many of them tried the GPU
    again. awaits: a job on another GPU that shows soon whether others fail there too; then it is not suspect
    yet.
    """

    jobs: tuple[int, ...]
    since: float
    error: str | None = None
    failed_trials: int = 0
    awaits: int | None = None

    _BUILD: ClassVar = {"jobs": tuple}

    @property
    def trial_at(self) -> float:
        """The time from which one job may try the GPU again, in wall seconds."""
        return self.since + min(FIRST_TRIAL_S * 2.0 ** min(self.failed_trials, 10), LONGEST_TRIAL_WAIT_S)

    def after_trial(self, job_id: int, ended_at: float, error: str | None) -> Suspicion:
        """Returns the suspicion after a job has tried the GPU and failed, too."""
        return Suspicion((*self.jobs, job_id), ended_at, error or self.error, self.failed_trials + 1)


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
