"""Tests that every executor keeps the contract of `attempts.executor.Executor`, through its verbs alone."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executor import AttemptRef, Executor
from gpu_scheduler.core.model.attempt_status import AttemptResult, AttemptStatus, StopRequest
from gpu_scheduler.executors.direct import DirectExecutor
from gpu_scheduler.executors.forking import ForkingExecutor
from gpu_scheduler.executors.screen import ScreenExecutor
from tests.fakes.remote_executor import RemoteExecutor
from tests.runner.attempt import PreparedAttempt, socket_folder, wait_for
from tests.runner.fork_helper import helper_pid

CANCEL = StopRequest("cancelled", 5.0)


@dataclass
class Trial:
    """One attempt with its executor. begun: returns how often its command has begun."""

    executor: Executor
    ref: AttemptRef
    begun: Callable[[], int]

    def launch(self) -> Trial:
        self.executor.launch(self.ref)
        return self

    def status(self) -> AttemptStatus:
        return self.executor.observe(self.ref)

    def until_claim(self, claim: str) -> AttemptStatus:
        """Waits for a claim in this state."""
        return wait_for(lambda: self.status().claim == claim and self.status(), f"{claim}: {self.status()}")

    def result(self) -> AttemptResult:
        """Waits for the result."""
        return wait_for(lambda: self.status().result, f"a result in {self.status()}")


Make = Callable[[int | None], Trial]


@pytest.fixture(params=["direct", "forking", "screen", "remote"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes an attempt that exits with this code, or runs on if it is None."""
    kind = request.param
    if kind == "remote":
        yield lambda exit_code: _remote_trial(tmp_path, exit_code)
        return
    if kind == "screen" and shutil.which("screen") is None:
        pytest.skip("GNU Screen is not installed")
    made: list[PreparedAttempt] = []
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        executor = _local_executor(kind)

        def trial(exit_code: int | None) -> Trial:
            script = "echo begun; " + ("exec sleep 300" if exit_code is None else f"exit {exit_code}")
            session = f"gpujob_0_x_{len(made)}" if executor.has_terminal else None
            attempt = PreparedAttempt(
                tmp_path, script, name=f"{len(made) + 1}-abc", terminal=executor.has_terminal, session=session
            )
            attempt.prepare()
            made.append(attempt)
            return Trial(executor, attempt.ref, lambda: attempt.output().count("begun\n"))

        yield trial
        for attempt in made:
            attempt.clean()
        executor.close()


def _local_executor(kind: str) -> Executor:
    if kind == "screen":
        return ScreenExecutor()
    if kind == "direct":
        return DirectExecutor()
    forking = ForkingExecutor()
    wait_for(lambda: helper_pid(forking), "the helper")
    return forking


def _remote_trial(tmp_path: Path, exit_code: int | None) -> Trial:
    executor = RemoteExecutor(exit_code)
    ref = AttemptRef(7, 1, secrets.token_hex(16), tmp_path / "no such folder")
    return Trial(executor, ref, lambda: executor.attempts[ref.token].begun)


def test_an_attempt_without_a_launch_has_no_claim(make: Make) -> None:
    status = make(0).status()
    assert (status.claim, status.result, status.stop) == ("none", None, None)


@pytest.mark.parametrize("exit_code", [0, 7])
def test_the_result_contains_the_exit_code(make: Make, exit_code: int) -> None:
    trial = make(exit_code).launch()
    result = trial.result()
    assert (result.exit_code, result.signal, result.cause, result.began) == (exit_code, None, None, True)
    trial.until_claim("dead")


def test_stopped_attempt_reports_the_cause(make: Make) -> None:
    trial = make(None).launch()
    assert trial.until_claim("live").result is None
    trial.executor.request_stop(trial.ref, CANCEL)
    assert trial.result().cause == "cancelled"


def test_repeating_a_stop_that_was_never_requested_stops_nothing(make: Make) -> None:
    trial = make(None).launch()
    trial.until_claim("live")
    trial.executor.repeat_stop(trial.ref)
    wait_for(trial.begun, "the command has begun")
    assert trial.status().stop is None
    assert trial.status().claim == "live"


def test_three_launches_begin_the_command_once(make: Make) -> None:
    trial = make(0).launch().launch().launch()
    trial.result()
    trial.until_claim("dead")
    assert trial.begun() == 1


def test_cancelled_launch_never_begins(make: Make) -> None:
    trial = make(0)
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "void"
    trial.launch()
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "void"
    assert trial.begun() == 0


def test_running_attempt_cannot_have_its_launch_cancelled(make: Make) -> None:
    trial = make(None).launch()
    trial.until_claim("live")
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "live"


def test_killed_attempt_has_no_result(make: Make) -> None:
    trial = make(None).launch()
    trial.until_claim("live")
    trial.executor.kill(trial.ref)
    assert trial.until_claim("dead").result is None


def test_reaping_or_stopping_an_ended_process_does_nothing(make: Make) -> None:
    trial = make(3).launch()
    trial.result()
    trial.until_claim("dead")
    for _ in range(2):
        trial.executor.reap()
        trial.executor.request_stop(trial.ref, CANCEL)
        trial.executor.repeat_stop(trial.ref)
        trial.executor.kill(trial.ref)
    assert trial.result().exit_code == 3
