"""An attempt of a job: its row in the store, and what its folder and its processes show.

Fields named `*_at` are wall times in seconds since 1970. Fields named `*_boot` are times in seconds since the
boot that `boot_id` identifies. GPUs are named by UUID.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.attempt_status import (
    AttemptStatus,
    Checkpoint,
    FailureContext,
    RunnerIdentity,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.units import Now


class Allocation(Struct, frozen=True):
    """The allocation of an attempt on one GPU, and the observed use of that GPU.

    share: the declared thousandths; 0 if none were declared. vram: the declared MiB; None if none were
    declared. whole: whether our other jobs must stay off the GPU. peak_mib: the highest observed use; None if
    it is unknown or has not been observed yet. budget_mib: the memory that was declared or learned, in MiB;
    None if nothing was, or if the size of the GPU is unknown. baseline_mib: the unattributed memory at the
    start of the attempt. load_sum: the sum of the load samples in percent; load_samples: their number.
    overuse_logged: whether overuse was reported.
    """

    share: int = 0
    vram: int | None = None
    whole: bool = False
    peak_mib: int | None = None
    gpu: str = ""
    budget_mib: int | None = None
    baseline_mib: int | None = None
    load_sum: float = 0.0
    load_samples: int = 0
    overuse_logged: bool = False


class Observed(Struct, frozen=True):
    """The observations of an attempt: the evidence in its folder and among its processes.

    survivors: the pids of its remaining processes; None if no scan looked for them. failure_context: the
    context of a failed command. saved_work: the work that it has left; None until it has ended. saved_at:
    when its newest checkpoint was saved, in wall seconds; None if there is none, or if it was not looked for.
    remaining_s: the seconds left by its progress; None if unknown.
    """

    status: AttemptStatus = AttemptStatus()
    survivors: tuple[int, ...] | None = None
    failure_context: FailureContext | None = None
    saved_work: SavedWork | None = None
    saved_at: float | None = None
    remaining_s: float | None = None


class Attempt(Struct, frozen=True):
    """An attempt of a job.

    number: 1, 2, … within its job; learned: whether its vram was learned; assumed: whether its share and vram
    are defaults, because none were declared. misplaced: the GPUs that it uses outside its allocation,
    each with the pid of one process there. measured_boot: the time of the newest sample in its allocations.

    launch_count: the number of launches that count towards the limit; launch_deadline_boot: the time at which
    it is launched again unless a runner has claimed it; executor: the name of the executor that launches it;
    runner: the process that its claim names; outcome: None while the attempt is open; window_closed: whether
    the closing of its Screen window was reported. resumed_from: the checkpoint with which it started.
    watched_pid, watched_ticks: the adopted process that its runner watches and its start in kernel ticks
    since boot; None if the runner starts the command. preempted_for: the job for which it is or was
    preempted. follows_preemption: whether the last attempt that ran was preempted. queue_priority,
    queue_position, submitted_at: those of its job when it started; None for a watcher.
    """

    id: int
    job_id: int
    token: str
    boot_id: str
    state: AttemptState
    number: int = 1
    executor: str = "direct"
    allocations: tuple[Allocation, ...] = ()
    learned: bool = False
    assumed: bool = False
    launch_count: int = 1
    launch_deadline_boot: float = 0.0
    launch_error: str | None = None
    runner_pid: int | None = None
    runner_start_ticks: int | None = None
    stopping_boot: float | None = None
    signalled_boot: float | None = None
    swept_boot: float | None = None
    runner_died_boot: float | None = None
    released_boot: float | None = None
    measured_boot: float | None = None
    misplaced: tuple[tuple[str, int], ...] = ()
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: StateReason | None = None
    survivors: tuple[int, ...] = ()
    log: str | None = None
    session: str | None = None
    window_closed: bool = False
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    resumed_from: Checkpoint | None = None
    watched_pid: int | None = None
    watched_ticks: int | None = None
    preempted_for: int | None = None
    follows_preemption: bool = False
    queue_priority: int | None = None
    queue_position: int | None = None
    submitted_at: float | None = None

    @property
    def runner(self) -> RunnerIdentity | None:
        """The runner process that its claim names; None if it is not known yet."""
        if self.runner_pid is None or self.runner_start_ticks is None:
            return None
        return RunnerIdentity(self.runner_pid, self.runner_start_ticks, self.boot_id)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return tuple(one.gpu for one in self.allocations)

    @property
    def share(self) -> int:
        """The share of each of its GPUs in thousandths; 0 if it has no share."""
        return self.allocations[0].share if self.allocations else 0

    @property
    def vram(self) -> int | None:
        """The memory on each of its GPUs in MiB; None if no amount was declared."""
        return self.allocations[0].vram if self.allocations else None

    @property
    def whole(self) -> bool:
        """True if no other job of this scheduler may run on its GPUs."""
        return bool(self.allocations) and self.allocations[0].whole

    @property
    def has_budget(self) -> bool:
        """True if its share or vram was declared or learned, not assumed."""
        return not self.assumed and bool(self.share or self.vram)

    @property
    def vram_declared(self) -> int | None:
        """The memory on each of its GPUs that was declared or learned, in MiB; None if there was none."""
        return self.vram if self.has_budget else None

    @property
    def share_declared(self) -> int | None:
        """The declared share of each of its GPUs in thousandths; None if no share was declared."""
        return (self.share or None) if self.has_budget else None

    @property
    def budgets(self) -> dict[str, int | None]:
        """The memory declared or learned for each GPU in MiB, by UUID; empty if there was none.

        The value is None for a GPU of unknown size.
        """
        return {one.gpu: one.budget_mib for one in self.allocations} if self.has_budget else {}

    @property
    def peaks(self) -> dict[str, int]:
        """The highest observed memory use on each GPU in MiB, by UUID."""
        return {one.gpu: one.peak_mib for one in self.allocations if one.peak_mib is not None}

    @property
    def baseline_mib(self) -> dict[str, int]:
        """The unattributed memory on each GPU at the start of the attempt in MiB, by UUID."""
        return {one.gpu: one.baseline_mib for one in self.allocations if one.baseline_mib is not None}

    @property
    def overused_gpus(self) -> tuple[str, ...]:
        """The GPUs on which overuse was reported."""
        return tuple(one.gpu for one in self.allocations if one.overuse_logged)

    @property
    def misplaced_gpus(self) -> tuple[str, ...]:
        """The GPUs that it uses outside its allocation."""
        return tuple(gpu for gpu, _ in self.misplaced)

    @property
    def run_time_s(self) -> float | None:
        """The seconds from its start to its end; None if it has not started or not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)  # the clock may have been set back

    @property
    def mean_load(self) -> float | None:
        """The mean load of its GPUs over all samples, in percent; None if there is no sample."""
        samples = sum(one.load_samples for one in self.allocations)
        return sum(one.load_sum for one in self.allocations) / samples if samples else None

    def allocation_on(self, gpu: str) -> Allocation:
        """Returns its allocation on one of its GPUs."""
        return next(one for one in self.allocations if one.gpu == gpu)


