"""Defines events, which are the rows of the history, with their details as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import asdict

from gpu_scheduler.core.model.reasons import StateReason, WaitReason
from gpu_scheduler.core.model.values import Code

if TYPE_CHECKING:
    from gpu_scheduler.core.model.request import PauseCause


# fmt: off
class EventKind(Code):
    """The kind of an event, as stored: a job's new state, or something else that happened.

    The sentence follows the name of the job. It is "" if it depends on more than the values of the event.
    """

    QUEUED = "queued", ""
    HELD = "held", ""
    STARTING = "starting", ""
    RUNNING = "running", ""
    STOPPING = "stopping", ""
    FINISHED = "finished", ""
    OVERUSE = "exceeded", ""
    MISPLACED_PROCESS = "misplaced_process", ""
    WINDOW_CLOSED = ("window_closed",
        "continues although its Screen window was closed; `logs {job} -f` follows its output")
    PREEMPTION_WITHDRAWN = (
        "preemption_withdrawn", "did not end in time, so it is not preempted and continues")
    GPUS_RESERVED = "gpus_reserved", "preempts {victims}; {reserved} reserved for it"
    RESERVATION_DROPPED = ("reservation_dropped",
        "cannot start on the GPUs that were reserved for it; they accept other jobs again")
    RELAUNCHED = "relaunched", "is launched again: no runner claimed attempt {attempt} in time"
    RUNNER_LOST = "runner_lost", "lost the runner of attempt {attempt}, which left no result"
    RUNNER_KILLED = "runner_killed", "did not end in time; the runner of attempt {attempt} is killed"
    INFEASIBLE = "infeasible", "waits, {reason}"
    RESTORED = "restored", "restored from the folder of attempt {attempt}"
    PAUSED = "paused", "GPU {gpus} paused {reason}"
    RESUMED = "resumed", "GPU {gpus} resumed {reason}"
    SUSPECTED = "suspected", "GPU {gpus} is {why}; `resume {gpus}` uses it again at once"
    SUSPICION_ENDED = "suspicion_ended", "GPU {gpus} is no longer suspect; it accepts jobs again"
    FORGOTTEN = "forgotten", ""
    # fmt: on

    def __str__(self) -> str:
        return self._value_


class EventDetails(Struct, frozen=True):
    """The details of an event. Its field names are the keys in the store and in JSON (docs/json.md).

    GPUs are given as indices, memory in MiB, and shares in thousandths.
    """

    def data(self) -> dict[str, Any]:
        """Returns the details by key."""
        return asdict(self)


class AttemptDetails(EventDetails, frozen=True):
    """An event of an attempt. attempt: the number of the attempt."""

    attempt: int


class AttemptStarted(AttemptDetails, frozen=True):
    """An attempt was given GPUs.

    vram: memory on each GPU; exclusive: whether no other job may share the GPUs; learned: whether vram was
    measured on similar jobs; assumed: whether share and vram are defaults rather than declarations.
    resumed_from, resumed_step: the path and the step of the checkpoint from which it resumes; None if it
    starts from the beginning or if the step is unknown. watched_pid: the adopted process that the attempt
    watches; None if it starts the command. engine: the engine that runs it; None for this machine.
    """

    gpus: Sequence[int]
    share: int
    vram: int | None
    exclusive: bool
    learned: bool = False
    assumed: bool = False
    resumed_from: str | None = None
    resumed_step: float | None = None
    watched_pid: int | None = None
    engine: str | None = None


class AttemptEnded(AttemptDetails, frozen=True):
    """An attempt ended, and its job finished, was queued again or was held.

    seconds: the run time; None if the command never ran. peaks: the peak memory use on each of `gpus`.
    budgets: the declared memory on each of `gpus`; None if nothing was declared. declared: the declared
    memory; None if a share or nothing was declared. load: the mean load in percent. min_vram: the memory that
    the job needs from now on.
    """

    outcome: str
    exit_code: int | None
    signal: int | None
    seconds: float | None
    gpus: Sequence[int]
    peaks: Sequence[int | None]
    declared: int | None
    budgets: Sequence[int | None] | None
    share: int
    load: float | None
    log: str | None
    survivors: Sequence[int]
    learned: bool = False
    min_vram: int | None = None


class StopStarted(EventDetails, frozen=True):
    """An attempt is being stopped.

    cause: "cancelled", "preempted" or "timed_out". preemptor: the job for which it is preempted; None if the
    user asked, or for another cause. grace_s: the seconds that it has to end.
    """

    cause: str
    grace_s: float
    preemptor: int | None = None


class JobEnded(EventDetails, frozen=True):
    """A waiting job finished, so the event belongs to no attempt."""

    outcome: str


class Overuse(AttemptDetails, frozen=True):
    """A job uses more memory than it declared.

    share: the declared share, which corresponds to the memory in `declared`; None if memory was declared.
    """

    gpu: int
    observed: int
    declared: int
    share: int | None = None


class MisplacedProcess(AttemptDetails, frozen=True):
    """A process uses a GPU that was not allocated to its job. allocated: the GPUs that were allocated."""

    gpu: int
    pid: int
    allocated: Sequence[int] = ()


class GpusChanged(EventDetails, frozen=True):
    """GPUs were paused or resumed. cause: None if a command did this."""

    gpus: Sequence[int]
    cause: PauseCause | None = None


class GpuSuspected(EventDetails, frozen=True):
    """A GPU is suspect, or stays so after a trial. suspicion: the fields of its Suspicion."""

    gpus: Sequence[int]
    suspicion: Mapping[str, Any]


class GpusReserved(EventDetails, frozen=True):
    """GPUs were reserved for a job.

    victims: the jobs that are preempted for it; if there are none, GPUs are reserved by queue order.
    start_at: when it is then expected to start, in wall seconds; overtakes: how often it had been overtaken.
    """

    gpus: Sequence[int]
    victims: Sequence[int]
    start_at: float | None = None
    overtakes: int | None = None


class ReservationDropped(EventDetails, frozen=True):
    """GPUs are no longer reserved for a job, which has not started on them.

    overtakes: how often it had been overtaken; None if they were reserved because it preempted others.
    """

    overtakes: int | None = None


class JobsForgotten(EventDetails, frozen=True):
    """`start --fresh` removed this many jobs."""

    jobs: int


class Event(Struct, frozen=True, dict=True):
    """One event.

    id: increases with every event; at: the time, in wall seconds; kind: the value of an EventKind, or a kind
    that only another version defines; job_id: 0 if the event is not about a job; reason: the reason for the
    job's new state, the reason why an infeasible job waits, or a text that another version stored; data: the
    details by key, as stored.

    command, name, spec: the job's line, its name, and its specification as JSON; is_new_job: whether the
    event introduced the job.
    """

    id: int
    at: float
    kind: str
    job_id: int = 0
    reason: StateReason | WaitReason | str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    name: str | None = None
    spec: str = "{}"
    is_new_job: bool = False

    _TYPES: ClassVar[Mapping[str, type[EventDetails]]] = {
        EventKind.STARTING: AttemptStarted,
        EventKind.STOPPING: StopStarted,
        EventKind.OVERUSE: Overuse,
        EventKind.MISPLACED_PROCESS: MisplacedProcess,
        EventKind.WINDOW_CLOSED: AttemptDetails,
        EventKind.PREEMPTION_WITHDRAWN: AttemptDetails,
        EventKind.GPUS_RESERVED: GpusReserved,
        EventKind.RESERVATION_DROPPED: ReservationDropped,
        EventKind.RELAUNCHED: AttemptDetails,
        EventKind.RUNNER_LOST: AttemptDetails,
        EventKind.RUNNER_KILLED: AttemptDetails,
        EventKind.RESTORED: AttemptDetails,
        EventKind.PAUSED: GpusChanged,
        EventKind.RESUMED: GpusChanged,
        EventKind.SUSPECTED: GpuSuspected,
        EventKind.SUSPICION_ENDED: GpusChanged,
        EventKind.FORGOTTEN: JobsForgotten,
    }

    @cached_property
    def details(self) -> EventDetails | None:
        """The details; None if there are none, or if another version stored them in an unknown form."""
        of_end = AttemptEnded if "attempt" in self.data else JobEnded
        type_ = of_end if "outcome" in self.data else self._TYPES.get(self.kind)
        if type_ is None:
            return None
        try:
            return type_(**{name: self.data[name] for name in type_.__struct_fields__ if name in self.data})
        except TypeError:
            return None
