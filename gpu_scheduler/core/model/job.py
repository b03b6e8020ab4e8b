"""Defines jobs and their attempts: their rows in the store, and what an attempt's folder and processes show.

Fields named `*_at` are wall times in seconds since 1970. Fields named `*_boot` are times in seconds since the
boot that `boot_id` identifies. GPUs are named by UUID.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL, ENGINES, NORMAL_PRIORITY, JobSpec
from gpu_scheduler.core.model.reasons import FailureKind, StateReason, WaitReason
from gpu_scheduler.core.model.states import WAITING, AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now, StoredValue

#: "unlocked": the runner is alive but does not hold the lock of this claim, as happens in a copied folder.
#: "unclaimed": the claim is missing or unusable, but the runner that the store names is alive.
#: "invalid": the claim is unusable, and the store names no runner.
#: "unknown": the folder could not be read this time, so nothing is known about the claim.
#: "accepted": an engine has the attempt, or will get it, and no runner has claimed it yet.
ClaimState = Literal[
    "none", "void", "live", "unlocked", "unclaimed", "invalid", "dead", "unknown", "accepted"
]
#: The ranks of the causes that do not rank highest. The runner has the same order (runner/termination.py).
_STOP_RANKS = {"preempted": 1, "timed_out": 2}
_HIGHEST_RANK = 3
#: What to do if an attempt has not ended after its grace period: send SIGKILL, or withdraw the stop request.
OnTimeout = Literal["kill", "withdraw"]


class RunnerIdentity(NamedTuple):
    """The process that runs an attempt. start_ticks: its start time in kernel ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


class StopRequest(Struct, frozen=True):
    """A request to stop an attempt. The file `stop` contains all of it except the last two fields.

    cause: "cancelled", "preempted" or "timed_out". grace_s: seconds between the signal and the action that
    on_timeout names. stop_id: identifies a preemption, so that only this one is withdrawn; "" for any other
    cause. signal: the name of the signal that asks the command to end, without "SIG". next_state: the state
    of a preempted job afterwards. preemptor: the job for which it is preempted; None if the user asked.
    """

    cause: str
    grace_s: float
    on_timeout: OnTimeout = "kill"
    stop_id: str = ""
    signal: str = DEFAULT_STOP_SIGNAL
    next_state: JobState = JobState.HELD
    preemptor: int | None = None

    @property
    def rank(self) -> int:
        """The rank of the cause. A request never replaces one of a higher rank."""
        return _STOP_RANKS.get(self.cause, _HIGHEST_RANK)

    def may_replace(self, earlier: StopRequest | None) -> bool:
        """Returns whether this request replaces an earlier one that is still open."""
        return earlier is None or self.rank >= earlier.rank

    def is_repetition_of(self, withdrawn: StopRequest) -> bool:
        """Returns whether this is a request that the runner has withdrawn, and not a stricter one."""
        return self.on_timeout == "withdraw" and bool(self.stop_id) and self.stop_id == withdrawn.stop_id

    def combined_with(self, earlier: StopRequest | None) -> StopRequest:
        """Returns the request that results if this one follows an earlier, open one of no higher rank.

        A second preemption keeps SIGKILL at the end of the first one's grace period, and the job that needs
        the GPUs. Of two grace periods with the same end, the shorter one counts; one that ends with a
        withdrawal never shortens one that ends with SIGKILL.
        """
        if earlier is None or earlier.cause != self.cause or earlier.cause != "preempted":
            return self
        both = (self, earlier)
        strictest = [one for one in both if one.on_timeout == "kill"] or both
        return replace(
            self,
            grace_s=min(one.grace_s for one in strictest),
            on_timeout=strictest[0].on_timeout,
            preemptor=self.preemptor if self.preemptor is not None else earlier.preemptor,
        )


class AttemptResult(Struct, frozen=True):
    """The end of an attempt, as written in the file `result`.

    cause: None if the command ended by itself; otherwise "cancelled", "preempted", "timed_out" or "machine".
    exit_code, signal: exactly one of the two is set if the command was spawned. oom_kills: the number of
    processes that the kernel killed during the attempt because memory ran out; None if unknown. shortage: the
    errno if the command could not start because processes, memory or open files ran out. failure: the kind of
    failure that command.sh or the runner reported together with `message`. claimed_gpu, claimed_by: the UUID
    of the GPU that another program claimed first, so that the command could not start, and one pid of that
    program; None if unknown. left, left_count: the command lines of the first processes that still ran 5 s
    after the command had ended, and their number. verdict: what the exit code does not tell, "unfinished" if
    it is 0 but the work still ran in the background, "closed_pipe" if it shows only that a program in a pipe
    of the command wrote more than the next one read.
    """

    cause: str | None
    exit_code: int | None
    signal: int | None
    began: bool
    message: str | None
    survivors: tuple[int, ...]
    started_at: float | None
    ended_at: float
    oom_kills: int | None = None
    shortage: int | None = None
    failure: FailureKind | None = None
    claimed_gpu: str | None = None
    claimed_by: int | None = None
    left: tuple[str, ...] = ()
    left_count: int | None = None
    verdict: str | None = None


