"""The stored form and the text of state reasons."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.command import build
from gpu_scheduler.core.model.state_reason import FailureKind, NextKind, NextStep, ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.runner.attempt_supervisor import CLAIM_FAILURE
from gpu_scheduler.runner.child import SPAWN_FAILURES
from gpu_scheduler.views.job_text import reason_text

FAILED, LAUNCH = ReasonKind.COMMAND_FAILED, ReasonKind.LAUNCH_FAILED
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
    reason = StateReason(FAILED, FailureKind.CRASHED, 0, next_steps=(step,))
    assert json.loads(reason.to_json()) == {
        "kind": "command_failed", "failure": "crashed", "exit_code": 0,
        "next_steps": [{"kind": "retry", "number": 1, "of": 2, "wait_s": 10.0}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (StateReason(FAILED, exit_code=3), "exit code 3"),
        (StateReason(FAILED, exit_code=1, error="E: x", message="log lost"), "exit code 1: E: x; log lost"),
        (StateReason(LAUNCH, message="no script"), "no script"),
        (StateReason(LAUNCH), "its command could not be started (nothing was started)"),
        (
            StateReason(LAUNCH, message="m", next_steps=(NextStep(NextKind.LAUNCH_RETRY, 2, 5, 5.0),)),
            "m; try 2 of 5 in 5 s",
        ),
        (
            StateReason(LAUNCH, message="m", next_steps=(NextStep(NextKind.LAUNCH_ABANDONED, 5),)),
            "could not be started: m (tried 5 times)",
        ),
        (
            StateReason(LAUNCH, message="m", next_steps=(NextStep(NextKind.LAUNCH_ABANDONED, 1),)),
            "could not be started: m",
        ),
        (StateReason(ReasonKind.RUNNER_NEVER_STARTED, launches=3), "its runner did not start in 3 launches"),
        (
            StateReason(ReasonKind.RUNNER_DIED, survivors=(7, 8)),
            "its runner was killed; processes 7, 8 are still running",
        ),
        (
            StateReason(ReasonKind.PREEMPTED, next_steps=(NextStep(NextKind.HELD, job_id=7),)),
            "preempted; `retry 7` runs it again",
        ),
        (
            StateReason(ReasonKind.STORE_LOST, next_steps=(NextStep(NextKind.HELD, job_id=7),)),
            "it had not begun when the store was lost; `retry 7` runs it",
        ),
        (StateReason(ReasonKind.LINE_ADDED_AGAIN, subject="jobs.txt"), "added to jobs.txt again"),
    ],
)  # fmt: skip
def test_formats_a_state_reason_as_text(reason: StateReason, words: str) -> None:
    assert reason_text(reason) == words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (StateReason(FAILED, exit_code=3), ""),
        (StateReason(FAILED, exit_code=1, error="E: x"), "E: x"),
        (StateReason(FAILED, exit_code=1, error="E: x", message="log lost"), "E: x; log lost"),
        (StateReason(FAILED, exit_code=1, message="log lost"), "exit code 1; log lost"),
        (StateReason(FAILED, signal=15, error="E: x"), "E: x"),
        (StateReason(FAILED, signal=11), "invalid memory access"),
        (StateReason(FAILED, exit_code=127), "command not found"),
        (StateReason(FAILED, exit_code=127, error="no"), "command not found: no"),
        (
            StateReason(FAILED, exit_code=127, error="bash: line 1: x: command not found"),
            "bash: line 1: x: command not found",
        ),
        (
            StateReason(FAILED, exit_code=137, oom_kill="command"),
            "a program it ran was killed by SIGKILL, probably because memory ran out",
        ),
    ],
)
def test_formats_a_state_reason_without_its_exit_code_on_request(reason: StateReason, words: str) -> None:
    assert reason_text(reason, without_exit=True) == words


def test_every_failure_code_of_command_sh_and_the_runner_is_a_failure_kind() -> None:
    texts = "".join(
        value for module in (build, build) for value in vars(module).values() if isinstance(value, str)
    )
    codes = set(re.findall(r"fail (\w+) ", texts))
    assert {"python_missing", "environment_missing", "environment_broken"} <= codes
    assert {*codes, *SPAWN_FAILURES.values(), CLAIM_FAILURE} <= {kind.value for kind in FailureKind}
