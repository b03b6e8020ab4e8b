"""Tests that the loop can follow an attempt that has neither a folder nor a process on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.observe import runner_pids
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.rounds import loop
from gpu_scheduler.rounds import loop as read_facts
from gpu_scheduler.store.requests import add_request
from tests.fakes.remote_executor import RemoteExecutor
from tests.loop.rig import SETTINGS, Rig
from tests.reasons import words


@pytest.fixture(autouse=True)
def no_processes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a round searches this machine for processes of an attempt."""

    def fail(*arguments: object) -> None:
        raise AssertionError(f"searched for processes: {arguments}")

    monkeypatch.setattr(read_facts, "processes_of", fail)
    monkeypatch.setattr(loop, "sweep_once", fail)


def rig_with(tmp_path: Path, executor: RemoteExecutor, settings: Settings = SETTINGS) -> Rig:
    return Rig(tmp_path, gpus=1, executor=executor, settings=settings)


def test_follows_a_remote_attempt_until_it_ends(tmp_path: Path) -> None:
    executor = RemoteExecutor()
    rig = rig_with(tmp_path, executor)
    first, second = rig.add_job("first"), rig.add_job("second")
    rig.tick()
    assert [str(rig.job(job).state) for job in (first, second)] == ["running", "queued"]
    [token] = executor.attempts
    executor.end(token, 0)
    rig.tick()
    assert (str(rig.job(first).outcome), str(rig.job(second).state)) == ("completed", "running")


def test_the_pid_of_a_remote_runner_is_not_that_of_a_runner_on_this_machine(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, RemoteExecutor())
    rig.add_job("x")
    [attempt] = rig.tick().attempts
    remote = attempt.seen(status=replace(attempt.status, pid=7))
    assert runner_pids([remote]) == frozenset()
    assert runner_pids([replace(remote, executor="direct")]) == {7}


def test_stops_a_remote_attempt(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, RemoteExecutor())
    job = rig.add_job("x")
    rig.tick()
    add_request(rig.store, "cancel", str(job), grace_s=5.0)
    rig.tick()
    assert str(rig.tick_until_ended(job).outcome) == "cancelled"


def test_kills_a_remote_attempt_that_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.core.scheduling.reconcile_attempt.RUNNER_OVERTIME_S", 0.0)
    monkeypatch.setattr("gpu_scheduler.core.scheduling.reconcile_attempt.SIGNAL_INTERVAL_S", 0.01)
    executor = RemoteExecutor()
    executor.obeys = False
    rig = rig_with(tmp_path, executor)
    job = rig.add_job("x")
    rig.tick()
    add_request(rig.store, "cancel", str(job), grace_s=0.1)
    assert str(rig.tick_until_ended(job).outcome) == "cancelled"
    [attempt] = executor.attempts.values()
    assert attempt.state == "lost"
    assert attempt.reminders > 0


def test_holds_the_job_of_a_lost_remote_attempt(tmp_path: Path) -> None:
    executor = RemoteExecutor()
    rig = rig_with(tmp_path, executor)
    job = rig.add_job("x")
    rig.tick()
    [attempt] = executor.attempts.values()
    attempt.state = "lost"
    ended = rig.tick_until_ended(job)
    assert (str(ended.state), ended.held_by) == ("held", "interrupted")


def test_gives_up_a_remote_attempt_that_never_begins(tmp_path: Path) -> None:
    executor = RemoteExecutor()
    executor.starts = False
    settings = Settings(
        launch_deadline_s=0.02, assign_retry_wait_s=0.01, max_assign_attempts=1, max_launches=2
    )
    rig = rig_with(tmp_path, executor, settings)
    job = rig.add_job("x")
    ended = rig.tick_until_ended(job)
    assert str(ended.outcome) == "failed"
    assert "did not start in 2 launches" in words(ended.reason)
    assert [one.state for one in executor.attempts.values()] == ["void"]


def test_retries_a_refused_remote_launch(tmp_path: Path) -> None:
    executor = RemoteExecutor(0)
    executor.refuses = "the site is closed"
    rig = rig_with(tmp_path, executor)
    job = rig.add_job("x")
    rig.tick_until(lambda: "the site is closed" in words(rig.job(job).reason))
    executor.refuses = None
    assert str(rig.tick_until_ended(job).outcome) == "completed"


def test_a_scheduler_without_the_executor_of_an_attempt_leaves_the_attempt_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = RemoteExecutor()
    job = rig_with(tmp_path, executor).add_job("x")
    rig_with(tmp_path, executor).tick()
    without = Rig(tmp_path, gpus=1)
    without.tick()
    assert str(without.job(job).state) == "running"
    assert f"job {job}: this scheduler has no executor 'remote'" in caplog.text
    [token] = executor.attempts
    executor.end(token, 0)
    again = rig_with(tmp_path, executor)
    assert str(again.tick_until_ended(job).outcome) == "completed"
    assert [attempt.executor for attempt in again.store.attempts(job)] == ["remote"]
