"""What a round knows, as frozen values: the record, the folders, the GPUs, the wishes, the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.core.ledger import Booking
from gpu_scheduler.core.needs import Ask, LlmConfig
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.sighting import Evidence, Sighting
from gpu_scheduler.core.states import JobState, Outcome


@dataclass(frozen=True)
class Settings:
    """The options of `start` that decisions depend on. Times in seconds.

    exclusive: no two jobs of ours on one GPU; tolerance: the fraction by which memory may exceed what was
    declared before it is said; *_retries: of jobs whose line says nothing.
    """

    limits: Limits = field(default_factory=Limits)
    exclusive: bool = False
    tolerance: float = 0.10
    oom_retries: int = 0
    fail_retries: int = 0
    max_assign_attempts: int = 5
    assign_retry_wait_s: float = 5.0
    launch_deadline_s: float = 10.0
    launches: int = 3
    grace_s: float = 10.0
    cooling_s: float = 60.0
    survivor_s: float = 60.0


@dataclass(frozen=True)
class Cancel:
    """An open cancel or preempt of a job: durable until its attempt's end is recorded."""

    cause: str
    grace_s: float


@dataclass(frozen=True)
class QueuedJob:
    """A job that may start now. Lower priority first, then lower place."""

    job_id: int
    priority: int
    place: int
    passed_over: bool = False


@dataclass(frozen=True)
class Line:
    """The first waiting jobs of one Ask, in order; `more` = there are others behind them."""

    ask: Ask
    jobs: tuple[QueuedJob, ...]
    more: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Attempt:
    """An attempt whose GPUs are not given back yet, or not cooled: the record, and what its folder says.

    Times are boot seconds of `boot_id`. made: its folder has all that a runner needs. begun: its command has
    recorded itself there, and no claim is there. survivors: its processes; None = not looked for.
    baseline_mib: memory on each GPU that nobody accounted for when it started. evidence: what a command that
    failed has left. strays: GPUs that it was not given, on which processes of it were seen and told.
    window_closed: that its Screen window was closed is told.

    share (thousandths, 0 = none) and vram (MiB): declared, of each of its GPUs; whole: no other job of ours
    is to be there. budgets: UUID -> MiB that what was declared (or learned) comes to there, None = not known;
    empty: nothing was declared. peaks: UUID -> MiB that its processes were seen to use there, measured_at: in
    samples until then; exceeded: the GPUs on which it was told to use more than declared. ask: what its job
    asks for now. oom_used, fail_used: retries that its job has used.
    """

    attempt_id: int
    job_id: int
    token: str
    boot_id: str
    job_state: JobState
    gpus: tuple[str, ...] = ()
    share: int = 0
    vram: int | None = None
    whole: bool = False
    budgets: Mapping[str, int | None] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)
    measured_at: float | None = None
    exceeded: tuple[str, ...] = ()
    ask: Ask = field(default_factory=Ask)
    oom_used: int = 0
    fail_used: int = 0
    baseline_mib: Mapping[str, int] = field(default_factory=dict)
    outcome: Outcome | None = None
    sighting: Sighting = field(default_factory=Sighting)
    survivors: tuple[int, ...] | None = None
    made: bool = True
    begun: bool = False
    launches: int = 1
    launch_deadline: float = 0.0
    launch_error: str | None = None
    stopping_at: float | None = None
    signalled_at: float | None = None
    dead_at: float | None = None
    swept_at: float | None = None
    released_at: float | None = None
    cancel: Cancel | None = None
    launch_failures: int = 0
    lineless: bool = False
    number: int = 1
    evidence: Evidence | None = None
    strays: tuple[str, ...] = ()
    window_closed: bool = False
    runner: tuple[int, int] | None = None

    def booking(self, uuid: str) -> Booking:
        """What it books on one of its GPUs."""
        return Booking(self.share, self.vram, self.whole, self.peaks.get(uuid))


@dataclass(frozen=True)
class JobFact:
    """A job that a wish names."""

    job_id: int
    state: JobState
    outcome: Outcome | None = None
    held_by: str | None = None


@dataclass(frozen=True)
class Wish:
    """What a front end asks for (docs/design.md, Store and requests).

    target: a job id or a GPU's UUID, as text; "" for the scheduler itself. args, by verb: cancel {grace_s,
    reason}, requeue and pause and resume {reason}, set {name, value, line: whether its line says so}, places
    {places: [[job id, place], …]}.
    """

    wish_id: int
    verb: str
    target: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpu:
    """A managed GPU: what the record and the last sample say. load: mean of the last samples, percent.

    owners: for each process that the probe listed, the attempt that owns it (None = foreign); starts: when it
    began, wall seconds, where that is known. unmatched: a listed process cannot be told from here, so that
    nothing but the totals counts. held: (pid, start) of each foreign process that still lives -> the most MiB
    that it was seen to use. total_mib: its memory as the record has it, whether or not it can be read now.
    foreign_loads: the load that foreign processes made in each of the last samples, percent, the newest last
    (None = not known); foreign_load_at: when the newest of those samples was taken.
    """

    uuid: str
    index: int
    paused: bool = False
    sample: GpuSample | None = None
    sampled_at: float | None = None
    load: float | None = None
    owners: Mapping[int, int | None] = field(default_factory=dict)
    starts: Mapping[int, float] = field(default_factory=dict)
    unmatched: bool = False
    held: Mapping[tuple[int, float], int] = field(default_factory=dict)
    total_mib: int | None = None
    foreign_loads: tuple[float | None, ...] = ()
    foreign_load_at: float | None = None


@dataclass(frozen=True)
class Facts:
    """Everything that one round decides from.

    complete: a sample of every managed GPU has come; blind: why there is none now. trouble: why our own
    storage lets nothing new start now. others: the GPUs that the probe sees and we do not manage. learned:
    family -> MiB that a job of it needs, where needs are learned.
    """

    now: Now
    settings: Settings
    config: LlmConfig
    gpus: tuple[Gpu, ...] = ()
    others: tuple[Gpu, ...] = ()
    complete: bool = True
    blind: str | None = None
    trouble: str | None = None
    attempts: tuple[Attempt, ...] = ()
    lines: tuple[Line, ...] = ()
    wishes: tuple[Wish, ...] = ()
    jobs: Mapping[int, JobFact] = field(default_factory=dict)
    learned: Mapping[str, int] = field(default_factory=dict)
