"""The actions that a round can decide on.

All actions of a round are recorded in one transaction and then performed. Some of them change only the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpu_scheduler.core.model.attempt import Allocation
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import JobState, Outcome

if TYPE_CHECKING:
    from gpu_scheduler.core.model.attempt_status import AdoptedProcess, Checkpoint, StopRequest
    from gpu_scheduler.core.model.gpu import Suspicion
    from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind
    from gpu_scheduler.core.model.request import PauseCause
    from gpu_scheduler.core.model.request_answer import RequestAnswer
    from gpu_scheduler.core.model.wait_reason import WaitReason


class Action(Struct, frozen=True):
    """One decision of a round."""


class AttemptAction(Action, frozen=True):
    """A decision about an attempt. Some of these actions have no other fields."""

    attempt_id: int


class Start(Action, frozen=True):
    """Opens an attempt of a queued job on these GPUs and launches it.

    share: thousandths of each GPU; 0 if none were declared. vram: MiB on each GPU. whole: whether our other
    jobs must stay off the GPUs. learned: whether vram was learned from the workload class instead of
    declared. assumed: whether share and vram are defaults rather than declarations. baseline_mib: for each
    GPU, its UUID and its unattributed memory in MiB. process: the adopted process that the runner watches;
    None if it starts the command. waiting_since: when the job last began to wait, in wall seconds.
    """

    job_id: int
    gpus: tuple[str, ...]
    share: int
    baseline_mib: tuple[tuple[str, int], ...] = ()
    vram: int | None = None
    whole: bool = False
    learned: bool = False
    assumed: bool = False
    process: AdoptedProcess | None = None
    waiting_since: float = 0.0

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """The allocations of the attempt, without budgets."""
        baselines = dict(self.baseline_mib)
        return tuple(
            Allocation(self.share, self.vram, self.whole, gpu=gpu, baseline_mib=baselines.get(gpu))
            for gpu in self.gpus
        )


class Relaunch(AttemptAction, frozen=True):
    """Launches the same attempt again, because no runner claimed it before its deadline."""


class VoidClaim(AttemptAction, frozen=True):
    """Links a `void` claim, so that the attempt can never run.

    The next round observes whether a runner claimed the attempt first. gives_up: whether the scheduler gives
    up because no launch was claimed.
    """

    gives_up: bool = False


class ResetLaunchCount(AttemptAction, frozen=True):
    """Resets the launch count of an attempt whose launches were not claimed while starts were blocked."""


class Transition(Action, frozen=True):
    """Changes the state of a job with an open attempt to running or stopping."""

    job_id: int
    attempt_id: int
    state: JobState


class RequestStop(AttemptAction, frozen=True):
    """Writes `stop` and wakes the runner."""

    stop: StopRequest


class WakeRunner(AttemptAction, frozen=True):
    """Signals the runner again, because `stop` has been written but the attempt has not ended."""


class KillRunner(AttemptAction, frozen=True):
    """Kills a runner that did not exit within the grace period plus 10 s."""


class RecordRunner(AttemptAction, frozen=True):
    """Records the runner process that the claim names. start_ticks: its start time in ticks since boot."""

    pid: int
    start_ticks: int


class RecordRunnerDeath(AttemptAction, frozen=True):
    """Records that the runner died without a result. The attempt's processes then have 60 s to exit."""


class RecordMisplacedProcess(AttemptAction, frozen=True):
    """Records, once per attempt and GPU, a process on a GPU that is not allocated to its attempt."""

    uuid: str
    pid: int


class RecordWindowClosed(AttemptAction, frozen=True):
    """Records, once, that the Screen window of this attempt was closed while its job continues."""


class RecordUsage(Action, frozen=True):
    """Records the resource use of a running attempt in one sample.

    sampled_at: when the sample was taken, in seconds since boot. usage: for each GPU of the attempt, its
    UUID, the memory of the attempt's processes in MiB and the load of the GPU in percent; unknown values are
    None.
    """

    job_id: int
    attempt_id: int
    sampled_at: float
    usage: tuple[tuple[str, int | None, float | None], ...]


class RecordOveruse(AttemptAction, frozen=True):
    """Records, once per attempt and GPU, that an attempt uses more memory on a GPU than it declared.

    share: the declared share in thousandths, which amounts to declared_mib; None if vram was declared.
    """

    uuid: str
    used_mib: int
    declared_mib: int
    share: int | None = None


class RecordForeignLoad(Action, frozen=True):
    """Records the load of foreign processes on one GPU in the last samples.

    loads: percent in each sample, the newest last; None if unknown. sampled_at: the time of the newest
    sample, in seconds since boot.
    """

    uuid: str
    loads: tuple[float | None, ...]
    sampled_at: float | None


class RecordForeignPeaks(Action, frozen=True):
    """Records the peak memory use of each living foreign process on one GPU.

    peaks: (pid, start time, MiB) for each process.
    """

    uuid: str
    peaks: tuple[tuple[int, float, int], ...]


class Sweep(AttemptAction, frozen=True):
    """Signals every process that carries the attempt's token. kill: SIGKILL instead of SIGTERM."""

    kill: bool


