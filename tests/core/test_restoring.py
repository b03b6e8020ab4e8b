"""Attempts restored from their folders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.actions import Close, Cooled, Move, Release
from gpu_scheduler.core.facts import Attempt, Settings
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.restoring import supersede, take_in
from gpu_scheduler.core.sighting import Evidence, ResultNote, Sighting
from gpu_scheduler.core.states import JobState, Outcome

NOW = Now(1.8e9, 1000.0, "boot")
OPEN = Attempt(7, 3, "t" * 32, "boot", JobState.STARTING, survivors=())


def result(**values: object) -> ResultNote:
    end = {"cause": None, "exit_code": 0, "signal": None, "began": True, "message": None, "survivors": ()}
    return ResultNote(**{**end, "started_at": 1.0, "ended_at": 2.0, **values})  # type: ignore[arg-type]


def seen(claim: str, end: ResultNote | None = None, **values: object) -> Attempt:
    return replace(OPEN, sighting=Sighting(claim, result=end), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "outcome", "state", "job_outcome"),
    [
        pytest.param(seen("dead", result()), "completed", "finished", "completed", id="completed"),
        pytest.param(seen("dead", result(exit_code=3)), "failed", "finished", "failed", id="failed"),
        pytest.param(
            seen("dead", result(exit_code=3), evidence=Evidence("", fail_retries=5)),
            "failed", "finished", "failed", id="failed without retry",
        ),
        pytest.param(
            seen("dead", result(began=False)), "not_started", "finished", "failed", id="not started"
        ),
        pytest.param(
            seen("dead", result(cause="machine")), "interrupted", "held", None, id="machine shut down"
        ),
        pytest.param(seen("dead"), "interrupted", "held", None, id="runner killed"),
        pytest.param(seen("dead", boot_id="old"), "interrupted", "held", None, id="earlier boot"),
        pytest.param(seen("void"), "not_started", "held", None, id="void claim"),
    ],
)  # fmt: skip
def test_an_attempt_without_processes_is_finished(
    attempt: Attempt, outcome: str, state: str, job_outcome: str | None
) -> None:
    close, *rest = take_in(attempt, NOW, Settings())
    assert isinstance(close, Close)
    assert (close.outcome, close.state, close.job_outcome) == (
        Outcome(outcome), JobState(state), Outcome(job_outcome) if job_outcome else None,
    )  # fmt: skip
    assert rest == [Release(7), Cooled(7)]
    assert state == "finished" or "`retry 3` runs it" in (close.reason or "")

    close, *rest = supersede(attempt, NOW, Settings())
    assert isinstance(close, Close)
    assert (close.outcome, close.state, close.job_outcome) == (Outcome(outcome), JobState.QUEUED, None)
    assert rest == [Release(7), Cooled(7)]


@pytest.mark.parametrize(
    ("attempt", "actions"),
    [
        pytest.param(seen("live", survivors=(5,)), [Move(3, 7, JobState.RUNNING)], id="running"),
        pytest.param(seen("unlocked", survivors=(5,)), [], id="live runner without its lock"),
        pytest.param(seen("dead", survivors=(5,)), [], id="dead runner with processes"),
        pytest.param(seen("invalid", survivors=(5,)), [], id="unknown runner with processes"),
        pytest.param(seen("unknown"), [], id="unreadable folder"),
    ],
)
def test_an_attempt_with_processes_stays_open(attempt: Attempt, actions: list[object]) -> None:
    assert take_in(attempt, NOW, Settings()) == actions
    [close, *_] = supersede(attempt, NOW, Settings())
    assert isinstance(close, Close)
    assert (close.outcome, close.state) == (Outcome.INTERRUPTED, JobState.QUEUED)


def test_keeps_the_allocation_of_an_ended_attempt_while_it_has_processes() -> None:
    [close] = take_in(seen("dead", result(), survivors=(5,)), NOW, Settings())
    assert isinstance(close, Close)
    assert close.outcome is Outcome.COMPLETED
