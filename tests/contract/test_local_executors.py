"""Tests of the local executors: how runners start, which environment they get, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import (
    DirectExecutor,
    Executor,
    ForkingExecutor,
    LaunchError,
    ScreenExecutor,
    screen_problem,
)
from gpu_scheduler.attempts.folder import AttemptRef
from gpu_scheduler.runner.locks import Lock
from gpu_scheduler.system.gpu_claims import claims_of
from gpu_scheduler.system.procfs import Proc
from tests.runner.attempt import PreparedAttempt, socket_folder, wait_for
from tests.runner.fork_helper import helper_pid

HOSTILE = "a 'b' \"c\"\n$(touch x);%n #^{é"


@pytest.fixture(params=["direct", "forking", "screen"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yields the name of each executor, after setting a socket folder for Screen."""
    if request.param == "screen" and shutil.which("screen") is None:
        pytest.skip("GNU Screen is not installed")
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        yield request.param


@pytest.fixture
def executor(kind: str) -> Iterator[Executor]:
    """Makes the executor, and waits until its helper (if it has one) is ready."""
    if kind == "forking":
        forking = ForkingExecutor()
        wait_for(lambda: helper_pid(forking), "the helper")
        yield forking
        forking.close()
    else:
        yield ScreenExecutor() if kind == "screen" else DirectExecutor()


@pytest.fixture
def make(kind: str, tmp_path: Path) -> Iterator[Callable[..., PreparedAttempt]]:
    """Makes attempts as the loop makes them for this executor."""
    made: list[PreparedAttempt] = []

    def one(script: str, home: Path = tmp_path, **spec: object) -> PreparedAttempt:
        terminal = kind == "screen"
        session = f"gpujob_0,1_x.y-z_{len(made)}" if terminal else None
        name = f"{len(made) + 1}-abc"
        made.append(
            PreparedAttempt(home, script, name=name, **{"terminal": terminal, "session": session, **spec})
        )
        return made[-1]

    yield one
    for attempt in made:
        attempt.clean()


Make = Callable[..., PreparedAttempt]


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 0", 0, None), ("exit 7", 7, None), ("kill -6 $$", None, 6)]
)
def test_the_result_contains_the_exit_code_or_the_signal(
    executor: Executor, make: Make, script: str, code: int | None, number: int | None
) -> None:
    result = make(script).launch(executor).result()
    assert (result.exit_code, result.signal, result.cause) == (code, number, None)


def test_launch_returns_while_the_command_runs(executor: Executor, make: Make) -> None:
    attempt = make("exec sleep 300").launch(executor)
    assert attempt.status().result is None
    attempt.until_live()
    attempt.stop()
    assert attempt.result().cause == "cancelled"


def test_the_claim_of_a_runner_is_recognised_as_that_of_a_scheduler(executor: Executor, make: Make) -> None:
    attempt = make("exec sleep 300").launch(executor)
    runner = attempt.until_live().runner
    assert runner is not None
    [claim] = claims_of([Lock(0, None, runner.pid)], 100)
    assert claim.by_scheduler
    attempt.stop()
    attempt.result()


def test_launching_an_attempt_three_times_starts_its_command_only_once(
    executor: Executor, make: Make
) -> None:
    attempt = make("echo start; exit 0")
    attempt.prepare()
    for _ in range(3):
        executor.launch(attempt.ref)
    attempt.result()
    wait_for(lambda: len(attempt.pids()) == 0, "every runner has left")
    assert attempt.body() == "start\n"


def test_launches_in_a_folder_with_a_hostile_name(executor: Executor, make: Make, tmp_path: Path) -> None:
    home = tmp_path / HOSTILE
    home.mkdir()
    attempt = make("pwd; exit 3", home=home).launch(executor)
    assert attempt.result().exit_code == 3
    assert attempt.body() == f"{home}\n"
    assert [path.name for path in tmp_path.iterdir()] == [HOSTILE]


def test_only_runner_and_command_carry_the_token(executor: Executor, make: Make) -> None:
    attempt = make("echo up; exec sleep 300").launch(executor)
    attempt.until_logged("up")
    pid = attempt.status().pid
    assert pid in attempt.pids()
    assert len(attempt.pids()) == 2
    attempt.stop()
    attempt.result()


