"""The records that the store returns: jobs, attempts with allocations, GPUs.

Times: `*_at` are wall seconds since 1970, `*_boot` seconds since the boot of the record's `boot_id`. GPUs are
named by UUID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpu_scheduler.core.scheduling.accounting import Allocation

if TYPE_CHECKING:
    from gpu_scheduler.core.model.attempt_status import RunnerIdentity
    from gpu_scheduler.core.model.gpu import GpuProcess
    from gpu_scheduler.core.model.gpu_fault import GpuFault
    from gpu_scheduler.core.model.job_spec import JobSpec
    from gpu_scheduler.core.model.state_reason import StateReason
    from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
    from gpu_scheduler.core.model.wait_reason import WaitReason


class JobRecord(NamedTuple):
    """A job; a named tuple, which is created quickly, because a list may have 100,000.

    source: "file:PATH" or the front end that added it; text: its line or command as written; spec_json: its
    JobSpec as JSON; spec_key: the resource spec, which jobs that wait for the same thing share; priority,
    position: queue order, lowest first.

    held_by: "user", "line", or the outcome that holds it. cancel_cause: a pending cancel or preempt.
    not_before_boot: no start before this time. line_wait: why its line in the jobs file keeps it from
    starting. min_vram_mib: memory that it needs since an attempt ran out of it.
    """

    id: int
    source: str
    identity: str
    name: str | None
    text: str
    spec_json: str
    spec_key: str
    priority: int
    position: int
    state: JobState
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None
    reason: StateReason | None
    held_by: str | None
    cancel_cause: str | None
    launch_failures: int
    not_before_boot: float | None
    boot_id: str | None
    line_wait: WaitReason | None
    min_vram_mib: int | None
    oom_retries_used: int
    fail_retries_used: int
    created_at: float
    finished_at: float | None

    @property
    def spec(self) -> JobSpec:
        """Its parsed spec."""
        from gpu_scheduler.core.model.job_spec import JobSpec

        return JobSpec.from_json(self.spec_json)


@dataclass(frozen=True)
class AllocationRecord(Allocation):
    """The allocation of an attempt on one GPU, and the use observed there.

    budget_mib: MiB that the attempt declared, or was learned to need, there; None = it declared nothing, or
    the size of the GPU is unknown. baseline_mib: unattributed memory there at its start. load_sum,
    load_samples: sum and number of the load samples, percent. overuse_logged: overuse there was reported.
    """

    gpu: str = ""
    budget_mib: int | None = None
    baseline_mib: int | None = None
    load_sum: float = 0.0
    load_samples: int = 0
    overuse_logged: bool = False


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt of a job.

    number: 1, 2, … within its job; learned: its vram was learned; assumed: its share and vram are defaults
    that nothing declared. misplaced: (GPU, pid) of its processes outside its allocation, one for each GPU.
    measured_boot: time of the newest sample in its allocations.

    launch_count: launches that count; launch_deadline_boot: a runner claims it by then, or it is launched
    again. executor: the name of the one that launches it. runner: the process that its claim names. outcome:
    None = open. window_closed: its Screen window was closed,
    which has been reported.
    """

    id: int
    job_id: int
    number: int
    token: str
    boot_id: str
    state: AttemptState
    executor: str
    allocations: tuple[AllocationRecord, ...]
    learned: bool
    assumed: bool
    launch_count: int
    launch_deadline_boot: float
    launch_error: str | None
    runner_pid: int | None
    runner_start_ticks: int | None
    stopping_boot: float | None
    signalled_boot: float | None
    swept_boot: float | None
    runner_died_boot: float | None
    released_boot: float | None
    measured_boot: float | None
    misplaced: tuple[tuple[str, int], ...]
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None
    reason: StateReason | None
    survivors: tuple[int, ...]
    log: str | None
    session: str | None
    window_closed: bool
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def runner(self) -> RunnerIdentity | None:
        """The runner process that its claim names; None = not known yet."""
        if self.runner_pid is None or self.runner_start_ticks is None:
            return None
        from gpu_scheduler.core.model.attempt_status import RunnerIdentity

        return RunnerIdentity(self.runner_pid, self.runner_start_ticks, self.boot_id)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return tuple(one.gpu for one in self.allocations)

    @property
    def share(self) -> int:
        """Thousandths of each of its GPUs; 0 = none declared."""
        return self.allocations[0].share if self.allocations else 0

    @property
    def vram(self) -> int | None:
        """MiB on each of its GPUs; None = none declared."""
        return self.allocations[0].vram if self.allocations else None

    @property
    def whole(self) -> bool:
        """True if none of our other jobs may run on its GPUs."""
        return bool(self.allocations) and self.allocations[0].whole

    @property
    def has_budget(self) -> bool:
        """True if its share or vram was declared or learned, not assumed."""
        return not self.assumed and bool(self.share or self.vram)

    @property
    def vram_declared(self) -> int | None:
        """MiB on each of its GPUs that were declared or learned; None = none, or a share."""
        return self.vram if self.has_budget else None

    @property
    def share_declared(self) -> int | None:
        """Thousandths of each of its GPUs that were declared or learned; None = none, or memory only."""
        return (self.share or None) if self.has_budget else None

    @property
    def budgets(self) -> dict[str, int | None]:
        """UUID -> MiB declared or learned there, None = GPU of unknown size; empty: nothing was declared."""
        return {one.gpu: one.budget_mib for one in self.allocations} if self.has_budget else {}

    @property
    def peaks(self) -> dict[str, int]:
        """UUID -> highest observed memory use there, MiB."""
        return {one.gpu: one.peak_mib for one in self.allocations if one.peak_mib is not None}

    @property
    def baseline_mib(self) -> dict[str, int]:
        """UUID -> unattributed memory there at its start, MiB."""
        return {one.gpu: one.baseline_mib for one in self.allocations if one.baseline_mib is not None}

    @property
    def overused_gpus(self) -> tuple[str, ...]:
        """The GPUs on which overuse was reported."""
        return tuple(one.gpu for one in self.allocations if one.overuse_logged)

    @property
    def run_time_s(self) -> float | None:
        """Seconds from its start to its end; None if it did not start or has not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)  # the clock may have been set back

    @property
    def mean_load(self) -> float | None:
        """The mean load of its GPUs over all samples, percent; None = no sample."""
        samples = sum(one.load_samples for one in self.allocations)
        return sum(one.load_sum for one in self.allocations) / samples if samples else None

    def allocation_on(self, gpu: str) -> AllocationRecord:
        """Returns its allocation on one of its GPUs."""
        return next(one for one in self.allocations if one.gpu == gpu)


@dataclass(frozen=True)
class ActiveAttemptRecord(AttemptRecord):
    """An attempt that is open, holds GPUs or awaits their memory release, with the fields that its job adds.

    source_missing: its job came from a jobs file that no longer has a line for it.
    """

    cancel_cause: str | None
    cancel_grace_s: float | None
    launch_failures: int
    spec_key: str
    oom_retries_used: int
    fail_retries_used: int
    source_missing: bool


@dataclass(frozen=True)
class GpuRecord:
    """A GPU with the values of its newest sample.

    processes: None = not listed. loads: of the last samples, percent, newest last; foreign_loads: those that
    foreign processes made; foreign_load_boot: time of the newest of these. foreign_peaks: (pid, start in wall
    seconds, highest observed MiB) of each foreign process.
    """

    uuid: str
    index: int
    name: str
    total_mib: int | None
    paused: bool
    used_mib: int | None
    load_percent: float | None
    fault: GpuFault | None
    sampled_at: float | None
    processes: tuple[GpuProcess, ...] | None
    loads: tuple[float | None, ...]
    foreign_peaks: tuple[tuple[int, float, int], ...]
    foreign_loads: tuple[float | None, ...]
    foreign_load_boot: float | None
