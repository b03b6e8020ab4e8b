"""The `priority` command changes the priority of waiting jobs."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from gpu_scheduler.control.job_requests import set_priority
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.requests import open_requests
from tests import changes
from tests.cli.desk import Desk


@pytest.mark.parametrize("up", [False, True])
def test_priority_changes_the_priority_of_waiting_jobs(desk: Desk, up: bool) -> None:
    first, second = desk.job(), desk.job("echo b")
    with desk.scheduler() if up else nullcontext():
        code, out, err = desk.run("priority", first, second, -5)
        said = "priority=-5 set"
        assert (code, out, err) == (0, f"job {first}: {said}\njob {second}: {said}\n", "")
        assert desk.run("priority", second, "HIGH")[:2] == (0, f"job {second}: priority=100 set\n")
        assert desk.run("priority", second, 7)[:2] == (0, f"job {second}: priority=7 set\n")
    jobs = json.loads(desk.run("status", "--json")[1])["jobs"]
    assert {job["id"]: job["priority"] for job in jobs} == {first: -5, second: 7}
    assert desk.requests() == []


def test_status_shows_a_priority_change_that_is_only_recorded(desk: Desk) -> None:
    job = desk.job()
    set_priority(desk.server, [job], -5)
    assert [row.args for row in open_requests(desk.store)] == [{"name": "priority", "value": -5}]
    [shown] = json.loads(desk.run("status", "--json")[1])["jobs"]
    assert shown["reason"] == "priority=-5 requested; waiting for the scheduler"


@pytest.mark.parametrize("up", [False, True])
def test_priority_rejects_jobs_that_are_not_waiting(desk: Desk, up: bool) -> None:
    ended, held = desk.job(), desk.job("echo held", hold=True)
    desk.record(changes.finish(ended, Outcome.COMPLETED))
    with desk.scheduler() if up else nullcontext():
        code, out, err = desk.run("priority", ended, 99, held, 1)
    assert code == 1
    assert out.startswith(f"job {held}: ")
    assert f"job {ended} is finished" in err
    assert "there is no job 99" in err


def test_priority_rejects_a_running_job(desk: Desk) -> None:
    job = desk.run_job("echo up; sleep 60")
    code, out, err = desk.run("priority", job, 1)
    assert (code, out) == (1, "")
    assert err == f"gpu-scheduler: job {job} is running; only a job that is held or queued can be changed\n"
    assert desk.requests() == []


@pytest.mark.parametrize("words", [["3"], ["3", "higher"], ["3", "1.5"]])
def test_priority_expects_jobs_first_and_one_number_last(desk: Desk, words: list[str]) -> None:
    code, out, err = desk.run("priority", *words)
    assert (code, out) == (2, "")
    assert "priority --help" in err
