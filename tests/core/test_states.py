"""Tests the tables of allowed state transitions."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.states import (
    ACTIVE,
    ATTEMPT_TRANSITIONS,
    OPEN,
    TRANSITIONS,
    WAITING,
    AttemptState,
    IllegalTransitionError,
    JobState,
    check_transition,
)


def test_every_job_state_has_transitions() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert all(TRANSITIONS[state] for state in JobState)


def test_unfinished_states_are_either_active_or_waiting() -> None:
    assert ACTIVE | WAITING | {JobState.FINISHED} == set(JobState)
    assert not ACTIVE & WAITING


@pytest.mark.parametrize("old", list(JobState))
@pytest.mark.parametrize("new", list(JobState))
def test_an_illegal_transition_raises_an_error(old: JobState, new: JobState) -> None:
    if new is old or new in TRANSITIONS[old]:
        check_transition(7, "job 7", old, new)
        return
    with pytest.raises(IllegalTransitionError, match=f"job 7: the change from {old} to {new}"):
        check_transition(7, "job 7", old, new)


def test_a_running_job_cannot_start_again() -> None:
    for state in ACTIVE:
        assert JobState.STARTING not in TRANSITIONS[state]


def test_every_attempt_must_be_ended_then_released_then_closed() -> None:
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)
    for state in OPEN:
        assert AttemptState.ENDED in ATTEMPT_TRANSITIONS[state]
    assert ATTEMPT_TRANSITIONS[AttemptState.ENDED] == {AttemptState.RELEASED}
    assert ATTEMPT_TRANSITIONS[AttemptState.RELEASED] == {AttemptState.CLOSED}
    assert not ATTEMPT_TRANSITIONS[AttemptState.CLOSED]


def test_an_ended_attempt_never_starts_or_opens_again() -> None:
    for state in AttemptState:
        assert AttemptState.STARTING not in ATTEMPT_TRANSITIONS[state]
        assert state.is_open or not ATTEMPT_TRANSITIONS[state] & OPEN


def test_an_attempt_holds_its_gpus_until_they_are_released() -> None:
    assert {state for state in AttemptState if not state.holds_gpus} == {
        AttemptState.RELEASED,
        AttemptState.CLOSED,
    }


@pytest.mark.parametrize("old", list(AttemptState))
@pytest.mark.parametrize("new", list(AttemptState))
def test_an_illegal_transition_of_an_attempt_raises_an_error(old: AttemptState, new: AttemptState) -> None:
    if new is old or new in ATTEMPT_TRANSITIONS[old]:
        check_transition(7, "attempt 1 of job 7", old, new)
        return
    with pytest.raises(IllegalTransitionError, match=f"attempt 1 of job 7: the change from {old} to {new}"):
        check_transition(7, "attempt 1 of job 7", old, new)