class FinishAttempt(Action, frozen=True):
    """Records the end of an attempt and moves its job to `state`.

    not_before: the earliest time, in seconds since boot, at which a requeued job may start. launch_failures,
    oom_retries_used, fail_retries_used, recoveries: the new counts. checkpoint: the newest complete
    checkpoint of the job. resume_from: the one with which the next attempt starts if the job is queued again;
    None for none. min_vram_mib: memory that the job needs from now on;
    None if unchanged. shortage: errno of the shortage that prevented the command from starting.
    is_still_adopted: whether the job remains the adopted process, which its next attempt watches. keeps_stop:
    whether its open request to stop then applies to that attempt.
    """

    job_id: int
    attempt_id: int
    outcome: Outcome
    state: JobState
    job_outcome: Outcome | None
    reason: StateReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    survivors: tuple[int, ...] = ()
    launch_failures: int = 0
    not_before: float | None = None
    oom_retries_used: int = 0
    fail_retries_used: int = 0
    recoveries: int = 0
    checkpoint: Checkpoint | None = None
    resume_from: Checkpoint | None = None
    min_vram_mib: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    shortage: int | None = None
    is_still_adopted: bool = False
    keeps_stop: bool = False


class ReleaseAllocation(AttemptAction, frozen=True):
    """Releases the allocation of an ended attempt that has no processes left."""


class RecordMemoryReleased(AttemptAction, frozen=True):
    """Records that the memory of the attempt's GPUs is free again, or that the wait for it (60 s) is over."""


class FinishJob(Action, frozen=True):
    """Finishes a waiting job, which has no open attempt."""

    job_id: int
    outcome: Outcome
    reason: StateReason | None


class HoldJob(Action, frozen=True):
    """Holds a queued job. by: "user", "line" or the outcome that is the cause. It is no longer adopted."""

    job_id: int
    by: str
    reason: StateReason


class RequeueJob(Action, frozen=True):
    """Queues a held or finished job again and resets its count of failed launches.

    recoveries: how many times the scheduler itself has queued it again, including this time; 0 if the user
    did. checkpoint: the one with which its next attempt starts; None for none. keeps_checkpoint: whether that
    stays as it was before the job was held or skipped. min_vram_mib: memory that the job needs from now on;
    None if unchanged.
    """

    job_id: int
    reason: StateReason
    recoveries: int = 0
    checkpoint: Checkpoint | None = None
    keeps_checkpoint: bool = False
    min_vram_mib: int | None = None


class ClearJob(Action, frozen=True):
    """Takes a finished job out of the lists."""

    job_id: int


class ClearFinished(Action, frozen=True):
    """Takes all finished jobs out of the lists."""


class RecordStop(Action, frozen=True):
    """Records a request to stop the open attempt of a job.

    The request stays open until the end of the attempt is recorded or the runner withdraws the request.
    """

    job_id: int
    stop: StopRequest


class ClearStop(AttemptAction, frozen=True):
    """Clears the open preemption of this id, and no other request, because the runner has withdrawn it."""

    job_id: int
    stop_id: str


class Reserve(Action, frozen=True):
    """Reserves GPUs for a queued job for which attempts are preempted.

    The reservation lasts until the job starts or leaves the queue, or until it is dropped.
    victims: the ids of these attempts. Requests to stop them are recorded in the same round.
    """

    job_id: int
    gpus: tuple[str, ...]
    victims: tuple[int, ...]


class DropReservation(Action, frozen=True):
    """Drops the reservation of a job that cannot start although all its victims have left."""

    job_id: int


class SetAttribute(Action, frozen=True):
    """Changes one attribute (a name in job_spec.COMPARED_ATTRIBUTES) of a waiting or finished job."""

    job_id: int
    name: str
    value: Any


class SetConfirmed(Action, frozen=True):
    """Lets a job from a Redis queue start, or keeps one that has never been started from starting."""

    job_id: int
    confirmed: bool


class SetDependencies(Action, frozen=True):
    """Replaces the dependencies of one kind of a job, which must not make it wait for itself."""

    job_id: int
    kind: DependencyKind
    dependencies: tuple[Dependency, ...]


class SettleDependencies(Action, frozen=True):
    """Skips the queued jobs with a failed parent, and queues the skipped jobs that have none any more."""


class SetQueuePositions(Action, frozen=True):
    """Sets the queue positions of waiting jobs. positions: pairs (job id, position)."""

    positions: tuple[tuple[int, int], ...]


class SetPaused(Action, frozen=True):
    """Pauses or resumes a GPU. cause: None if a command requested it."""

    uuid: str
    paused: bool
    cause: PauseCause | None = None


class SetSuspicion(Action, frozen=True):
    """Records that a GPU is suspect, or no longer is. Only what is shown depends on the record."""

    uuid: str
    suspicion: Suspicion | None


class SetWaitReason(Action, frozen=True):
    """Sets the reason why the jobs with one resource spec wait."""

    spec_key: str
    reason: WaitReason


class SetQueueReservation(Action, frozen=True):
    """Reserves GPUs by queue order for a queued job, and for no other job.

    job_id: None if for no job. gpus: sorted UUIDs. start_at: the expected start in wall seconds. overtakes:
    how often the job has been overtaken.
    """

    job_id: int | None
    gpus: tuple[str, ...] = ()
    start_at: float = 0.0
    overtakes: int = 0


class RecordGpuTime(Action, frozen=True):
    """Adds GPU-seconds to those of the current hour.

    delivered_s: allocated to attempts; reserved_idle_s: not allocated, on GPUs reserved by queue order.
    until: the end of the counted time in wall seconds.
    """

    delivered_s: float
    reserved_idle_s: float
    until: float


class AnswerRequest(Action, frozen=True):
    """Answers a request: what was done, or why the request was refused."""

    request_id: int
    answer: RequestAnswer


class EndScheduler(Action, frozen=True):
    """Ends the scheduler, because a front end requested it."""
