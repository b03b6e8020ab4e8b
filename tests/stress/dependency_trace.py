"""Reads what jobs have written about their starts and ends, for the stress test of dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

#: Run as `sh job.sh TRACE N SECONDS FOLDER`. The exit code is in the file N of the folder when the job ends.
JOB = """\
attempt=$GPU_SCHEDULER_JOB.$GPU_SCHEDULER_ATTEMPT
echo "$2 start $$ $attempt" >> "$1"
sleep "$3"
code=$(cat "$4/$2")
echo "$2 end $code $attempt" >> "$1"
exit "$code"
"""


@dataclass(frozen=True)
class AttemptTrace:
    """The indices of the two lines of an attempt in the trace.

    number: the number of the job; pid: its command; code: its exit code, if it came to its end.
    """

    number: int
    pid: int
    start: int
    end: int | None = None
    code: int | None = None


@dataclass
class JobsTrace:
    """The trace of all jobs. runs: the attempts, by job id and number; twice: those that started twice."""

    runs: dict[tuple[int, int], AttemptTrace] = field(default_factory=dict)
    twice: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> JobsTrace:
        """Reads the trace. A line without its newline is not complete."""
        text = path.read_text() if path.exists() else ""
        return cls.parse(text[: text.rfind("\n") + 1].splitlines())

    @classmethod
    def parse(cls, lines: Iterable[str]) -> JobsTrace:
        """Parses the lines that the jobs have written."""
        trace = cls()
        for index, line in enumerate(lines):
            number, what, value, attempt = line.split()
            job_id, _, nth = attempt.partition(".")
            key = (int(job_id), int(nth))
            before = trace.runs.get(key)
            if what == "end":
                assert before is not None, f"an end without a start: {line}"
                trace.runs[key] = replace(before, end=index, code=int(value))
            elif before is not None:
                trace.twice.append(key)
            else:
                trace.runs[key] = AttemptTrace(int(number), int(value), index)
        return trace