class FailureContext(Struct, frozen=True):
    """The context of a failed command or launch, from which the failure is explained.

    log_tail: the end of its log. cuda_ids: the GPU ids that `--cuda` passed to the command, if they differ
    from the numbers (0, 1 …) of its visible GPUs; otherwise empty. oom_retries, fail_retries: the numbers of
    retries that the job's line sets; None if it sets none. claimed_gpu: the index of the GPU that another
    program claimed first; None if none did, or if its index is unknown. pipe_programs: the programs in the
    pipes of the shell text; empty if the exit code of a pipe is that of its last program.
    """

    log_tail: str = ""
    cuda_ids: tuple[int, ...] = ()
    oom_retries: int | None = None
    fail_retries: int | None = None
    claimed_gpu: int | None = None
    pipe_programs: tuple[str, ...] = ()


class EngineStatus(Struct, frozen=True):
    """The newest words of an engine about an attempt, as its agent wrote them down.

    state: "pending", "running", "ended" or "gone" as the engine says; "dead" if the attempt has ended without
    a result. native_id: its id in the engine. node: where it runs or ran. reason: the engine's own words.
    Each is "" if unknown.
    """

    state: str
    native_id: str = ""
    node: str = ""
    reason: str = ""


class AttemptStatus(Struct, frozen=True):
    """The status of an attempt at one moment.

    anomalies: unexpected contents of its folder, as phrases. window_open: whether the Screen window of a live
    runner still exists, for display only; None if it has no window, or if this is unknown. runner: the
    process that holds the claim. damage: the damage to the files that record the end, such as "the file claim
    was removed".

    withdrawn: the preemption that the runner has withdrawn last, if it did not obey it after all.
    void_reason: why the claim is void, if its maker knew. void_cause: "cancelled" if others had cancelled the
    attempt in its engine. engine: what its engine says; None on this machine.

    For an attempt without a claim, folder_complete means that its folder contains everything that a runner
    needs, and command_began means that its command has registered itself in the folder.
    """

    claim: ClaimState = "none"
    pid: int | None = None
    session: str | None = None
    stop: StopRequest | None = None
    withdrawn: StopRequest | None = None
    result: AttemptResult | None = None
    log: str | None = None
    anomalies: tuple[str, ...] = ()
    window_open: bool | None = None
    runner: RunnerIdentity | None = None
    damage: str | None = None
    folder_exists: bool = True
    folder_complete: bool = True
    command_began: bool = False
    void_reason: str | None = None
    void_cause: str | None = None
    engine: EngineStatus | None = None

    @property
    def is_over(self) -> bool:
        """True if, as far as the folder shows, the runner has published a result or no longer exists."""
        return self.result is not None or self.claim in ("dead", "void")


# A process that was started elsewhere and that a job has adopted.


class AdoptedProcess(StoredValue, frozen=True):
    """An adopted process, identified by its pid, its start in kernel ticks since boot, and the boot.

    started_at: its start in wall seconds. gpus: the UUIDs of the GPUs that it uses. log: the path of the file
    to which it writes its output; None if it is not a file.
    """

    pid: int
    start_ticks: int
    boot_id: str
    started_at: float
    gpus: tuple[str, ...] = ()
    log: str | None = None

    @classmethod
    def unknown(cls, text: str) -> AdoptedProcess:
        """Returns a process that does not exist, because another version stored this text."""
        return AdoptedProcess(0, 0, "", 0.0)


# A checkpoint: the state that a job has saved, from which it can resume.


class Checkpoint(StoredValue, frozen=True):
    """A complete checkpoint.

    path: the absolute path of its file or folder. step: the step at which it was saved; None if unknown.
    saved_at: when it was saved, in wall seconds; None if unknown.
    """

    path: str
    step: float | None = None
    saved_at: float | None = None

    @classmethod
    def unknown(cls, text: str) -> Checkpoint:
        """Returns the checkpoint whose path is this text."""
        return Checkpoint(text)

    def is_newer_than(self, other: Checkpoint | None, *, has_resumed: bool = False) -> bool:
        """Returns whether the job has progressed from the other checkpoint to this one.

        Steps decide if both are known. Otherwise, one that was saved later is newer, but not at the same path
        unless the job has resumed, because a job that began again may have saved the same one again.
        """
        if other is None:
            return True
        if self.step is not None and other.step is not None:
            return self.step > other.step
        may_be_newer = has_resumed or self.path != other.path
        return may_be_newer and (self.saved_at or 0.0) > (other.saved_at or 0.0)


