"""Defines the values that `status` shows, both as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import ACTIVE, FAILED, JobState, Outcome

if TYPE_CHECKING:
    from gpu_scheduler.core.explain.progress import JobProgress
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse
    from gpu_scheduler.core.model.gpu import Gpu, GpuClaim
    from gpu_scheduler.core.model.job import Attempt, Job, StopRequest
    from gpu_scheduler.core.model.job_spec import Parent
    from gpu_scheduler.store.jobs_files import JobsFileRecord, MalformedLineRecord

    #: A warning about an attempt; a plain string describes unexpected contents of its folder.
    AttemptWarning = Overuse | MisplacedProcess | str

#: States of a GPU, in order of precedence.
LOST, PAUSED, SUSPECT, CLAIMED, BUSY, RESERVED, AVAILABLE = (
    "lost",
    "paused",
    "suspect",
    "claimed",
    "busy",
    "reserved",
    "available",
)


class GpuView(Struct, frozen=True):
    """A managed GPU.

    share: the allocated thousandths; jobs: the ids of the jobs to which the GPU is allocated; allocated_mib:
    the memory allocated to them, None if unknown; has_declared_memory: whether any of them declared memory.
    claims: the claims of other programs; claims_problem: why the GPU cannot be claimed, None if it can.
    reserved_for: the ids of the jobs for which the GPU is reserved.
    """

    record: Gpu
    state: str
    share: int
    jobs: tuple[int, ...] = ()
    allocated_mib: int | None = 0
    has_declared_memory: bool = False
    claims: tuple[GpuClaim, ...] = ()
    claims_problem: str | None = None
    reserved_for: tuple[int, ...] = ()


#: The memory use by GPU index of a job that uses no memory.
_NO_MEMORY: Mapping[int, int] = {}


class JobView(NamedTuple):
    """A job and its newest attempt, with the changes that the next round will record.

    is_recorded: False if there are such changes. wait: why the job waits, None if it does not wait. due_in_s:
    the seconds until `wait.due_at`, None if unknown. infeasible: whether the job is queued and could not fit
    even on empty GPUs; False while it waits for other jobs, because it is not compared with the GPUs then.
    parents: the jobs on which it depends, sorted by id. gpus: the indices of the attempt's GPUs. peaks: its
    peak MiB by index. memory_used: its current MiB by GPU index, which only the scheduler can fill in.
    warnings: the warnings about the attempt; a plain string describes an anomaly in its folder. last_line:
    the last output line of a running job, None if there is no output or the caller did not ask for it.
    progress: how far a running job is, None if the caller did not ask for it. stop: the request because of
    which a job is being stopped, None if it is unknown. stop_in_s: the seconds that are left of its grace
    period, None if unknown. as_of: when the view was made, in seconds since 1970.
    """

    record: Job
    attempt: Attempt | None = None
    is_recorded: bool = True
    wait: WaitReason | None = None
    due_in_s: float | None = None
    infeasible: bool = False
    parents: tuple[Parent, ...] = ()
    gpus: tuple[int, ...] = ()
    peaks: Mapping[int, int] = _NO_MEMORY
    memory_used: Mapping[int, int] = _NO_MEMORY
    warnings: tuple[AttemptWarning, ...] = ()
    last_line: str | None = None
    progress: JobProgress | None = None
    stop: StopRequest | None = None
    stop_in_s: float | None = None
    as_of: float = 0.0

    @property
    def started_at(self) -> float | None:
        """When the newest attempt or the adopted process started, in seconds since 1970; None if unknown."""
        if self.attempt is None and self.record.adopted is not None:
            return self.record.adopted.started_at
        return None if self.attempt is None else self.attempt.started_at

    @property
    def is_running(self) -> bool:
        """True if the job has started and not ended, watched or not."""
        return self.started_at is not None and (self.record.state in ACTIVE or self.record.is_unwatched)

    @property
    def window_closed(self) -> bool:
        """True if the job is still running although its Screen window was closed."""
        return self.attempt is not None and self.attempt.window_closed and self.record.state in ACTIVE

    @property
    def pid(self) -> int | None:
        """The process from which those of a running job descend, or the adopted one; None if not running."""
        if self.attempt is None or self.record.state not in ACTIVE:
            return None
        return self.attempt.watched_pid or self.attempt.runner_pid

    @property
    def session(self) -> str | None:
        """The Screen session in which the job runs; None if it has none or its window was closed."""
        is_shown = self.attempt is not None and self.record.state in ACTIVE and not self.window_closed
        return self.attempt.session if self.attempt is not None and is_shown else None

    @property
    def log(self) -> str | None:
        """The path of the newest attempt's log, or of that of an adopted process which is not watched yet."""
        if self.attempt is None:
            return None if self.record.adopted is None else self.record.adopted.log
        return self.attempt.log

    @property
    def is_without_log(self) -> bool:
        """True if the job is or was an adopted process whose output does not go to a file."""
        was_watched = self.attempt is not None and self.attempt.watched_pid is not None
        return self.log is None and (was_watched or self.record.adopted is not None)

    @property
    def vram_declared(self) -> int | None:
        """MiB that the newest attempt declared on each GPU; None if it declared no memory."""
        return None if self.attempt is None else self.attempt.vram_declared


class StatusReport(Struct, frozen=True):
    """The contents of `status` at `now` (seconds since 1970).

    pid: the scheduler's pid, None if no scheduler is running; counts: the number of all jobs in each recorded
    state, shown or not; hidden_count: the number of finished jobs that the report leaves out because they are
    cleared; unsuccessful_counts: the number of all other finished jobs with each outcome except completed;
    is_failed_only: whether the report covers only failed jobs; skipped: the number of skipped jobs that such
    a report leaves out; redis_problem: what keeps this scheduler from its Redis queue, or None.
    """

    now: float
    pid: int | None
    state_file: str
    data_dir: str
    gpus: tuple[GpuView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unsuccessful_counts: Mapping[str, int] = field(default_factory=dict)
    hidden_count: int = 0
    malformed: tuple[MalformedLineRecord, ...] = ()
    jobs_files: tuple[JobsFileRecord, ...] = ()
    health_issues: tuple[HealthIssue, ...] = ()
    is_failed_only: bool = False
    skipped: int = 0
    redis_problem: str | None = None

    def listed_count(self, state: JobState) -> int:
        """Returns the number of jobs in a recorded state, without hidden ones."""
        hidden = self.hidden_count if state is JobState.FINISHED else 0
        return self.counts.get(state.value, 0) - hidden

    def failed_only(self, limit: int | None) -> StatusReport:
        """Returns a report of only the failed jobs. limit: the maximum number of jobs, None means all."""
        jobs = tuple(job for job in self.jobs if job.record.outcome in FAILED)
        recorded = [str(job.record.outcome) for job in jobs if job.is_recorded]
        return replace(
            self,
            jobs=jobs[:limit],
            counts={JobState.FINISHED.value: len(recorded)},
            unsuccessful_counts={outcome: recorded.count(outcome) for outcome in recorded},
            hidden_count=0,
            is_failed_only=True,
            skipped=self.unsuccessful_counts.get(Outcome.SKIPPED.value, 0),
        )
