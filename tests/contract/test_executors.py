"""Tests that every executor keeps the contract of `attempts.executors.Executor`, using only its methods."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import (
    DirectExecutor,
    EngineExecutor,
    Executor,
    ForkingExecutor,
    ScreenExecutor,
)
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptResult, AttemptStatus, StopRequest
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.engines.agent import EngineAgent, SharedFolder, copy_runner, owner_of
from gpu_scheduler.engines.slurm import SlurmEngine, SlurmSettings
from gpu_scheduler.engines.start import TIME_SCALE
from gpu_scheduler.runner.folder import boot_id
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests.attempts import make_attempt
from tests.fakes.remote_executor import RemoteExecutor
from tests.runner.attempt import PreparedAttempt, socket_folder, wait_for
from tests.runner.fork_helper import helper_pid
from tests.slurm_lab import PARTITION, SlurmLab

#: Divides the times of the agent and of the guards: a runner is dead after 7.2 s without a heartbeat.
SCALE = 100.0
CANCEL = StopRequest("cancelled", 5.0)


@dataclass
class Trial:
    """One attempt with its executor.

    begun: returns how often the attempt's command has begun. complete: does what precedes a launch. look:
    does what another process does beside the executor. crash: ends a runner that could react to its kill.
    """

    executor: Executor
    ref: AttemptRef
    begun: Callable[[], int]
    complete: Callable[[], None] = lambda: None
    look: Callable[[], None] = lambda: None
    crash: Callable[[], None] = lambda: None

    def launch(self) -> Trial:
        self.complete()
        self.executor.launch(self.ref)
        self.look()
        return self

    def status(self) -> AttemptStatus:
        self.look()
        return self.executor.observe(self.ref)

    def kill(self) -> None:
        """Kills the attempt. Slurm sends SIGTERM first; a runner that could react to it crashes."""
        self.crash()
        self.executor.kill(self.ref)

    def until_claim(self, claim: str) -> AttemptStatus:
        """Waits until the attempt's claim is in this state; returns the attempt's status."""
        return wait_for(lambda: self.status().claim == claim and self.status(), f"{claim}: {self.status()}")

    def result(self) -> AttemptResult:
        """Waits for the attempt's result and returns it."""
        return wait_for(lambda: self.status().result, f"a result in {self.status()}")


Make = Callable[[int | None], Trial]


@pytest.fixture(params=["direct", "forking", "screen", "remote", "slurm"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes an attempt that exits with this code. If the code is None, the attempt runs until stopped."""
    kind = request.param
    if kind == "remote":
        yield lambda exit_code: _remote_trial(tmp_path, exit_code)
        return
    if kind == "slurm":
        with slurm_trials(tmp_path, request.getfixturevalue("slurm")) as slurm_trial:
            yield slurm_trial
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


class OpenAttempts(Store):
    """A store that has nothing but open attempts, those of the trials."""

    opened: tuple[ActiveAttempt, ...] = ()

    def active_attempts(self) -> list[ActiveAttempt]:
        return list(self.opened)


@contextmanager
def slurm_trials(folder: Path, slurm: SlurmLab) -> Iterator[Make]:
    """Provides trials on a real Slurm, whose real agent looks whenever a trial is launched or observed."""
    store = OpenAttempts(DataDir.of(str(folder / "state.json")), create=True)
    shared = folder / "shared"
    shared.mkdir(mode=0o700)
    place = SharedFolder(shared / "store", owner_of(store, "store"))
    place.claim()
    env = {**slurm.env, TIME_SCALE: str(SCALE)}
    settings = SlurmSettings(PARTITION, sys.executable, str(copy_runner(shared)))
    agent = EngineAgent("slurm", store, SlurmEngine(settings, env), place, LlmConfig, scale=SCALE)

    def trial(exit_code: int | None) -> Trial:
        script = "echo begun; " + ("exec sleep 300" if exit_code is None else f"exit {exit_code}")
        number = len(store.opened) + 1
        attempt = PreparedAttempt(folder, script, engine="slurm", engine_request={"gpus": 1})
        opened = make_attempt(
            number, number, attempt.token, boot_id(), AttemptState.STARTING,
            number=1, executor="slurm", log=str(attempt.log),
        )  # fmt: skip
        attempt.folder = store.data_dir.attempt_folder(opened)
        store.opened += (opened,)
        ref = AttemptRef(number, 1, attempt.token, attempt.folder, executor="slurm")

        def crash() -> None:
            claim = json.loads((attempt.folder / "claim").read_bytes())
            os.kill(claim["pid"], signal.SIGKILL)

        def begun() -> int:
            agent.look()  # which copies the log
            return attempt.output().count("begun\n")

        return Trial(EngineExecutor("slurm"), ref, begun, attempt.prepare, agent.look, crash)

    try:
        yield trial
    finally:
        slurm.run("scancel", f"--user={os.getuid()}")
        wait_for(lambda: not slurm.run("squeue", "-h").strip(), "an empty queue")
        store.close()


def _remote_trial(tmp_path: Path, exit_code: int | None) -> Trial:
    executor = RemoteExecutor(exit_code)
    ref = AttemptRef(7, 1, secrets.token_hex(16), tmp_path / "no such folder")
    return Trial(executor, ref, lambda: executor.attempts[ref.token].begun)


def test_attempt_has_no_claim_before_its_launch(make: Make) -> None:
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


def test_repeat_stop_has_no_effect_without_an_earlier_request(make: Make) -> None:
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


def test_command_never_begins_after_its_launch_was_cancelled(make: Make) -> None:
    trial = make(0)
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "void"
    trial.launch()
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "void"
    assert trial.begun() == 0


def test_cancel_launch_does_not_affect_a_running_attempt(make: Make) -> None:
    trial = make(None).launch()
    trial.until_claim("live")
    trial.executor.cancel_launch(trial.ref)
    assert trial.status().claim == "live"


def test_killed_attempt_has_no_result(make: Make) -> None:
    trial = make(None).launch()
    trial.until_claim("live")
    trial.kill()
    assert trial.until_claim("dead").result is None


def test_stopping_an_ended_attempt_changes_nothing(make: Make) -> None:
    trial = make(3).launch()
    trial.result()
    trial.until_claim("dead")
    for _ in range(2):
        trial.executor.reap()
        trial.executor.request_stop(trial.ref, CANCEL)
        trial.executor.repeat_stop(trial.ref)
        trial.executor.kill(trial.ref)
    assert trial.result().exit_code == 3
