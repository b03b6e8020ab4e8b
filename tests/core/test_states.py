"""The table of allowed transitions."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.states import (
    ACTIVE,
    TRANSITIONS,
    WAITING,
    IllegalTransitionError,
    JobState,
    check_transition,
)


def test_every_state_has_transitions() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert all(TRANSITIONS[state] for state in JobState)


def test_unfinished_states_are_either_active_or_waiting() -> None:
    assert ACTIVE | WAITING | {JobState.FINISHED} == set(JobState)
    assert not ACTIVE & WAITING


@pytest.mark.parametrize("old", list(JobState))
@pytest.mark.parametrize("new", list(JobState))
def test_an_illegal_transition_raises_with_the_history(old: JobState, new: JobState) -> None:
    if new is old or new in TRANSITIONS[old]:
        check_transition(7, old, new)
        return
    with pytest.raises(IllegalTransitionError, match=r"job 7.*queued; running"):
        check_transition(7, old, new, ("queued", "running"))


def test_a_running_job_cannot_start_again() -> None:
    for state in ACTIVE:
        assert JobState.STARTING not in TRANSITIONS[state]
