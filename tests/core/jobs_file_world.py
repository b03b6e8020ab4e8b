"""An in-memory jobs file, clock and job table for tests of how edits affect jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.jobsfile import debounce
from gpu_scheduler.core.jobsfile.diff import (
    AcceptedLines,
    AttributeChanged,
    CancelRunning,
    DiffAction,
    InsertJob,
    LineRemoved,
    ReadingDiff,
    RequeueFinished,
    job_order,
    redistribute_positions,
)
from gpu_scheduler.core.jobsfile.job_line import parse_line
from gpu_scheduler.core.jobsfile.reading import Reading, line_from_result
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import ACTIVE, WAITING, JobState, Outcome


class JobOfWorld(Struct):
    """The stored values of a job."""

    spec: JobSpec
    position: int
    state: JobState = JobState.QUEUED
    outcome: Outcome | None = None
    held_by: str | None = None
    cancelling: bool = False


class JobsFileWorld:
    """A jobs file whose debounce and diff decisions are applied to jobs, as the loop does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.unchanged_since = self.now
        self.raw_lines: list[str] = []
        self.reading: Reading = ()
        self.jobs: dict[int, JobOfWorld] = {}
        self.waits: Mapping[int, WaitReason] = {}
        self.messages: list[str] = []
        self.actions: list[DiffAction] = []
        self.next_check: float | None = None
        self.accepted = False  # whether the last check accepted a change
        self.open_for_writing = False
        self.present = True

    @property
    def waiting_for_lines(self) -> set[int]:
        """Returns the ids of the jobs that must not start because of their lines."""
        return set(self.waits)

    def save(self, text: str, wait: float = 0.0) -> None:
        """Saves `text` to the file, checks the file, and then waits for `wait` seconds."""
        self.raw_lines = text.splitlines(keepends=True)
        self.unchanged_since = self.now
        self.check()
        if wait:
            self.wait(wait)

    def append(self, text: str, wait: float = 0.0) -> None:
        """Appends `text` to the file in one save."""
        self.save("".join(self.raw_lines) + text, wait)

    def wait(self, seconds: float) -> None:
        """Advances the time. Checks the file whenever the last check requested it, and once at the end."""
        end = self.now + seconds
        while self.next_check is not None and self.next_check <= end:
            assert self.next_check > self.now, "a check that is due at once would loop forever"
            self.now = self.next_check
            self.check()
        self.now = end
        # The real watcher also checks the file every --monitor-interval seconds.
        self.check()

    def check(self) -> None:
        """Checks the file once."""
        parsed = [
            (number, raw, parse_line(raw, "/w", "/home/u")) for number, raw in enumerate(self.raw_lines, 1)
        ]
        lines = tuple(
            line_from_result(number, raw, result) for number, raw, result in parsed if result is not None
        )
        content = debounce.CurrentLines(lines, self.unchanged_since, self.open_for_writing)
        decision = debounce.decide_accepted(self.reading, content, self.facts(), self.now)
        self.waits, self.next_check = decision.waits, decision.recheck_at
        self.accepted = decision.accepted is not None
        if decision.accepted is not None:
            self.accept(decision.accepted)

    def accept(self, accepted: AcceptedLines) -> None:
        """Applies accepted lines to the jobs."""
        result = ReadingDiff(self.reading, accepted, self.facts(), self.newest())
        self.actions += result.actions
        self.messages += result.messages
        new: dict[int, int] = {}
        for action in result.actions:
            if isinstance(action, InsertJob):
                spec = accepted.lines[action.index].spec
                assert spec is not None
                new[action.index] = self.insert(spec)
                self.messages.append(action.log_message(new[action.index]))
            elif isinstance(action, RequeueFinished):
                spec = accepted.lines[action.index].spec
                assert spec is not None
                job_id = action.job.id
                job = self.jobs[job_id]
                assert job.state is JobState.FINISHED
                state, held_by = (JobState.HELD, "line") if spec.hold else (JobState.QUEUED, None)
                self.jobs[job_id] = replace(
                    job, spec=spec, state=state, held_by=held_by, outcome=None, cancelling=False
                )
            else:
                self.apply_action(action)
        self.reading = result.to_reading(new)
        places = {i: job.position for i, job in self.jobs.items() if job.state is JobState.QUEUED}
        for job_id, place in redistribute_positions(job_order(self.reading), places):
            self.jobs[job_id].position = place

    def apply_action(self, action: DiffAction) -> None:
        """Applies an action of the diff to an existing job."""
        if isinstance(action, LineRemoved):
            self.end(action.job_id, Outcome.CANCELLED)
        elif isinstance(action, CancelRunning):
            self.jobs[action.job_id].cancelling = True
        elif isinstance(action, AttributeChanged):
            job = self.jobs[action.job_id]
            assert job.state in WAITING or action.name not in ("hold", "cancel")
            assert job.state not in ACTIVE
            default = False if action.name in ("hold", "cancel") else None
            change: dict[str, Any] = {action.name: default if action.value is None else action.value}
            job.spec = replace(job.spec, **change)
            if action.name == "cancel":
                self.end(action.job_id, Outcome.CANCELLED)
            elif action.name == "hold":
                job.state = JobState.HELD if action.value else JobState.QUEUED
                job.held_by = "line" if action.value else None

    def insert(self, spec: JobSpec) -> int:
        """Inserts a job and returns its id."""
        job_id = max(self.jobs, default=0) + 1
        job = JobOfWorld(spec, position=job_id)
        if spec.cancel:
            job.state, job.outcome = JobState.FINISHED, Outcome.CANCELLED
        elif spec.hold:
            job.state, job.held_by = JobState.HELD, "line"
        self.jobs[job_id] = job
        return job_id

    def start(self, job_id: int) -> None:
        """Marks the job as running."""
        assert job_id not in self.waiting_for_lines
        self.jobs[job_id].state = JobState.RUNNING

    def end(self, job_id: int, outcome: Outcome = Outcome.COMPLETED) -> None:
        """Marks the job as finished with this outcome."""
        self.jobs[job_id].state, self.jobs[job_id].outcome = JobState.FINISHED, outcome

    def facts(self) -> dict[int, Job]:
        """Returns the state of each job."""
        return {i: Job(i, job.state, job.outcome, job.held_by) for i, job in self.jobs.items()}

    def newest(self) -> dict[str, Job]:
        """Returns the newest job of each identity."""
        return {self.jobs[i].spec.identity: fact for i, fact in sorted(self.facts().items())}

    def states(self) -> dict[int, str]:
        """Returns the state of each job, or its outcome if finished."""
        return {i: str(job.outcome or job.state) for i, job in self.jobs.items()}

    def queue(self) -> list[str]:
        """Returns the texts of the queued jobs, in queue order."""
        queued = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        return [job.spec.text for job in sorted(queued, key=lambda job: job.position)]
