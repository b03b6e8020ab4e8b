"""The judge: what the jobs themselves wrote, against what the scheduler says. Never the record alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.part import Found

#: Run as `sh trace.sh TRACE N SECONDS CODE`: one line when it starts, one when it ends.
JOB = """\
echo "$2 start $$ ${GPU_SCHEDULER_ATTEMPT:-0}" >> "$1"
sleep "$3"
echo "$2 end $4" >> "$1"
exit "$4"
"""
#: Run as `sh gated.sh TRACE N GATE CODE`: runs until the file GATE is there or its own is gone; it writes
#: that SIGTERM came.
GATED_JOB = """\
trap 'echo "$2 signal 15" >> "$1"; exit 143' TERM
echo "$2 start $$ ${GPU_SCHEDULER_ATTEMPT:-0}" >> "$1"
while [ ! -e "$3" ] && [ -e "$0" ]; do sleep 0.05; done
echo "$2 end $4" >> "$1"
exit "$4"
"""


@dataclass
class Verdict:
    """What went wrong, by job number."""

    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    false_success: list[int] = field(default_factory=list)
    signalled: list[int] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.lost or self.twice or self.wrong or self.false_success or self.signalled)

    def tell(self, found: Found) -> None:
        """Count it all among the faults of a part."""
        for kind, numbers in (
            ("lost", self.lost), ("twice", self.twice), ("false successes", self.false_success),
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


def judge(trace: Path, codes: dict[int, int], recorded: dict[int, int | str | None], killed: bool) -> Verdict:
    """Compare what ran with what is said of it.

    codes: number -> the code each job exits with; recorded: number -> its exit code on the record, or a word
    where there is none ("interrupted"). killed: runners were killed too, so that "interrupted" may be right.
    """
    starts: Counter[int] = Counter()
    ends: dict[int, int] = {}
    verdict = Verdict()
    for line in trace.read_text().splitlines() if trace.exists() else []:
        name, what, value = line.split()[:3]
        if what == "start":
            starts[int(name)] += 1
        elif what == "signal":
            verdict.signalled.append(int(name))
        elif what == "end":
            ends[int(name)] = int(value)
    for number, code in codes.items():
        said = recorded.get(number)
        interrupted = killed and said == "interrupted"
        if starts[number] == 0 and not interrupted:
            verdict.lost.append(number)
        elif starts[number] > 1:
            verdict.twice.append(number)
        elif said == 0 and ends.get(number) != 0:
            verdict.false_success.append(number)
        elif said != code and not interrupted:
            verdict.wrong.append(f"job {number}: exits {code}, recorded {said}")
    return verdict


#: Where the number of a job stands in what it runs, whether as a command or as the arguments of a CSV line.
_NUMBER = re.compile(r"/trace (\d+) ")


def number_of(text: str) -> int:
    """The number that the torture gave to the job of this line."""
    match = _NUMBER.search(text)
    assert match is not None, f"no job of the torture: {text!r}"
    return int(match[1])


def said_of(status: dict[str, Any]) -> dict[int, int | str | None]:
    """`status --json`, read as `judge` wants it."""
    said: dict[int, int | str | None] = {}
    for job in status["jobs"]:
        ended = job["outcome"] in ("completed", "failed") and job["exit_code"] is not None
        word = "interrupted" if job["state"] == "held" else job["outcome"] or job["state"]
        said[number_of(job["command"])] = job["exit_code"] if ended else word
    return said
