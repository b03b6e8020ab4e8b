"""Tests `submit --wait` and `wait --job`, with real jobs on simulated GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli import submit
from gpu_scheduler.control import wait as job_wait
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.data_dir import DataDir
from tests import changes
from tests.cli.desk import Desk
from tests.e2e.world import World
from tests.processes import stop_between_writes
from tests.waiting import wait_for
from tests.warm import Process


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.start("--jobs-file", "")
    yield made
    made.close()


class Waiting:
    """A command that waits in the background."""

    def __init__(self, world: World, *words: str) -> None:
        self._path = world.folder / "waiting.out"
        with open(self._path, "ab") as out:
            self.process = Process(
                "gpu_scheduler", list(words), world.folder, world.env, out.fileno(), out.fileno()
            )

    def wait_for_text(self, text: str) -> None:
        wait_for(lambda: text in self._path.read_text(), text)

    def end(self) -> int:
        return self.process.wait(60)


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("true", 0, "job 1 completed"),
        ("exit 7", 7, "job 1 failed, exit code 7"),
        ("kill -9 $$", 137, "job 1 failed, SIGKILL"),
    ],
)
def test_submit_exits_with_the_code_of_the_job(world: World, command: str, code: int, text: str) -> None:
    done = world.cli("submit", "--wait", "--json", "--", command)
    assert (done.returncode, done.stdout) == (code, '{"id": 1}\n')
    assert text in done.stderr


def test_a_job_that_times_out_ends_the_wait_with_124(world: World) -> None:
    done = world.cli("submit", "--wait", "--timeout", "1s", "--", "sleep 60")
    assert done.returncode == 124
    assert "job 1 timed out" in done.stderr


def test_wait_exits_with_the_largest_code_of_the_jobs(world: World) -> None:
    for number in (0, 5, 3):
        world.run_ok("submit", "--name", f"n{number}", "--", f"exit {number}")
    assert world.cli("wait", "--job", "1-3").returncode == 5
    assert world.cli("wait", "n0", "3").returncode == 3
    assert world.cli("wait", "1", "--job", "n0").returncode == 0


def test_a_skipped_job_ends_the_wait_with_1(world: World) -> None:
    world.run_ok("submit", "--", "false")
    done = world.cli("submit", "--wait", "--after", "1", "--", "true")
    assert done.returncode == 1
    assert "job 2 skipped: job 1 failed" in done.stderr


def test_ctrl_c_leaves_the_job_running(world: World) -> None:
    waiting = Waiting(world, "submit", "--wait", "--", "until [ -e go ]; do sleep 0.02; done")
    world.wait_until(lambda jobs: jobs and jobs[1]["state"] == "running", "job 1 running")
    waiting.wait_for_text("job 1 submitted")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == 130
    waiting.wait_for_text("no longer waiting; job 1 continues, and `wait --job 1` waits for it again")
    again = Waiting(world, "wait", "--job", "1")
    (world.folder / "go").touch()
    assert again.end() == 0
    again.wait_for_text("job 1 completed")


def interrupt_before(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Sends SIGINT to this process, as Ctrl-C does, before each call of a function."""
    real = getattr(owner, name)

    def interrupted(*args: Any, **values: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*args, **values)

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (DataDir, "ring_doorbell"),  # the job has just been committed
        (submit, "_announce"),
        (job_wait, "open_store"),
        (job_wait, "_awaited_jobs"),
    ],
)
def test_ctrl_c_right_after_the_submission_says_that_the_job_continues(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    desk.job()  # creates the store
    interrupt_before(monkeypatch, owner, name)
    code, out, err = desk.run("submit", "--wait", "--", "true")
    assert (code, out) == (130, "job 2 submitted: true\n")
    assert err.endswith("no longer waiting; job 2 continues, and `wait --job 2` waits for it again\n")


def test_ctrl_c_before_the_submission_submits_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.job()
    interrupt_before(monkeypatch, submit, "interrupts_deferred")
    assert desk.run("submit", "--wait", "--", "true") == (130, "", "")
    assert desk.store.job(2) is None


def test_ctrl_c_before_the_first_report_names_the_jobs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        desk.job()
    interrupt_before(monkeypatch, job_wait, "_awaited_jobs")
    code, _, err = desk.run("wait", "--job", "1-3")
    assert code == 130
    assert err.endswith("no longer waiting; jobs 1-3 continue, and `wait --job 1-3` waits for them again\n")


def test_wait_says_what_a_job_needs_and_keeps_waiting(world: World) -> None:
    waiting = Waiting(world, "submit", "--wait", "--hold", "--", "exit 4")
    waiting.wait_for_text("job 1 is held by")
    waiting.wait_for_text("`release 1` queues it")
    world.run_ok("release", "1")
    assert waiting.end() == 4
    infeasible = Waiting(world, "submit", "--wait", "--gpus", "9", "--", "true")
    infeasible.wait_for_text("job 2 waits: infeasible")
    world.run_ok("cancel", "2")
    assert infeasible.end() == 1


def test_wait_names_the_job_that_blocks_the_awaited_one(world: World) -> None:
    world.run_ok("submit", "--hold", "--", "true")
    world.run_ok("submit", "--after", "1", "--", "true")
    waiting = Waiting(world, "submit", "--wait", "--after", "2", "--", "true")
    waiting.wait_for_text("job 3 waits for other jobs, and job 1 is held by")
    world.run_ok("release", "1")
    assert waiting.end() == 0


def test_wait_ends_when_the_scheduler_has_gone_and_the_job_has_ended(world: World) -> None:
    """The end is recorded only in the folder of the attempt."""
    waiting = Waiting(world, "submit", "--wait", "--", "until [ -e go ]; do sleep 0.02; done; exit 6")
    world.wait_until(lambda jobs: jobs and jobs[1]["state"] == "running", "job 1 running")
    world.end_scheduler(signal.SIGKILL)
    (world.folder / "go").touch()
    assert waiting.end() == 6


def test_wait_counts_a_retry_that_a_busy_scheduler_has_not_answered(world: World) -> None:
    """A failed job with an open retry has not ended for good."""
    world.run_ok("submit", "--", "[ -e go ]")
    world.wait_finished(1)
    (world.folder / "go").touch()
    assert world.process is not None
    stop_between_writes(world.process.pid, DataDir.of(str(world.folder / world.state)).database)
    try:
        world.run_ok("retry", "1")
        assert world.cli("wait", "--job", "1", "--timeout", "0.5").returncode == 124
    finally:
        world.process.send_signal(signal.SIGCONT)
    assert world.cli("wait", "--job", "1").returncode == 0


def test_wait_says_that_no_scheduler_is_running(desk: Desk) -> None:
    desk.job()
    code, out, err = desk.run("wait", "--job", "1", "--timeout", "0.2")
    assert (code, out) == (124, "")
    assert "job 1 waits until `start`, because no scheduler is running" in err
    assert "not ended within 0.2 s: job 1 continues, and `wait --job 1` waits for it again" in err


def test_wait_for_many_jobs_prints_few_lines(desk: Desk) -> None:
    for _ in range(50):
        desk.job()
    _, _, err = desk.run("wait", "--job", "1-50", "--timeout", "0")
    assert "and 30 more (see `status --all`)" in err
    assert "jobs 1-50 continue, and `wait --job 1-50` waits for them again" in err
    assert len(err.splitlines()) == 22


def test_wait_for_finished_jobs_returns_at_once(desk: Desk) -> None:
    for outcome in (Outcome.CANCELLED, Outcome.SKIPPED):
        desk.record(changes.finish(desk.job(), outcome, StateReason(ReasonKind.CANCELLED_BY_USER)))
    assert desk.run("wait", "--job", "1", "2")[:2] == (1, "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--job", "9"], "there is no job 9"),
        (["--job", "nobody"], "there is no job named nobody"),
        (["--job", "1", "--count", "2"], "--count chooses GPUs and cannot be combined with jobs"),
        (["--job", "1", "--simulate", "2"], "cannot be combined with jobs"),
        (["1", "--only", "0"], "--allowed chooses GPUs and cannot be combined with jobs"),
        (["--", "true"], "`run -- COMMAND` waits for GPUs and executes it"),
        (["--job"], "expected at least one argument"),
        (["3"], "there is no job 3"),
    ],
)
def test_wait_rejects_wrong_words(desk: Desk, words: list[str], problem: str) -> None:
    desk.job()
    code, out, err = desk.run("wait", *words)
    assert (code in (1, 2), out) == (True, "")
    assert problem in err


def test_wait_without_a_store_names_the_remedy(desk: Desk) -> None:
    code, _, err = desk.run("wait", "--job", "1")
    assert (code, "run `start`" in err) == (1, True)
    assert os.listdir(desk.path) == []
