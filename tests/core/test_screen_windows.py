"""The scheduler records only once that a job's Screen window was closed, and does nothing else about it."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.steps import RecordWindowClosed, plan

CLOSED = make_attempt(
    1, 7, "t", "boot", AttemptState.RUNNING, ("U0",), 1000,
    status=AttemptStatus("live", 5, "5.gpujob_0_x_7", window_open=False), measured_boot=1.0,
)  # fmt: skip
OPEN, UNKNOWN = (
    replace(CLOSED, status=replace(CLOSED.status, window_open=window)) for window in (True, None)
)


@pytest.mark.parametrize(
    ("attempt", "noted"),
    [
        (CLOSED, [RecordWindowClosed(1)]),
        (replace(CLOSED, window_closed=True), []),
        (OPEN, []),
        (UNKNOWN, []),
        (replace(CLOSED, state=AttemptState.RELEASED, released_boot=1.0), []),
    ],
)
def test_a_closed_screen_window_is_recorded_once(
    attempt: ActiveAttempt, noted: list[RecordWindowClosed]
) -> None:
    facts = Facts(Now(0.0, 10.0, "boot"), Settings(), LlmConfig(), attempts=(attempt,))
    assert [action for action in plan(facts) if isinstance(action, RecordWindowClosed)] == noted
