"""Values of a GPU sample. An unknown value is None, never zero."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.values import MAX_MIB, Code, StoredValue

#: Prefix of the identity of a GPU whose UUID was never read; the GPU's index follows it.
UNKNOWN_UUID_PREFIX = "unknown-"
#: Prefix of the identity of a simulated GPU; the GPU's index follows it.
SIMULATED_UUID_PREFIX = "SIM-"
#: Number of samples over which loads are averaged.
LOAD_SAMPLES = 3
#: Seconds until a job may try a suspect GPU again. They double with each job that fails then.
FIRST_TRIAL_S, LONGEST_TRIAL_WAIT_S = 600.0, 4 * 3600.0


def is_simulated(uuid: str) -> bool:
    """Returns whether this identity belongs to a simulated GPU."""
    return uuid.startswith(SIMULATED_UUID_PREFIX)


class GpuProcess(Struct, frozen=True):
    """A process that a probe listed on a GPU. load_percent: the load that it causes in percent."""

    pid: int
    used_mib: int | None
    graphics_only: bool = False
    load_percent: float | None = None


class GpuSample(Struct, frozen=True):
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


class Suspicion(StoredValue, frozen=True):
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

    @property
    def trial_at(self) -> float:
        """The time from which one job may try the GPU again, in wall seconds."""
        return self.since + min(FIRST_TRIAL_S * 2.0 ** min(self.failed_trials, 10), LONGEST_TRIAL_WAIT_S)

    def after_trial(self, job_id: int, ended_at: float, error: str | None) -> Suspicion:
        """Returns the suspicion after a job has tried the GPU and failed, too."""
        return Suspicion((*self.jobs, job_id), ended_at, error or self.error, self.failed_trials + 1)


class Snapshot(Struct, frozen=True):
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


# Defines the faults of GPUs. A GPU with a fault accepts no new jobs.


#: Number of consecutive good samples after which a lost GPU is used again.
GOOD_SAMPLES_NEEDED = 3


# fmt: off
class FaultKind(Code):
    """The kind of a fault. Its sentence is a phrase that follows the name of the GPU."""

    LOST = "lost"
    UNLISTED = "unlisted", "lost: the driver no longer lists it"
    QUERY_FAILED = "query failed", "query failed: {cause}"
    #: A job would get one slice of the GPU instead of its share.
    MIG_MODE = ("mig mode",
        "in MIG mode, which is not supported (`sudo nvidia-smi -i GPU -mig 0` turns it off)")
    PROHIBITED = ("prohibited",
        "in compute mode Prohibited: no process can use it (`sudo nvidia-smi -i GPU -c 0`)")
    RECOVERING = "recovering", f"recovering: {{good_samples}} of {GOOD_SAMPLES_NEEDED} good samples"
    #: No GPU can be read now, so this one may or may not be faulty.
    UNREADABLE = "unreadable", "the GPUs cannot be read: {cause}"
    #: A fault that only another version defines; `cause` is its stored text.
    UNKNOWN = "unknown", "{cause}"
# fmt: on


class GpuFault(StoredValue, frozen=True):
    """A fault.

    cause: for QUERY_FAILED and UNREADABLE, the reported cause; good_samples: for RECOVERING, the number of
    good samples in a row.
    """

    kind: FaultKind
    cause: str = ""
    good_samples: int = 0

    def __str__(self) -> str:
        """Returns the fault as a phrase that follows the name of the GPU."""
        return self.kind.fill(self, {})

    @property
    def is_lost(self) -> bool:
        """True if the state "lost" describes the fault completely."""
        return self.kind is FaultKind.LOST

    @classmethod
    def unknown(cls, text: str) -> GpuFault:
        """Returns the fault that another version stored as this text."""
        return GpuFault(FaultKind.UNKNOWN, text)


LOST = GpuFault(FaultKind.LOST)
UNLISTED = GpuFault(FaultKind.UNLISTED)
MIG_MODE = GpuFault(FaultKind.MIG_MODE)
PROHIBITED = GpuFault(FaultKind.PROHIBITED)


# The claim of a program on a GPU's memory (docs/design.md, GPU claims).


class GpuClaim(StoredValue, frozen=True):
    """A claim that one process holds on one GPU.

    mib: the claimed memory in MiB; None means the whole GPU. pid: the process; 0 if it is in another pid
    namespace. user: the name of its user; "" if unknown. by_scheduler: whether the process is the runner of a
    scheduler's job; otherwise it is a command that `run` started. is_turn: whether the process has no claim
    yet, but it is its turn to take the GPU, or it keeps the GPU for a job. job: the id of that job, in the
    queue whose data directory is in `folder`; None if unknown.
    """

    mib: int | None
    pid: int
    user: str = ""
    by_scheduler: bool = False
    is_turn: bool = False
    job: int | None = None
    folder: str = ""


# A sample of a GPU, together with the claims on it.


class ClaimedGpu(Struct, frozen=True):
    """A GPU and the claims of other programs on it.

    claims_problem: why the GPU cannot be claimed; "" if it can.
    """

    sample: GpuSample
    claims: tuple[GpuClaim, ...] = ()
    claims_problem: str = ""

    @property
    def free_mib(self) -> int | None:
        """The memory that no process uses, in MiB; None if unknown."""
        total, used = self.sample.total_mib, self.sample.used_mib
        return None if total is None or used is None else max(0, total - used)

    @property
    def unclaimed_mib(self) -> int | None:
        """The memory that no other program claims, in MiB; None if unknown."""
        if any(claim.mib is None for claim in self.claims):
            return 0
        total = self.sample.total_mib
        return None if total is None else max(0, total - sum(claim.mib or 0 for claim in self.claims))

    @property
    def available_mib(self) -> int | None:
        """The lesser of the free and the unclaimed memory, in MiB; None if the free memory is unknown."""
        free, unclaimed = self.free_mib, self.unclaimed_mib
        return free if free is None or unclaimed is None else min(free, unclaimed)


# The GPUs that a command of `run` or `wait` needs.


class GpuCriteria(Struct, frozen=True):
    """The number of GPUs to choose, and the conditions that each of them must meet.

    claim_mib: the memory to claim on each GPU, in MiB; None means the whole GPU. min_free_mib: the memory
    that must be free on each GPU, in MiB. max_load_percent: the highest utilization; None means any. only:
    the indices to choose from; None means all. excluded: the indices never to choose.
    """

    count: int = 1
    claim_mib: int | None = None
    min_free_mib: int = 0
    max_load_percent: float | None = None
    only: tuple[int, ...] | None = None
    excluded: tuple[int, ...] = ()

    @property
    def needed_mib(self) -> int:
        """The memory that each GPU must have, in MiB; 0 if any memory is enough."""
        return max(self.min_free_mib, self.claim_mib or 0)

    def allows(self, index: int) -> bool:
        """Returns whether the lists of GPUs allow the GPU with this index."""
        return index not in self.excluded and (self.only is None or index in self.only)


# Parses the GPU lists of jobs files and of `add --gpus`: "4,5,6,7", "0-3", "0-3,5", "all" or nothing.
#
# A list contains only indices. Placement decides which of these GPUs can be used now.


#: The largest accepted index. The limit keeps a range such as 0-999999999 from being expanded.
MAX_INDEX = 1023

ACCEPTED_SYNTAX = "a list such as 0,2 or 0-3 or 0-3,5, or all"

_ITEM = re.compile(r"[ \t]*([0-9]{1,9})[ \t]*(?:-[ \t]*([0-9]{1,9})[ \t]*)?")


def parse_gpu_items(text: str, accepted: str = ACCEPTED_SYNTAX) -> tuple[int, ...]:
    """Parses a list into indices in their written order.

    accepted: the syntax that the error names. Raises ValueError for a malformed item.
    """
    gpus: list[int] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            what = f"GPU {item.strip()!r} is not a number or range" if item.strip() else "an item is empty"
            raise ValueError(f"GPU list {text.strip()!r}: {what}; write {accepted}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"GPU list {text.strip()!r}: {first}-{last} runs backward; write {last}-{first}")
        if last > MAX_INDEX:
            raise ValueError(f"GPU list {text.strip()!r}: GPU {last} is above the largest index, {MAX_INDEX}")
        gpus.extend(range(first, last + 1))
    return tuple(gpus)


@lru_cache(maxsize=1024)
def parse_gpu_list(text: str, known: frozenset[int] | None = None) -> tuple[int, ...] | None:
    """Parses a list into ascending indices; None means any GPU (an empty text, or `all`).

    known: the indices of the existing GPUs; None to accept any index. Raises ValueError, with the remedy, for
    a backward range, an empty item, a repeated GPU or an unknown GPU.
    """
    if text.strip(" \t").lower() in ("", "all"):
        return None
    gpus = parse_gpu_items(text)
    seen: set[int] = set()
    for gpu in gpus:
        if gpu in seen:
            raise ValueError(f"GPU list {text.strip()!r}: GPU {gpu} is listed twice; name it once")
        seen.add(gpu)
        if known is not None and gpu not in known:
            have = f"the GPUs are {format_gpu_list(known)}" if known else "there are no GPUs"
            raise ValueError(f"GPU list {text.strip()!r}: there is no GPU {gpu}; {have}")
    return tuple(sorted(gpus))


def format_gpu_list(gpus: Iterable[int] | None) -> str:
    """Formats indices as the shortest list for `parse_gpu_list`: "0-2,5" for (0, 1, 2, 5), "" for None."""
    if gpus is None:
        return ""
    runs: list[list[int]] = []
    for gpu in sorted(gpus):
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    texts = [",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join(texts)


def format_ranges(numbers: Sequence[int]) -> str:
    """Formats ids as ranges, such as "3, 7-9, 12-31". A range has at least three ids."""
    return format_gpu_list(numbers).replace(",", ", ")


class Gpu(Struct, frozen=True):
    """A GPU: its row in the store and, in a round, what the last sample and the lock folder show.

    sample: the newest sample that the store has, or the last one of the probe in a round, where it is None
    while the GPU has not been sampled. total_mib: the memory size in the store, even if the GPU cannot be
    read now. sampled_at: when the stored sample was taken, in wall seconds. loads: the last load samples in
    percent, newest last. foreign_peaks: the highest observed memory of each foreign process in MiB, by pid
    and start in wall seconds; in a round, of those that live. foreign_loads: the last loads in percent that
    foreign processes caused, newest last, None if unknown; foreign_load_boot: the time of the newest of them.
    usable_since: when it was last resumed, became managed, or recovered from a fault, in wall seconds; None
    if that was before the store recorded it. suspicion: why it is suspect, or None.

    Only in a round: sampled_boot: the time of the sample. mean_load: mean load over the last samples, in
    percent. owners: for each process in the sample, the attempt that owns it; None if it is foreign.
    process_starts: start time of each process in wall seconds, if known. has_unmatched_process: whether a
    listed process cannot be identified from this PID namespace, so that only the totals count. claims: the
    claims of other programs. claims_problem: why the GPU cannot be claimed; None if it can.

    Fields named `*_boot` are times in seconds since boot.
    """

    uuid: str
    index: int
    paused: bool = False
    sample: GpuSample | None = None
    total_mib: int | None = None
    sampled_at: float | None = None
    loads: tuple[float | None, ...] = ()
    foreign_peaks: Mapping[tuple[int, float], int] = {}
    foreign_loads: tuple[float | None, ...] = ()
    foreign_load_boot: float | None = None
    usable_since: float | None = None
    suspicion: Suspicion | None = None
    sampled_boot: float | None = None
    mean_load: float | None = None
    owners: Mapping[int, int | None] = {}
    process_starts: Mapping[int, float] = {}
    has_unmatched_process: bool = False
    claims: tuple[GpuClaim, ...] = ()
    claims_problem: str | None = None

    @property
    def last(self) -> GpuSample:
        """Its sample; one without values if it has not been sampled."""
        return self.sample or GpuSample(self.uuid, self.index, "")

    @property
    def fault(self) -> GpuFault | None:
        """The fault in its sample."""
        return self.last.fault

    @property
    def is_in_service(self) -> bool:
        """True if it is neither paused nor known to have a fault."""
        return not self.paused and self.fault is None
