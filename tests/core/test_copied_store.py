"""A copied store leaves the attempts alone that were open in the original store."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from gpu_scheduler.core.model.attempt_status import AttemptResult, AttemptStatus, ClaimState, StopRequest
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.states import OPEN as OPEN_STATES
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Attempt
from gpu_scheduler.core.scheduling.reconcile_attempt import detach
from gpu_scheduler.core.scheduling.settings import Settings
from tests.reasons import words

NOW = Now(1_700_000_000.0, 1000.0, "boot")
OPEN = Attempt(1, 7, "t" * 32, "boot", AttemptState.RUNNING, ("U0",), 500, launch_deadline=1010.0)
RESULT = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)


def detached(attempt: Attempt) -> list[act.Action]:
    return detach(attempt, NOW, Settings(), "/old/X.d")


@pytest.mark.parametrize("claim", list(get_args(ClaimState)))
@pytest.mark.parametrize("state", sorted(OPEN_STATES))
@pytest.mark.parametrize("cancel", [None, StopRequest("cancelled", 3.0)])
def test_in_a_copied_store_the_job_of_an_open_attempt_is_held(
    claim: str, state: AttemptState, cancel: StopRequest | None
) -> None:
    status = AttemptStatus(claim=claim, stop=StopRequest("cancelled", 1.0))  # type: ignore[arg-type]
    close, *rest = detached(replace(OPEN, state=state, stop_request=cancel, status=status, survivors=(77,)))
    assert isinstance(close, act.FinishAttempt)
    assert (close.outcome, close.state, close.survivors) == (Outcome.INTERRUPTED, JobState.HELD, ())
    assert (
        words(close.reason) == "it belongs to /old/X.d, of which this store is a copy; `retry 7` runs it here"
    )
    assert rest == [act.ReleaseAllocation(1), act.RecordMemoryReleased(1)]


def test_in_a_copied_store_an_attempt_with_a_result_keeps_its_outcome() -> None:
    close, *rest = detached(replace(OPEN, status=AttemptStatus(claim="dead", result=RESULT)))
    assert isinstance(close, act.FinishAttempt)
    assert (close.outcome, close.state) == (Outcome.COMPLETED, JobState.FINISHED)
    assert rest == [act.ReleaseAllocation(1), act.RecordMemoryReleased(1)]


def test_in_a_copied_store_an_ended_attempt_is_released_without_a_process_scan() -> None:
    ended = replace(OPEN, state=AttemptState.ENDED, survivors=(77,))
    assert detached(ended) == [act.ReleaseAllocation(1), act.RecordMemoryReleased(1)]
    assert detached(replace(ended, state=AttemptState.RELEASED, released_at=900.0)) == [
        act.RecordMemoryReleased(1)
    ]
