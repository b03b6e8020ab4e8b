"""The stored form and the text of state reasons."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.command import build
from gpu_scheduler.core.model.reasons import FailureKind, NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.runner.child import SPAWN_FAILURES
from gpu_scheduler.runner.supervise import CLAIM_FAILURE
from gpu_scheduler.show.job_text import reason_text

NUMBERS = st.none() | st.integers(0, 10_000)
STEPS = st.builds(NextStep, st.sampled_from(NextKind), NUMBERS, NUMBERS, st.floats(0, 600), NUMBERS, NUMBERS)
PIDS = st.lists(st.integers(0, 9999), max_size=12).map(tuple)
REASONS = st.builds(
    StateReason, st.sampled_from(ReasonKind), st.none() | st.sampled_from(FailureKind),
    NUMBERS, NUMBERS, st.none() | st.text(), st.none() | st.text(),
    st.sampled_from([None, "command", "child"]), PIDS, st.booleans(), NUMBERS, NUMBERS, NUMBERS,
    st.none() | st.text(), NUMBERS, st.none() | st.sampled_from(Outcome), NUMBERS, PIDS,
    st.lists(st.text(), max_size=3).map(tuple), NUMBERS, st.lists(STEPS, max_size=3).map(tuple),
)  # fmt: skip


@given(REASONS)
def test_a_state_reason_survives_being_stored(reason: StateReason) -> None:
    assert StateReason.from_json(reason.to_json()) == reason


@given(REASONS)
def test_every_state_reason_has_a_text(reason: StateReason) -> None:
    assert isinstance(reason_text(reason), str)


def test_the_stored_form_of_a_state_reason_omits_unknown_values() -> None:
    step = NextStep(NextKind.RETRY, 1, 2, 10.0)
    reason = StateReason(ReasonKind.COMMAND_FAILED, FailureKind.CRASHED, 0, next_steps=(step,))
    assert json.loads(reason.to_json()) == {
        "kind": "command_failed", "failure": "crashed", "exit_code": 0,
        "next_steps": [{"kind": "retry", "number": 1, "of": 2, "wait_s": 10.0}],
    }  # fmt: skip


def test_every_failure_code_of_command_sh_and_the_runner_is_a_failure_kind() -> None:
    texts = "".join(
        value for module in (build, build) for value in vars(module).values() if isinstance(value, str)
    )
    codes = set(re.findall(r"fail (\w+) ", texts))
    assert {"python_missing", "environment_missing", "environment_broken"} <= codes
    assert {*codes, *SPAWN_FAILURES.values(), CLAIM_FAILURE} <= {kind.value for kind in FailureKind}
