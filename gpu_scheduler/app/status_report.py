"""Values that `status` shows; both its text and its JSON are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_scheduler.core.model.health_issue import HealthIssue
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import FAILED, JobState
from gpu_scheduler.core.model.wait_reason import WaitReason

if TYPE_CHECKING:
    from gpu_scheduler.core.model.event import MisplacedProcess, Overuse
    from gpu_scheduler.core.model.gpu_fault import GpuFault

    #: A warning about an attempt; a text describes unexpected contents of its folder.
    AttemptWarning = Overuse | MisplacedProcess | str

#: States of a GPU, in order of precedence.
LOST, PAUSED, BUSY, AVAILABLE = "lost", "paused", "busy", "available"


@dataclass(frozen=True)
class GpuStatusView:
    """A managed GPU. share: allocated thousandths; allocated_mib: memory allocated to jobs, None = unknown;
    has_declared_memory: one of them declared memory; sampled_at: wall seconds; jobs: ids of the jobs that
    hold it."""

    index: int
    uuid: str
    name: str
    state: str
    share: int
    used_mib: int | None
    total_mib: int | None
    load_percent: float | None
    fault: GpuFault | None
    sampled_at: float | None
    jobs: tuple[int, ...] = ()
    allocated_mib: int | None = 0
    has_declared_memory: bool = False


@dataclass(frozen=True)
class JobView:
    """A job and its newest attempt. Times in wall seconds.

    is_recorded: False if state and outcome come from the attempt folder and are not in the store yet.
    wait: why it waits, None = it does not wait; due_in_s: seconds until `wait.due_at`, None = unknown.
    reason: why it ended, is held, or is tried again. infeasible: it is queued and could not fit even on empty
    GPUs. window_closed: its Screen window was closed while it runs on; session is then None.
    vram_declared: MiB on each of its GPUs, None = none; share_declared: thousandths of each; peaks,
    memory_used: GPU index -> peak and present memory use there, MiB (the latter is known to the scheduler).
    spec: its JobSpec as JSON; last_line: the last output line of a running job, None = no output, or not
    requested.
    """

    id: int
    state: str
    outcome: str | None = None
    is_recorded: bool = True
    reason: StateReason | None = None
    infeasible: bool = False
    name: str | None = None
    text: str = ""
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    attempts: int = 0
    session: str | None = None
    log: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    priority: int = 200
    source: str = ""
    warnings: tuple[AttemptWarning, ...] = ()
    vram_declared: int | None = None
    share_declared: int | None = None
    memory_used: Mapping[int, int] = field(default_factory=dict)
    oom_retries_used: int = 0
    peaks: Mapping[int, int] = field(default_factory=dict)
    wait: WaitReason | None = None
    due_in_s: float | None = None
    window_closed: bool = False
    spec: str = "{}"
    last_line: str | None = None


@dataclass(frozen=True)
class MalformedLineView:
    """A malformed line of a jobs file, the reason, and the accepted form."""

    path: str
    number: int
    text: str
    reason: str
    accepted: str | None = None


@dataclass(frozen=True)
class JobsFileView:
    """A jobs file. problem: why it cannot be read now, None = it can."""

    path: str
    problem: str | None = None


@dataclass(frozen=True)
class StatusReport:
    """The contents of `status` at `now` (wall seconds).

    pid: of the scheduler, None = none is running; counts: recorded state -> number of all jobs in it, shown
    or not; unsuccessful_counts: outcome other than completed -> number of all finished jobs with it;
    is_failed_only: the report covers failed jobs only.
    """

    now: float
    pid: int | None
    state_file: str
    data_dir: str
    gpus: tuple[GpuStatusView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unsuccessful_counts: Mapping[str, int] = field(default_factory=dict)
    malformed: tuple[MalformedLineView, ...] = ()
    jobs_files: tuple[JobsFileView, ...] = ()
    health_issues: tuple[HealthIssue, ...] = ()
    is_failed_only: bool = False

    def failed_only(self, limit: int | None) -> StatusReport:
        """Returns the report of failed jobs only, with at most `limit` of them (None: all)."""
        jobs = tuple(job for job in self.jobs if job.outcome in FAILED)
        recorded = [job.outcome or "" for job in jobs if job.is_recorded]
        return replace(
            self,
            jobs=jobs[:limit],
            counts={JobState.FINISHED.value: len(recorded)},
            unsuccessful_counts={outcome: recorded.count(outcome) for outcome in recorded},
            is_failed_only=True,
        )
