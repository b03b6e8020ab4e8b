"""Restoring attempts from their folders."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, AttemptStatus, FailureContext
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.reasons import words
from tests.steps import (
    FinishAttempt,
    RecordMemoryReleased,
    ReleaseAllocation,
    Transition,
    restore,
    supersede,
)

NOW = Now(1.8e9, 1000.0, "boot")
OPEN = make_attempt(7, 3, "t" * 32, "boot", AttemptState.STARTING, survivors=())


def result(**values: object) -> AttemptResult:
    end = {"cause": None, "exit_code": 0, "signal": None, "began": True, "message": None, "survivors": ()}
    return AttemptResult(**{**end, "started_at": 1.0, "ended_at": 2.0, **values})  # type: ignore[arg-type]


def attempt_with(claim: str, end: AttemptResult | None = None, **values: object) -> ActiveAttempt:
    return replace(OPEN, status=AttemptStatus(claim, result=end), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "outcome", "state", "job_outcome"),
    [
        pytest.param(attempt_with("dead", result()), "completed", "finished", "completed", id="completed"),
        pytest.param(attempt_with("dead", result(exit_code=3)), "failed", "finished", "failed", id="failed"),
        pytest.param(
            attempt_with("dead", result(exit_code=3), failure_context=FailureContext("", fail_retries=5)),
            "failed", "finished", "failed", id="failed without retry",
        ),
        pytest.param(
            attempt_with("dead", result(began=False)), "not_started", "finished", "failed", id="not started"
        ),
        pytest.param(
            attempt_with("dead", result(cause="machine")), "interrupted", "held", None, id="machine shut down"
        ),
        pytest.param(attempt_with("dead"), "interrupted", "held", None, id="runner killed"),
        pytest.param(attempt_with("dead", boot_id="old"), "interrupted", "held", None, id="earlier boot"),
        pytest.param(attempt_with("void"), "not_started", "held", None, id="void claim"),
    ],
)  # fmt: skip
def test_finishes_a_restored_attempt_without_processes(
    attempt: ActiveAttempt, outcome: str, state: str, job_outcome: str | None
) -> None:
    close, *rest = restore(attempt, NOW, Settings())
    assert isinstance(close, FinishAttempt)
    assert (close.outcome, close.state, close.job_outcome) == (
        Outcome(outcome), JobState(state), Outcome(job_outcome) if job_outcome else None,
    )  # fmt: skip
    assert rest == [ReleaseAllocation(7), RecordMemoryReleased(7)]
    assert state == "finished" or "`retry 3` runs it" in words(close.reason)

    close, *rest = supersede(attempt, NOW, Settings())
    assert isinstance(close, FinishAttempt)
    assert (close.outcome, close.state, close.job_outcome) == (Outcome(outcome), JobState.QUEUED, None)
    assert rest == [ReleaseAllocation(7), RecordMemoryReleased(7)]


@pytest.mark.parametrize(
    ("attempt", "actions"),
    [
        pytest.param(
            attempt_with("live", survivors=(5,)), [Transition(3, 7, JobState.RUNNING)], id="running"
        ),
        pytest.param(attempt_with("unlocked", survivors=(5,)), [], id="live runner without its lock"),
        pytest.param(attempt_with("dead", survivors=(5,)), [], id="dead runner with processes"),
        pytest.param(attempt_with("invalid", survivors=(5,)), [], id="unknown runner with processes"),
        pytest.param(attempt_with("unknown"), [], id="unreadable folder"),
    ],
)
def test_a_restored_attempt_with_processes_stays_open(attempt: ActiveAttempt, actions: list[object]) -> None:
    assert restore(attempt, NOW, Settings()) == actions
    [close, *_] = supersede(attempt, NOW, Settings())
    assert isinstance(close, FinishAttempt)
    assert (close.outcome, close.state) == (Outcome.INTERRUPTED, JobState.QUEUED)


def test_keeps_the_allocation_of_an_ended_attempt_while_it_has_processes() -> None:
    [close] = restore(attempt_with("dead", result(), survivors=(5,)), NOW, Settings())
    assert isinstance(close, FinishAttempt)
    assert close.outcome is Outcome.COMPLETED
