"""Restoring attempts from their folders."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, AttemptStatus, FailureContext
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.reconcile_attempt import restore, supersede
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.core.decisions import changed_attempts, end_in
from tests.reasons import words

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
    close, *rest = changed_attempts(restore(attempt, NOW, Settings()))
    assert (close.outcome, close.job.state, close.job.outcome) == (
        Outcome(outcome), JobState(state), Outcome(job_outcome) if job_outcome else None,
    )  # fmt: skip
    assert rest == [close.released(NOW), close.released(NOW).closed()]
    assert state == "finished" or "`retry 3` runs it" in words(close.reason)

    close, *rest = changed_attempts(supersede(attempt, NOW, Settings()))
    assert (close.outcome, close.job.state, close.job.outcome) == (Outcome(outcome), JobState.QUEUED, None)
    assert rest == [close.released(NOW), close.released(NOW).closed()]


@pytest.mark.parametrize(
    ("attempt", "runs"),
    [
        pytest.param(attempt_with("live", survivors=(5,)), True, id="running"),
        pytest.param(attempt_with("unlocked", survivors=(5,)), False, id="live runner without its lock"),
        pytest.param(attempt_with("dead", survivors=(5,)), False, id="dead runner with processes"),
        pytest.param(attempt_with("invalid", survivors=(5,)), False, id="unknown runner with processes"),
        pytest.param(attempt_with("unknown"), False, id="unreadable folder"),
    ],
)
def test_a_restored_attempt_with_processes_stays_open(attempt: ActiveAttempt, runs: bool) -> None:
    changed = changed_attempts(restore(attempt, NOW, Settings()))
    assert changed == ([replace(attempt, is_line_gone=True).running(NOW)] if runs else [])
    close = end_in(supersede(attempt, NOW, Settings()))
    assert (close.outcome, close.job.state) == (Outcome.INTERRUPTED, JobState.QUEUED)


def test_keeps_the_allocation_of_an_ended_attempt_while_it_has_processes() -> None:
    [close] = changed_attempts(restore(attempt_with("dead", result(), survivors=(5,)), NOW, Settings()))
    assert close.outcome is Outcome.COMPLETED