def test_command_gets_only_the_environment_in_its_spec(
    executor: Executor, make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASH_ENV", "/nonexistent")
    monkeypatch.setenv("LEAKS", "1")
    attempt = make("exec env")
    attempt.spec["env"] = {
        "PATH": os.environ["PATH"],
        "KEPT": "a b\nc",
        "BASH_FUNC_printf%%": "() { exit 99; }",
    }
    attempt.launch(executor).result()
    names = {line.partition("=")[0] for line in attempt.body().splitlines() if "=" in line}
    own = {"PWD", "SHLVL"} | ({"TERM"} if kind == "screen" else set())
    assert names == {"PATH", "KEPT", "GPU_SCHEDULER_TOKEN", "BASH_FUNC_printf%%"} | own
    assert "KEPT=a b\nc\n" in attempt.body()


def test_runner_survives_the_process_that_started_it(kind: str, make: Make, tmp_path: Path) -> None:
    attempt = make(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5")
    attempt.prepare()
    name = f"{kind.capitalize()}Executor"
    until_ready = "\nwhile not helper_pid(executor): time.sleep(0.001)" if kind == "forking" else ""
    program = (
        f"from gpu_scheduler.attempts.executors import {name}\n"
        "from pathlib import Path; import os, sys, time\n"
        "from gpu_scheduler.attempts.folder import AttemptRef\n"
        "from tests.runner.fork_helper import helper_pid\n"
        f"executor = {name}(){until_ready}\n"
        "executor.launch(AttemptRef(7, 1, '', Path(sys.argv[1]))); os.kill(os.getpid(), 9)"
    )
    starter = [os.sys.executable, "-c", program, str(attempt.folder)]  # type: ignore[attr-defined]
    ended = subprocess.run(starter, start_new_session=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    attempt.until_logged("up")
    (tmp_path / "go").touch()
    assert attempt.result().exit_code == 5


def test_arguments_contain_only_paths_and_ids(executor: Executor, make: Make) -> None:
    attempt = make("echo up; exec sleep 300", header="hush").launch(executor)
    attempt.until_logged("up")
    pid = attempt.status().pid
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert attempt.token.encode() not in arguments
    assert b"hush" not in arguments
    attempt.stop()
    attempt.result()


def test_missing_interpreter_is_a_launch_error(kind: str, make: Make) -> None:
    attempt = make("exit 0")
    attempt.prepare()
    if kind != "screen":
        executor = DirectExecutor("/no/python") if kind == "direct" else ForkingExecutor("/no/python")
        with pytest.raises(LaunchError, match="runner cannot be started"):
            executor.launch(attempt.ref)
    else:
        # Screen does not report the error, but the attempt never gets a claim.
        ScreenExecutor("/no/python").launch(attempt.ref)
    assert attempt.status().claim == "none"


def test_folder_without_a_spec_is_a_launch_error(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"spec\.json is missing"):
        executor.launch(AttemptRef(1, 1, "t", tmp_path))


def zombies() -> set[int]:
    """Returns the pids of this process's children that have ended but were not collected."""
    return {one.pid for one in Proc().processes() if one.parent == os.getpid() and one.ended}


def test_reap_collects_ended_runners(executor: Executor, make: Make) -> None:
    before = zombies()
    attempt = make("exit 0").launch(executor)
    attempt.result()
    attempt.until_gone()

    def none_left() -> bool:
        executor.reap()
        return not zombies() - before

    wait_for(none_left, "no zombie")


@pytest.mark.parametrize("kind", ["screen"], indirect=True)
def test_missing_screen_is_a_launch_error(
    executor: Executor, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert screen_problem() is None
    running = make("exec sleep 300").launch(executor)
    running.until_live()
    assert screen_problem() is None
    running.stop()
    running.result()
    attempt = make("exit 0")
    attempt.prepare()
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = screen_problem()
    assert problem is not None
    assert "sudo apt-get install screen" in problem
    with pytest.raises(LaunchError, match="apt-get install screen"):
        ScreenExecutor().launch(attempt.ref)


@pytest.mark.parametrize("kind", ["screen"], indirect=True)
def test_unusable_screen_socket_folder_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    assert kind == "screen"
    folder = Path(os.environ["SCREENDIR"])
    folder.chmod(0o755)
    problem = screen_problem()
    assert problem is not None
    assert "700" in problem
    long = tmp_path / ("x" * 60)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("SCREENDIR", str(long))
    problem = screen_problem()
    assert problem is not None
    assert "SCREENDIR" in problem


@pytest.mark.parametrize("kind", ["screen"], indirect=True)
def test_screen_does_not_read_the_users_screenrc(
    executor: Executor, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".screenrc").write_text("zombie kr\nscreen -t more sleep 300\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    attempt = make("exit 0").launch(executor)
    attempt.result()
    assert stat.S_IMODE((attempt.folder / "screenrc").stat().st_mode) == 0o600
    wait_for(lambda: not any(Path(os.environ["SCREENDIR"]).iterdir()), "the session is gone")