class ActiveAttempt(Attempt, frozen=True, kw_only=True):
    """An attempt that is open, holds GPUs or awaits memory release.

    is_line_gone: whether its job came from a jobs file that no longer has a line for it. observed: what its
    folder and its processes show.
    """

    job: Job
    is_line_gone: bool = False
    observed: Observed = Observed()

    def seen(self, **changes: Any) -> ActiveAttempt:
        """Returns the attempt with these observed values in place of those that it has."""
        return replace(self, observed=replace(self.observed, **changes))

    @property
    def status(self) -> AttemptStatus:
        """The status that its folder shows."""
        return self.observed.status

    @property
    def stop_request(self) -> StopRequest | None:
        """The open request to stop the attempt."""
        return self.job.stop

    @property
    def open_stop(self) -> StopRequest | None:
        """The open request to stop the attempt, unless its runner has already withdrawn it."""
        return None if self.is_stop_withdrawn else self.stop_request

    @property
    def is_stop_withdrawn(self) -> bool:
        """True if the runner has withdrawn the open request, which the store still has."""
        stop, withdrawn = self.stop_request, self.status.withdrawn
        if stop is None or withdrawn is None or stop.on_timeout != "withdraw":
            return False
        return stop.stop_id == withdrawn.stop_id

    # Its changes.

    def running(self, now: Now) -> ActiveAttempt:
        """Returns the attempt after its runner has claimed it, or has withdrawn a request to stop it."""
        return replace(
            self,
            state=AttemptState.RUNNING,
            stopping_boot=None,
            started_at=now.wall if self.started_at is None else self.started_at,
            job=replace(self.job, state=JobState.RUNNING, reason=None),
        )

    def stopping(self, now: Now) -> ActiveAttempt:
        """Returns the attempt after it was asked to end."""
        job = replace(self.job, state=JobState.STOPPING, reason=None)
        return replace(self, state=AttemptState.STOPPING, stopping_boot=now.boot, job=job)

    def released(self, now: Now) -> ActiveAttempt:
        """Returns the ended attempt, without processes, after its GPUs were released."""
        return replace(self, state=AttemptState.RELEASED, released_boot=now.boot)

    def orphaned(self, now: Now) -> ActiveAttempt:
        """Returns the attempt after its runner has died without a result."""
        return replace(self, state=AttemptState.ORPHANED, runner_died_boot=now.boot)

    def closed(self) -> ActiveAttempt:
        """Returns the attempt after the memory of its GPUs is free, or the wait for it (60 s) is over."""
        return replace(self, state=AttemptState.CLOSED)