class SavedWork(Struct, frozen=True):
    """The work that an ended attempt has left.

    checkpoint: the newest complete checkpoint of its job; None if there is none. is_complete: whether its
    last progress was N of N; None if it reported none. may_resume: whether the scheduler may give the
    checkpoint to the next attempt by itself, because the command is known to accept one. has_place: whether
    the user may, because the command has a place for its path.
    """

    checkpoint: Checkpoint | None = None
    is_complete: bool | None = None
    may_resume: bool = False
    has_place: bool = True


# How far a job is, as one piece of evidence shows it.


class ProgressUnit(Enum):
    """The unit in which the evidence counts. CHECKPOINT: steps, known from the newest checkpoint."""

    STEP = "step"
    EPOCH = "epoch"
    PERCENT = "percent"
    CHECKPOINT = "checkpoint"


class Progress(Struct, frozen=True):
    """How far a job is.

    current: the number of units that are done; total: the number of all units, None if unknown. at: when the
    job had come that far, in wall seconds; None if unknown, which counts as now. elapsed_s: the seconds that
    the job itself reports for the work done since it started or resumed; None if it reports none.
    """

    current: float
    total: float | None
    unit: ProgressUnit
    at: float | None = None
    elapsed_s: float | None = None

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None if the total is unknown."""
        return None if not self.total else min(1.0, self.current / self.total)

    @property
    def is_complete(self) -> bool:
        """Whether everything is done (N of N)."""
        return self.total is not None and self.current >= self.total


#: The outcomes for which a job is held until the user resumes it or starts it again.
UNFINISHED = (Outcome.INTERRUPTED.value, Outcome.PREEMPTED.value)
#: The sources of the jobs of `submit` and of `adopt`.
SUBMIT, ADOPT = "submit", "adopt"


class Job(Struct, frozen=True):
    """A job.

    Fields named `*_at` are wall times in seconds since 1970. not_before_boot is in seconds since the boot
    that boot_id identifies.

    source: "file:PATH", "import:DIGEST" or the front end that added it; text: its line or command as written;
    spec_json: its JobSpec as JSON; spec_key: the key of its resource spec; jobs with the same key wait for
    the same thing; priority, position: the queue order, lowest first.

    held_by: "user", "line" or the outcome that caused the hold. stop: the open request to stop its attempt.
    not_before_boot: the earliest time of the next start. source_missing: whether its line in the jobs file,
    or the Redis queue that it comes from, keeps it from starting; line_wait: why. min_vram_mib: the memory
    that it needs, raised after an attempt ran out of memory. unmet_parents: the number of its dependencies
    whose condition is not met; failed_parents: the number of those whose parent has finished; failed_parent:
    the first of these. recoveries: how many times the scheduler itself has queued it again since the user
    last did. cleared_at: when `clear` took it out of the lists. checkpoint: the newest complete one when its
    last attempt ended. resume_from: the one with which its next attempt starts. queued_at: when it last began
    to wait for GPUs. submitted_at: when it was submitted, the last time if it was submitted again.
    adopted: the process, started elsewhere, that the job is; None for an ordinary job. has_attempt: whether
    it was ever started.
    """

    id: int
    state: JobState = JobState.QUEUED
    outcome: Outcome | None = None
    held_by: str | None = None
    source: str = ""
    identity: str = ""
    name: str | None = None
    text: str = ""
    spec_json: str = "{}"
    spec_key: str = ""
    priority: int = 0
    position: int = 0
    exit_code: int | None = None
    signal: int | None = None
    reason: StateReason | None = None
    stop: StopRequest | None = None
    launch_failures: int = 0
    not_before_boot: float | None = None
    boot_id: str | None = None
    source_missing: bool = False
    line_wait: WaitReason | None = None
    min_vram_mib: int | None = None
    oom_retries_used: int = 0
    fail_retries_used: int = 0
    unmet_parents: int = 0
    failed_parents: int = 0
    failed_parent: int | None = None
    recoveries: int = 0
    cleared_at: float | None = None
    checkpoint: Checkpoint | None = None
    resume_from: Checkpoint | None = None
    adopted: AdoptedProcess | None = None
    queued_at: float = 0.0
    submitted_at: float = 0.0
    created_at: float = 0.0
    finished_at: float | None = None
    has_attempt: bool = False

    @property
    def spec(self) -> JobSpec:
        """The parsed job specification."""
        return JobSpec.from_json(self.spec_json)

    @property
    def preempt_signal(self) -> str:
        """The name of the signal with which the job is preempted, without "SIG"."""
        return json.loads(self.spec_json).get("preempt_signal") or DEFAULT_STOP_SIGNAL

    @property
    def is_waiting(self) -> bool:
        """True if the job waits: in the queue, on hold, or skipped until its failed parent is retried."""
        return self.state in WAITING or self.outcome is Outcome.SKIPPED

    @property
    def is_unwatched(self) -> bool:
        """True if the job is an adopted process that no runner watches now."""
        return self.adopted is not None and self.state is JobState.QUEUED

    @property
    def has_unfinished_work(self) -> bool:
        """True if the job is held because its last attempt was interrupted or preempted."""
        return self.state is JobState.HELD and self.held_by in UNFINISHED

    @property
    def is_interrupted(self) -> bool:
        """True if the job is held because its last attempt was interrupted."""
        return self.state is JobState.HELD and self.held_by == Outcome.INTERRUPTED.value

    @property
    def is_of_file(self) -> bool:
        """True if the job comes from a line of a jobs file, which may have been removed since."""
        return self.source.startswith("file:")

    # The changes of its state.

    def finished(self, outcome: Outcome, reason: StateReason | None, now: Now) -> Job:
        """Returns the job after it finished without an attempt. It is no longer adopted."""
        return replace(
            self, state=JobState.FINISHED, outcome=outcome, reason=reason, finished_at=now.wall, held_by=None,
            adopted=None, stop=None,
        )  # fmt: skip

    def held(self, by: str, reason: StateReason) -> Job:
        """Returns the job on hold. by: "user", "line" or the outcome that is the cause. It is not adopted."""
        return replace(self, state=JobState.HELD, reason=reason, held_by=by, adopted=None, stop=None)

    def queued_again(
        self, now: Now, *, recoveries: int = 0, checkpoint: Checkpoint | None = None, keeps: bool = False
    ) -> Job:
        """Returns the held or finished job in the queue again, without failed launches.

        recoveries: how many times the scheduler itself has then queued it again; 0 if the user did.
        checkpoint: the one with which its next attempt starts; keeps: whether that stays as it is.
        """
        is_skipped = self.outcome is Outcome.SKIPPED
        # Only the user gives a job additional retries, and not by releasing one that waited for a retry.
        keeps_retries = self.held_by in ("user", "line") or is_skipped or recoveries > 0
        is_submitted = self.state is JobState.FINISHED and not is_skipped
        return replace(
            self, state=JobState.QUEUED, outcome=None, exit_code=None, signal=None, reason=None, held_by=None,
            launch_failures=0, not_before_boot=None, finished_at=None, cleared_at=None, stop=None,
            adopted=None, resume_from=self.resume_from if keeps else checkpoint, recoveries=recoveries,
            queued_at=now.wall, submitted_at=now.wall if is_submitted else self.submitted_at,
            oom_retries_used=self.oom_retries_used if keeps_retries else 0,
            fail_retries_used=self.fail_retries_used if keeps_retries else 0,
        )  # fmt: skip

    def with_attribute(self, name: str, value: Any) -> Job:
        """Returns the job with this attribute (a name in job_spec.COMPARED_ATTRIBUTES)."""
        changed = {name: value}
        if name == "command":
            changed["text"] = value
        spec = JobSpec.from_json(json.dumps({**json.loads(self.spec_json), **changed}))
        return replace(
            self, spec_json=spec.to_json(), name=spec.name, text=spec.text, identity=spec.identity,
            priority=NORMAL_PRIORITY if spec.priority is None else spec.priority,
            # Memory that the user sets overrides the memory that an earlier attempt needed.
            min_vram_mib=None if name == "vram" else self.min_vram_mib,
        )  # fmt: skip


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
    def is_on_engine(self) -> bool:
        """True if it runs on an engine, not on this machine."""
        return self.executor in ENGINES

    @property
    def runner(self) -> RunnerIdentity | None:
        """The runner process that its claim names; None if it is not known yet."""
        if self.runner_pid is None or self.runner_start_ticks is None:
            return None
        return RunnerIdentity(self.runner_pid, self.runner_start_ticks, self.boot_id)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return tuple([one.gpu for one in self.allocations])  # a list is faster, and rounds ask often

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
