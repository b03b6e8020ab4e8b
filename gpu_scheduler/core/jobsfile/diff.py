"""Compares two readings of a jobs file and returns the difference as actions on jobs.

The caller supplies the lines that count, which `debounce` determines, and the states of the jobs. The actions
are only returned here; the caller performs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.jobsfile.attributes import FLAGS, format_attribute
from gpu_scheduler.core.jobsfile.line_matching import LinePairs
from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.jobsfile.resubmission import Resubmission, decide_resubmission
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import ACTIVE, JobState


@dataclass(frozen=True)
class NewJob:
    """Inserts a job for line `index` of the reading. duplicate_of: the newest job with the same text."""

    index: int
    number: int
    duplicate_of: str | None = None

    def log_message(self, job_id: int) -> str:
        """Returns the message to log once the job has its id."""
        if self.duplicate_of is None:
            return f"line {self.number}: job {job_id}"
        return f"line {self.number}: job {job_id}, with the same text as {self.duplicate_of}"


@dataclass(frozen=True)
class BindLine:
    """Assigns line `index` to an existing job."""

    index: int
    job_id: int


@dataclass(frozen=True)
class RequeueFinished:
    """Queues the finished job of line `index` again, with the line's attributes (`hold` holds the job)."""

    index: int
    job: JobFact


@dataclass(frozen=True)
class LineRemoved:
    """Cancels a waiting job whose line was removed."""

    job_id: int


@dataclass(frozen=True)
class AttributeChanged:
    """Changes an attribute of a waiting or finished job. value: None if the line does not set it."""

    job_id: int
    name: str
    value: Any


@dataclass(frozen=True)
class CancelRunning:
    """Cancels a job with an open attempt, because `cancel` was added to its line."""

    job_id: int


DiffAction = NewJob | BindLine | RequeueFinished | LineRemoved | AttributeChanged | CancelRunning


@dataclass(frozen=True)
class AcceptedLines:
    """The lines that count now, each with its index in the last reading.

    unchanged: the last reading if lines were only appended to it; `lines` then contains only the
    appended lines.
    """

    lines: tuple[Line, ...]
    pairs: LinePairs
    unchanged: Reading = ()

    def new_identities(self) -> frozenset[str]:
        """Returns the identities of the new lines, for which `ReadingDiff` needs the newest jobs."""
        new = (line for line, old in zip(self.lines, self.pairs, strict=True) if old is None)
        return frozenset(line.identity for line in new if line.identity is not None)

    def with_possible_duplicates(self, newest: Mapping[str, JobFact]) -> AcceptedLines:
        """Returns all lines if an appended CSV line may be equal to an unchanged one, otherwise `self`."""
        if not any(line.kind == "csv" and line.identity in newest for line in self.lines):
            return self
        return AcceptedLines(self.unchanged + self.lines, (*range(len(self.unchanged)), *self.pairs))


def job_order(reading: Iterable[Line]) -> tuple[int, ...]:
    """Returns the jobs of a reading in the order of their lines."""
    return tuple(line.job_id for line in reading if line.job_id is not None)


