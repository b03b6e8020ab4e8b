"""Values that describe an attempt as it was observed (docs/design.md, Attempt folder)."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import DEFAULT_STOP_SIGNAL
from gpu_scheduler.core.model.state_reason import FailureKind
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.model.stored_value import StoredValue

#: "unlocked": the runner is alive but does not hold the lock of this claim, as happens in a copied folder.
#: "unclaimed": the claim is missing or unusable, but the runner that the store names is alive.
#: "invalid": the claim is unusable, and the store names no runner.
#: "unknown": the folder could not be read this time, so nothing is known about the claim.
ClaimState = Literal["none", "void", "live", "unlocked", "unclaimed", "invalid", "dead", "unknown"]
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


class AttemptStatus(Struct, frozen=True):
    """The status of an attempt at one moment.

    anomalies: unexpected contents of its folder, as phrases. window_open: whether the Screen window of a live
    runner still exists, for display only; None if it has no window, or if this is unknown. runner: the
    process that holds the claim. damage: the damage to the files that record the end, such as "the file claim
    was removed".

    withdrawn: the preemption that the runner has withdrawn last, if it did not obey it after all.

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
