"""What `status` shows, as values: the same ones become text and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_scheduler.core.linewait import LineWait
from gpu_scheduler.core.states import FAILED, JobState
from gpu_scheduler.core.trouble import Trouble

#: The states of a GPU, the first that applies.
LOST, PAUSED, BUSY, AVAILABLE = "lost", "paused", "busy", "available"


@dataclass(frozen=True)
class GpuShown:
    """A managed GPU. share: thousandths allocated; booked_mib: memory that jobs of ours have booked, None =
    not known; by_memory: one of them declared memory; sampled_at: wall seconds; jobs: ids of its holders."""

    index: int
    uuid: str
    name: str
    state: str
    share: int
    used_mib: int | None
    total_mib: int | None
    load_percent: float | None
    fault: str | None
    sampled_at: float | None
    jobs: tuple[int, ...] = ()
    booked_mib: int | None = 0
    by_memory: bool = False


@dataclass(frozen=True)
class JobShown:
    """A job and its newest attempt. Times in wall seconds.

    recorded: False where state and outcome come from the attempt's folder and are not on the record yet.
    line_wait: of a queued job that waits for its line of the jobs file. window_closed: its Screen window was
    closed while it runs; it has no session then.
    vram_declared: MiB on each of its GPUs, None = none; peaks: GPU index -> the most MiB that it was seen to
    use there. spec: its JobSpec as JSON; need: the fields of the Need for which it waits, None = it waits for
    something else; last_line: what a running one printed last, None = nothing, or not asked for.
    """

    id: int
    state: str
    outcome: str | None = None
    recorded: bool = True
    reason: str | None = None
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
    warnings: tuple[str, ...] = ()
    vram_declared: int | None = None
    peaks: Mapping[int, int] = field(default_factory=dict)
    line_wait: LineWait | None = None
    window_closed: bool = False
    spec: str = "{}"
    need: Mapping[str, Any] | None = None
    last_line: str | None = None


@dataclass(frozen=True)
class MalformedShown:
    """A line of a jobs file that is no job, why, and what would be accepted."""

    path: str
    number: int
    text: str
    reason: str
    accepted: str | None = None


@dataclass(frozen=True)
class JobsFileShown:
    """A jobs file, and why it cannot be read now."""

    path: str
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """Everything that `status` shows, at `now` (wall seconds).

    pid: of the scheduler, None when none is up; host: of the record, where that is another one, whose
    processes cannot be seen; counts: recorded state -> all jobs in it, shown or not; unsuccessful: outcome ->
    all finished jobs with it, but for the completed ones; only_failed: it is about jobs that failed, and no
    others.
    """

    now: float
    pid: int | None
    state_file: str
    data_dir: str
    gpus: tuple[GpuShown, ...] = ()
    jobs: tuple[JobShown, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unsuccessful: Mapping[str, int] = field(default_factory=dict)
    malformed: tuple[MalformedShown, ...] = ()
    jobs_files: tuple[JobsFileShown, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    host: str | None = None
    only_failed: bool = False

    def of_failed(self, most: int | None) -> Report:
        """The same about jobs that failed alone, at most so many."""
        jobs = tuple(job for job in self.jobs if job.outcome in FAILED)
        recorded = [job.outcome or "" for job in jobs if job.recorded]
        return replace(
            self,
            jobs=jobs[:most],
            counts={JobState.FINISHED.value: len(recorded)},
            unsuccessful={outcome: recorded.count(outcome) for outcome in recorded},
            only_failed=True,
        )