def redistribute_positions(order: Sequence[int], positions: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Reassigns the queue positions of a file's queued jobs, so that they follow the order of the lines.

    positions: the queue positions of the file's queued jobs only. Returns (job, new position) for each job
    that moves.
    """
    queued = [job for job in order if job in positions]
    free = sorted(positions[job] for job in queued)
    return tuple((job, place) for job, place in zip(queued, free, strict=True) if positions[job] != place)


class ReadingDiff:
    """The difference between the previous reading and the accepted lines.

    actions, messages: in the order of the lines; lines: the accepted lines, which follow the `unchanged`
    ones; jobs: the jobs of the previous reading; newest: for each of `accepted.new_identities()`, its newest
    job, if any, from any file or front end.
    """

    def __init__(
        self,
        previous: Reading,
        accepted: AcceptedLines,
        jobs: Mapping[int, JobFact],
        newest: Mapping[str, JobFact],
    ) -> None:
        accepted = accepted.with_possible_duplicates(newest)
        self.lines, self.unchanged = accepted.lines, accepted.unchanged
        self.actions: list[DiffAction] = []
        self.messages: list[str] = []
        self._previous = () if accepted.unchanged else previous
        self._pairs, self._jobs, self._newest = accepted.pairs, jobs, newest
        self._job_ids: list[int | None] = [None] * len(accepted.lines)
        self._previous_lines: dict[str, Line] = {}
        self._previous_jobs: dict[str, int] = {}
        for line in self._previous:
            if line.kind == "csv" and line.identity is not None:
                self._previous_lines.setdefault(line.identity, line)
                if line.job_id is not None:
                    self._previous_jobs.setdefault(line.identity, line.job_id)
        self._diff_removed()
        self._diff_lines()

    def to_reading(self, new_jobs: Mapping[int, int]) -> Reading:
        """Returns the reading to keep. new_jobs: the ids of the new jobs, by the index of each NewJob."""
        kept = enumerate(zip(self.lines, self._job_ids, strict=True))
        return (*self.unchanged, *(line.with_job(new_jobs.get(i, job)) for i, (line, job) in kept))

    def _diff_lines(self) -> None:
        lines, pairs = self.lines, self._pairs
        newly = {
            line.identity: line for line, old in zip(lines, pairs, strict=True) if old is None
        }  # the last of several equal lines
        first: dict[str, int] = {}
        for index, (line, old) in enumerate(zip(lines, pairs, strict=True)):
            if line.identity is None:
                continue
            if old is None and line.identity not in first:
                self.messages += [f"line {line.number}: {note}" for note in line.notes]
            if line.kind == "command":
                self._diff_command(index, line, None if old is None else self._previous[old])
            elif line.identity not in first:
                first[line.identity] = index
                self._diff_csv(index, line, newly.get(line.identity), old is None)
            elif old is None:
                number = lines[first[line.identity]].number
                self.messages.append(
                    f"line {line.number}: duplicate of line {number}; both lines belong to one job"
                )

    def _diff_removed(self) -> None:
        kept = {old for old in self._pairs if old is not None}
        still = {line.identity for line in self.lines if line.kind == "csv"}
        for index, line in enumerate(self._previous):
            if index in kept or line.job_id is None or line.identity in still:
                continue
            job = self._jobs.get(line.job_id)
            if job is not None and job.is_waiting:
                self.actions.append(LineRemoved(line.job_id))
            elif job is not None and job.state in ACTIVE:
                self.messages.append(
                    f"the line of job {line.job_id} was removed; the job is {job.state} and continues"
                )

    def _diff_command(self, index: int, line: Line, old: Line | None) -> None:
        if old is not None and old.job_id is not None:
            self._job_ids[index] = old.job_id
            if old.attributes != line.attributes:
                self._diff_attributes(line, self._jobs.get(old.job_id), old.attributes)
            return
        same = self._newest.get(line.identity or "")
        self.actions.append(NewJob(index, line.number, _job_label(same) if same is not None else None))

    def _diff_csv(self, index: int, line: Line, new: Line | None, is_new: bool) -> None:
        """Handles the first line with a given identity. new: the last new line with that identity, if any."""
        assert line.identity is not None
        before = self._previous_lines.get(line.identity)
        job_id = self._previous_jobs.get(line.identity)
        if job_id is not None and new is None:
            self._job_ids[index] = job_id
            old = before.attributes if before is not None else line.attributes
            if old != line.attributes:
                self._diff_attributes(line, self._jobs.get(job_id), old)
            return
        job = self._newest.get(line.identity) or (self._jobs.get(job_id) if job_id is not None else None)
        effect = decide_resubmission("csv", job, bool(line.attributes.get("cancel")))
        if job is None:
            self.actions.append(NewJob(index, line.number))
            return
        new = new or line
        self._job_ids[index] = job.job_id
        if effect is Resubmission.REQUEUED:
            self.actions.append(RequeueFinished(index, job))
            of = "" if new.attributes == line.attributes else f", with the attributes of line {line.number}"
            self.messages.append(f"line {new.number}: {_job_label(job)} is queued again{of}")
            return
        self.actions.append(BindLine(index, job.job_id))
        if job.state is JobState.FINISHED:
            self.messages.append(
                f"line {new.number}: {_state_of(job)} as job {job.job_id}; `retry {job.job_id}` runs it again"
            )
        elif is_new:
            self.messages.append(f"line {line.number}: already submitted as {_job_label(job)}")
        applied = before.attributes if before is not None else {**line.attributes, "cancel": None}
        self._diff_attributes(line, job, applied)

    def _diff_attributes(self, line: Line, job: JobFact | None, old: Mapping[str, Any]) -> None:
        """Applies changed attributes one by one.

        They apply to a waiting job, and to a finished one for its next run (except `hold` and `cancel`, which
        concern waiting jobs). For a job with an open attempt, only `cancel` applies.
        """
        new = line.attributes
        if job is None or old == new:
            return
        names = sorted({*old, *new})
        if bool(new.get("cancel")) and not old.get("cancel"):
            if job.state in ACTIVE:
                self.actions.append(CancelRunning(job.job_id))
            elif job.is_waiting:
                names = ["cancel"]
        if job.state in ACTIVE:
            return
        if not job.is_waiting:
            names = [name for name in names if name not in FLAGS]
        changed = [(name, new.get(name)) for name in names if old.get(name) != new.get(name)]
        self.actions += [AttributeChanged(job.job_id, *change) for change in changed]
        if changed and not job.is_waiting:
            changes = ", ".join(format_attribute(name, value) for name, value in changed)
            these = "this change" if len(changed) == 1 else "these changes"
            self.messages.append(
                f"line {line.number}: {changes} for job {job.job_id}, which is finished; `retry {job.job_id}`"
                f" runs it with {these}"
            )


def _job_label(job: JobFact) -> str:
    return f"job {job.job_id} ({_state_of(job)})"


def _state_of(job: JobFact) -> str:
    """Returns the outcome of a finished job, such as "timed out", or the state of any other job."""
    return str(job.outcome if job.state is JobState.FINISHED else job.state).replace("_", " ")
