"""`stop`: the scheduler ends, and nothing is left that would end the next one."""

from __future__ import annotations

import os
import signal

import pytest

from gpu_scheduler.cli import stopping
from gpu_scheduler.runner.protocol import tokens_alive
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import scheduler_pid
from tests.cli.desk import Desk
from tests.waiting import wait_for

LONG = "echo up; while :; do sleep 0.02; done"


def test_with_none_up_it_says_so_and_leaves_nothing(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("stop")
    assert (code, out, err) == (0, f"no scheduler is running on {desk.home.state_file}\n", "")
    assert desk.wishes() == []


def test_the_scheduler_ends_and_running_jobs_go_on(desk: Desk) -> None:
    job = desk.run_job(LONG)
    with desk.scheduler() as pid:
        code, out, err = desk.run("stop")
        assert (code, err) == (0, "")
        assert out.startswith(f"the scheduler (pid {pid}) has ended\nrunning jobs go on: job {job};")
        assert scheduler_pid(desk.home.lock) is None
    assert tokens_alive(desk.tokens)
    assert desk.state(job) == "running"
    assert desk.wishes() == []


def test_a_scheduler_that_does_not_end_is_named_and_the_wish_taken_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "END_S", 0.1)
    with desk.scheduler("deaf") as pid:
        code, out, err = desk.run("stop")
        assert (code, out) == (1, "")
        assert f"pid {pid}" in err
        assert f"`kill {pid}`" in err
    assert desk.wishes() == []


def test_a_scheduler_that_dies_meanwhile_leaves_no_wish(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk.scheduler("deaf") as pid:
        monkeypatch.setattr(Home, "ring", lambda home: os.kill(pid, signal.SIGKILL))
        assert desk.run("stop")[0] == 0
    assert desk.wishes() == []


def test_jobs_are_cancelled_with_it_and_known_as_cancelled(desk: Desk) -> None:
    job = desk.run_job(LONG)
    waiting = desk.job("echo next")
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    with desk.scheduler() as pid:
        code, out, err = desk.run("stop", "--jobs", "--grace", "2")
        assert (code, err) == (0, "")
        assert out == f"the scheduler (pid {pid}) has ended\njob {job}: cancelled\n"
    desk.wait_until_gone()
    with desk.scheduler():
        wait_for(lambda: desk.state(job) == "finished", "the scheduler's record")
        row = desk.store.job(job)
        assert row is not None
        assert row["outcome"] == "cancelled"
        assert scheduler_pid(desk.home.lock) is not None
    assert desk.state(waiting) == "queued"


def test_jobs_are_cancelled_with_none_up(desk: Desk) -> None:
    job = desk.run_job(LONG)
    assert desk.run("stop", "--jobs") == (0, f"job {job}: cancelled\n", "")
    desk.wait_until_gone()
    assert desk.wishes() == [("cancel", str(job))]
    assert desk.run("stop", "--jobs")[0] == 0
    assert desk.wishes() == [("cancel", str(job))]
