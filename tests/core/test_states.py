"""The table of allowed changes."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.states import ACTIVE, CHANGES, WAITING, IllegalTransitionError, JobState, check_change


def test_every_state_has_a_row_and_a_way_out() -> None:
    assert set(CHANGES) == set(JobState)
    assert all(CHANGES[state] for state in JobState)


def test_active_and_waiting_partition_the_unfinished_states() -> None:
    assert ACTIVE | WAITING | {JobState.FINISHED} == set(JobState)
    assert not ACTIVE & WAITING


@pytest.mark.parametrize("old", list(JobState))
@pytest.mark.parametrize("new", list(JobState))
def test_a_change_that_the_table_lacks_raises_with_the_story(old: JobState, new: JobState) -> None:
    if new is old or new in CHANGES[old]:
        check_change(7, old, new)
        return
    with pytest.raises(IllegalTransitionError, match=r"job 7.*queued; running"):
        check_change(7, old, new, ("queued", "running"))


def test_a_job_cannot_run_twice_at_once() -> None:
    for state in ACTIVE:
        assert JobState.STARTING not in CHANGES[state]
