"""Finds the lines of a jobs file that a change to other lines concerns, through names and references."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpu_scheduler.core.jobsfile.reading import Line, Reading
from gpu_scheduler.core.jobsfile.references import name_keys, references_of
from gpu_scheduler.core.model import job_name
from gpu_scheduler.core.model.dependency import DependencyKind


@dataclass
class ReferenceIndex:
    """The lines of a reading that matter to dependencies.

    named: the jobs of the lines by name, and by group; csv_jobs: the job of each CSV line by its identity,
    because only the first of several equal lines has the job itself; waiting: the jobs whose lines refer to
    each name or id; lines: the lines with references, by job; repeats: whether a line has the job of an
    earlier one.
    """

    named: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    csv_jobs: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[int, Line] = field(default_factory=dict)
    repeats: bool = False

    def add(self, lines: Iterable[Line]) -> None:
        """Adds lines. A line that repeats another one must follow it."""
        for line in lines:
            job_id = self.job_of(line)
            if job_id is None:
                continue
            self.repeats |= line.job_id is None
            for key in name_keys(line):
                if not key.isdigit():  # a number is always an id
                    self.named[key].append(job_id)
            references = references_of(line)
            if references and line.job_id is not None:
                self.lines[job_id] = line
                for reference in dict.fromkeys(references):
                    self.waiting[reference].append(job_id)

    def remove(self, lines: Iterable[Line]) -> None:
        """Removes lines of an index without repeats, but not the dependencies of their jobs."""
        jobs = {line.job_id for line in lines if line.job_id is not None}
        names = {key for line in lines for key in name_keys(line)}
        references = {reference for line in lines for reference in references_of(line)}
        for entries, keys in ((self.named, names), (self.waiting, references)):
            for key in keys & entries.keys():
                entries[key] = [job_id for job_id in entries[key] if job_id not in jobs]
                if not entries[key]:
                    del entries[key]
        for job_id in jobs & self.lines.keys():
            del self.lines[job_id]
        for line in lines:
            if line.identity is not None:
                self.csv_jobs.pop(line.identity, None)

    def renumber(self, lines: Iterable[Line]) -> None:
        """Replaces lines by equal lines with other numbers."""
        for line in lines:
            if line.job_id is not None and line.job_id in self.lines:
                self.lines[line.job_id] = line

    def job_of(self, line: Line) -> int | None:
        """Returns the job of a line, given the earlier lines; None if it has none."""
        if line.kind != "csv" or line.identity is None:
            return line.job_id
        if line.job_id is not None:
            self.csv_jobs[line.identity] = line.job_id
        return self.csv_jobs.get(line.identity)

    def meant_by(self, reference: str) -> list[int]:
        """Returns the jobs of the lines that a reference means."""
        return [
            job_id for key in job_name.meant_by(reference, self.named.keys()) for job_id in self.named[key]
        ]

    def waiting_for(self, key: str) -> list[int]:
        """Returns the jobs whose lines may refer to a key of a table of names."""
        patterns = [one for one in self.waiting if job_name.is_pattern(one)]
        return [job for one in job_name.references_to(key, patterns) for job in self.waiting.get(one, ())]

    def references(self, job_id: int) -> Iterator[tuple[DependencyKind, str]]:
        """Yields the references of a job's line."""
        line = self.lines.get(job_id)
        if line is not None:
            yield from ((DependencyKind.COMPLETED, one) for one in line.attributes.get("after", ()))
            yield from ((DependencyKind.FINISHED, one) for one in line.attributes.get("after_any", ()))


def common_ends(one: Reading, other: Reading) -> tuple[int, int]:
    """Returns the lengths of the head and of the tail that two readings have in common."""
    most = min(len(one), len(other))
    head = 0
    while head < most and _is_same(one[head], other[head]):
        head += 1
    tail = 0
    while tail < most - head and _is_same(one[-1 - tail], other[-1 - tail]):
        tail += 1
    return head, tail


def _is_same(one: Line, other: Line) -> bool:
    """Returns whether two lines have the same job, name and references."""
    return one is other or (
        one.job_id == other.job_id and one.identity == other.identity and one.attributes == other.attributes
    )
