"""Compares the traces that the jobs themselves wrote with what the scheduler reports."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.stress.part import Findings

#: Run as `sh trace.sh TRACE N SECONDS CODE`. Writes a line when it starts and another when it ends.
JOB = """\
echo "$2 start $$ ${GPU_SCHEDULER_ATTEMPT:-0}" >> "$1"
sleep "$3"
echo "$2 end $4" >> "$1"
exit "$4"
"""
#: Run as `sh gated.sh TRACE N GATE CODE`. Runs until the file GATE exists or the script itself is removed.
#: Writes a line when it gets SIGTERM.
GATED_JOB = """\
trap 'echo "$2 signal 15" >> "$1"; exit 143' TERM
echo "$2 start $$ ${GPU_SCHEDULER_ATTEMPT:-0}" >> "$1"
while [ ! -e "$3" ] && [ -e "$0" ]; do sleep 0.05; done
echo "$2 end $4" >> "$1"
exit "$4"
"""


@dataclass
class TraceVerdict:
    """The faults that a comparison found, as job numbers by kind. wrong: descriptions of wrong exit codes."""

    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    false_success: list[int] = field(default_factory=list)
    signalled: list[int] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether there are no faults."""
        return not (self.lost or self.twice or self.wrong or self.false_success or self.signalled)

    def report_to(self, found: Findings) -> None:
        """Adds all these faults to the findings of a part."""
        for kind, numbers in (
            ("lost", self.lost), ("run twice", self.twice), ("false successes", self.false_success),
            ("signalled", self.signalled),
        ):  # fmt: skip
            for number in numbers:
                found.fault(kind, f"job {number}")
        for text in self.wrong:
            found.fault("wrong codes", text)

    def __str__(self) -> str:
        return (
            f"{len(self.lost)} lost, {len(self.twice)} twice, {len(self.wrong)} wrong codes, "
            f"{len(self.false_success)} false successes"
        )


def judge(
    trace: Path, codes: dict[int, int], recorded: dict[int, int | str | None], killed: bool
) -> TraceVerdict:
    """Compares the trace with the recorded results.

    codes: the exit code of each job, by number; recorded: the exit code in the store or, if there is none, a
    word such as "interrupted", by number; killed: runners were killed too, so "interrupted" may be right.
    """
    starts: Counter[int] = Counter()
    ends: dict[int, int] = {}
    verdict = TraceVerdict()
    for line in trace.read_text().splitlines() if trace.exists() else []:
        name, what, value = line.split()[:3]
        if what == "start":
            starts[int(name)] += 1
        elif what == "signal":
            verdict.signalled.append(int(name))
        elif what == "end":
            ends[int(name)] = int(value)
    for number, code in codes.items():
        outcome = recorded.get(number)
        interrupted = killed and outcome == "interrupted"
        if starts[number] == 0 and not interrupted:
            verdict.lost.append(number)
        elif starts[number] > 1:
            verdict.twice.append(number)
        elif outcome == 0 and ends.get(number) != 0:
            verdict.false_success.append(number)
        elif outcome != code and not interrupted:
            verdict.wrong.append(f"job {number}: exits {code}, recorded {outcome}")
    return verdict


#: Pattern that finds the number of a job in its command, or in the arguments of its CSV line.
_NUMBER = re.compile(r"/trace (\d+) ")


def number_of(text: str) -> int:
    """Returns the number of the job whose command or line this is."""
    match = _NUMBER.search(text)
    assert match is not None, f"not a job of the stress tests: {text!r}"
    return int(match[1])


def outcomes_of(status: dict[str, Any]) -> dict[int, int | str | None]:
    """Returns the outcomes in the output of `status --json`, in the form that `judge` expects."""
    return {number_of(job["command"]): outcome_of(job) for job in status["jobs"]}


def outcome_of(job: dict[str, Any]) -> int | str | None:
    """Returns the exit code of a job in this output; a word if it has not ended by itself."""
    ended = job["outcome"] in ("completed", "failed") and job["exit_code"] is not None
    word: str | None = "interrupted" if job["state"] == "held" else job["outcome"] or job["state"]
    return job["exit_code"] if ended else word
