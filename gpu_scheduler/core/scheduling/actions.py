"""The actions that a round can decide on.

All actions of a round are recorded in one transaction and then performed. There are three kinds: those that
touch the world outside the store, those that change one row, and those that change other tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Allocation, Job
from gpu_scheduler.core.model.reasons import StateReason
from gpu_scheduler.core.model.states import AttemptState, check_transition

if TYPE_CHECKING:
    from gpu_scheduler.core.model.job import AdoptedProcess, StopRequest
    from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind
    from gpu_scheduler.core.model.reasons import WaitReason
    from gpu_scheduler.core.model.request import PauseCause, RequestAnswer


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
    None if it starts the command. waiting_since: when the job last began to wait, in wall seconds. engine:
    the engine on which it runs; None for this machine.
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
    engine: str | None = None

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


class RequestStop(AttemptAction, frozen=True):
    """Writes `stop` and wakes the runner."""

    stop: StopRequest


class WakeRunner(AttemptAction, frozen=True):
    """Signals the runner again, because `stop` has been written but the attempt has not ended."""


class KillRunner(AttemptAction, frozen=True):
    """Kills a runner that did not exit within the grace period plus 10 s."""


class Sweep(AttemptAction, frozen=True):
    """Signals every process that carries the attempt's token. kill: SIGKILL instead of SIGTERM."""

    kill: bool


class EndScheduler(Action, frozen=True):
    """Ends the scheduler, because a front end requested it."""


# The changes of rows.


class JobChanged(Action, frozen=True):
    """Changes the row of a job. Raises IllegalTransitionError if the tables do not allow its new state.

    because: why, for the history, if the new state itself has no reason.
    """

    old: Job
    new: Job
    because: StateReason | None = None

    def __post_init__(self) -> None:
        check_transition(self.new.id, f"job {self.new.id}", self.old.state, self.new.state)


def stopped(job: Job, stop: StopRequest) -> JobChanged:
    """Returns the change that records a request to stop the attempt of a job.

    It stays open until the end of the attempt is recorded or the runner withdraws the request.
    """
    return JobChanged(job, replace(job, stop=stop))


class AttemptChanged(Action, frozen=True):
    """Changes the rows of an attempt, of its allocations and of its job.

    Raises IllegalTransitionError if the tables do not allow a new state.
    """

    old: ActiveAttempt
    new: ActiveAttempt

    def __post_init__(self) -> None:
        old, new = self.old, self.new
        check_transition(new.job_id, f"job {new.job_id}", old.job.state, new.job.state)
        check_transition(new.job_id, f"attempt {new.number} of job {new.job_id}", old.state, new.state)

    @property
    def is_end(self) -> bool:
        """True if the attempt ends."""
        return self.old.state.is_open and not self.new.state.is_open

    @property
    def is_release(self) -> bool:
        """True if the attempt no longer holds GPUs afterwards."""
        return self.old.state.holds_gpus and not self.new.state.holds_gpus

    @property
    def is_closed(self) -> bool:
        """True if nothing of the attempt, such as its memory, is left afterwards."""
        return self.new.state is AttemptState.CLOSED


class GpuChanged(Action, frozen=True):
    """Changes the row of a GPU. cause: why it was paused or resumed; None if a command requested it."""

    old: Gpu
    new: Gpu
    cause: PauseCause | None = None


# The other changes of the store.


class ClearFinished(Action, frozen=True):
    """Takes all finished jobs out of the lists."""


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
