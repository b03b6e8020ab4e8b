"""A closed Screen window is recorded once and has no other effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.actions import RecordWindowClosed
from gpu_scheduler.core.facts import Attempt, Facts, Settings
from gpu_scheduler.core.needs import LlmConfig
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.planning import plan
from gpu_scheduler.core.sighting import AttemptStatus
from gpu_scheduler.core.states import JobState, Outcome

CLOSED = Attempt(
    1, 7, "t", "boot", JobState.RUNNING, ("U0",), 1000,
    status=AttemptStatus("live", 5, "5.gpujob_0_x_7", window_open=False), measured_at=1.0,
)  # fmt: skip
OPEN, UNKNOWN = (replace(CLOSED, sighting=replace(CLOSED.status, window=window)) for window in (True, None))


@pytest.mark.parametrize(
    ("attempt", "noted"),
    [
        (CLOSED, [RecordWindowClosed(7, 1)]),
        (replace(CLOSED, window_closed=True), []),
        (OPEN, []),
        (UNKNOWN, []),
        (replace(CLOSED, outcome=Outcome.COMPLETED, released_at=1.0, job_state=JobState.FINISHED), []),
    ],
)
def test_a_closed_window_is_recorded_once(attempt: Attempt, noted: list[RecordWindowClosed]) -> None:
    facts = Facts(Now(0.0, 10.0, "boot"), Settings(), LlmConfig(), attempts=(attempt,))
    assert [action for action in plan(facts) if isinstance(action, RecordWindowClosed)] == noted
