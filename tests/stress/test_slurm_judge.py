"""Tests which faults the judge of jobs with several attempts finds."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import Attempt, Job
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from tests.stress.part import Findings
from tests.stress.slurm_judge import Record, judge, read_trace

#: Attempts as (outcome, exit code).
DONE, FAILED = (Outcome.COMPLETED, 0), (Outcome.FAILED, 3)
INTERRUPTED, NOT_STARTED = (Outcome.INTERRUPTED, None), (Outcome.NOT_STARTED, None)
CANCELLED = (Outcome.CANCELLED, None)
ONCE = "0 start 77 1\n0 end 0 1\n"

CASES = [
    ("completed", ONCE, [DONE], {}),
    ("failed", "0 start 77 1\n0 end 3 1", [FAILED], {}),
    ("began twice", "0 start 77 1\n" + ONCE, [DONE], {"run twice": 1}),
    ("began again", "0 start 7 1\n0 start 8 2\n0 end 0 2", [INTERRUPTED, DONE], {}),
    ("began again after its end", ONCE + "0 start 8 2\n0 end 0 2", [DONE, DONE], {"run twice": 1}),
    (
        "overlaps",
        "0 start 7 1\n0 overlaps 8 2\n0 start 8 2\n0 end 0 2",
        [INTERRUPTED, DONE],
        {"run twice": 1},
    ),
    ("unknown attempt", ONCE + "0 start 8 2", [DONE], {"run twice": 1}),
    (
        "ran, but not started",
        "0 start 7 1\n0 start 8 2\n0 end 0 2",
        [NOT_STARTED, DONE],
        {"wrong outcomes": 1},
    ),
    ("not completed", "0 start 7 1", [DONE], {"false successes": 1}),
    ("saved and exited 0", "0 start 7 1", [INTERRUPTED, DONE], {"false successes": 1}),
    ("another code", "0 start 7 1\n0 end 1 1", [FAILED], {"wrong codes": 1}),
    ("never failed by itself", "0 start 7 1", [(Outcome.FAILED, None)], {"wrong codes": 1}),
    ("cancelled by nobody", "", [CANCELLED], {"wrong outcomes": 1}),
    ("never ran", "", [], {"lost": 1}),
]


def record(attempts: list[tuple[Outcome, int | None]], *, may_cancel: bool = False) -> Record:
    """Returns a finished job with these attempts."""
    made = [
        Attempt(n, 1, f"t{n}", "b", AttemptState.CLOSED, number=n, outcome=outcome, exit_code=code)
        for n, (outcome, code) in enumerate(attempts, 1)
    ]
    outcome = attempts[-1][0] if attempts else Outcome.COMPLETED
    return Record(0, Job(1, JobState.FINISHED, outcome), made, may_cancel=may_cancel)


def faults(text: str, *records: Record) -> dict[str, int]:
    found = Findings()
    judge(read_trace(text), {one.number: one for one in records}, {0}, found)
    return found.faults


@pytest.mark.parametrize(
    ("text", "attempts", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_judge_finds_exactly_these_faults(
    text: str, attempts: list[tuple[Outcome, int | None]], wanted: dict[str, int]
) -> None:
    assert faults(text, record(attempts)) == wanted


def test_a_job_may_end_as_cancelled_or_interrupted_if_something_could_do_that_to_it() -> None:
    assert faults("", record([CANCELLED], may_cancel=True)) == {}
    held = Job(1, JobState.HELD, held_by="interrupted")
    attempts = record([INTERRUPTED]).attempts
    assert faults("0 start 7 1", Record(0, held, attempts)) == {}
    assert faults("0 start 7 1", Record(0, held, attempts, is_exposed=False)) == {
        "lost": 1,
        "wrong outcomes": 1,
    }


def test_a_job_that_the_store_does_not_know_is_lost() -> None:
    assert faults("") == {"lost": 1}
