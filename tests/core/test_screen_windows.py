"""The scheduler records only once that a job's Screen window was closed, and does nothing else about it."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.core.decisions import changed_attempts

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
        (CLOSED, True),
        (replace(CLOSED, window_closed=True), False),
        (OPEN, False),
        (UNKNOWN, False),
        (replace(CLOSED, state=AttemptState.RELEASED, released_boot=1.0), False),
    ],
)
def test_a_closed_screen_window_is_recorded_once(attempt: ActiveAttempt, noted: bool) -> None:
    facts = Facts(Now(0.0, 10.0, "boot"), Settings(), LlmConfig(), attempts=(attempt,))
    changed = [one for one in changed_attempts(plan(facts)) if one.window_closed is not attempt.window_closed]
    assert changed == ([replace(attempt, window_closed=True)] if noted else [])
