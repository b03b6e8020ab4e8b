"""The `cancel`, `retry`, `hold` and `release` commands, with and without a scheduler.

Running jobs are real processes.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpu_scheduler.attempts.folder import kill_runner, observe
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.daemon import restore
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for

LONG = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done"


@pytest.mark.parametrize("up", [False, True])
def test_requests_about_a_queued_job_are_answered_with_and_without_a_scheduler(desk: Desk, up: bool) -> None:
    job = desk.job()
    with desk.scheduler() if up else nullcontext():
        assert desk.run("hold", job) == (0, f"job {job}: held\n", "")
        assert desk.state(job) == "held"
        assert desk.run("release", job) == (0, f"job {job}: released\n", "")
        assert desk.state(job) == "queued"
        assert desk.run("cancel", job) == (0, f"job {job}: cancelled\n", "")
        assert desk.state(job) == "finished"
        code, out, err = desk.run("cancel", job)
        assert (code, out) == (1, "")
        assert err == f"gpu-scheduler: job {job} is already finished (cancelled)\n"
        assert desk.run("retry", job) == (0, f"job {job}: queued again\n", "")
        assert desk.run("release", job)[0] == 1
        assert desk.state(job) == "queued"
    assert desk.requests() == []


@pytest.mark.parametrize("up", [False, True])
def test_an_unknown_job_does_not_prevent_the_other_requests(desk: Desk, up: bool) -> None:
    first, last = desk.job(), desk.job("echo b")
    with desk.scheduler() if up else nullcontext():
        code, out, err = desk.run("cancel", first, 99, last, first)
    assert code == 1
    assert out == f"job {first}: cancelled\njob {last}: cancelled\n"
    assert "there is no job 99" in err
    assert [desk.state(job) for job in (first, last)] == ["finished"] * 2


def test_a_finished_job_can_be_retried_but_not_cancelled_or_held(desk: Desk) -> None:
    job = desk.job()
    desk.record(changes.finish(job, Outcome.FAILED))
    code, out, err = desk.run("cancel", job)
    assert (code, out, err) == (1, "", f"gpu-scheduler: job {job} is already finished (failed)\n")
    code, _, err = desk.run("hold", job)
    assert (code, err) == (1, f"gpu-scheduler: job {job} is finished; hold needs a job that is queued\n")
    assert desk.run("retry", job) == (0, f"job {job}: queued again\n", "")
    assert desk.run("cancel", job) == (0, f"job {job}: cancelled\n", "")
    assert (desk.requests(), desk.state(job)) == ([], "finished")


def test_cancel_requires_jobs_or_all(desk: Desk) -> None:
    job = desk.job()
    for words in ([], ["--all", job]):
        code, out, err = desk.run("cancel", *words)
        assert (code, out) == (2, "")
        assert "--all" in err
    assert desk.requests() == []


def test_cancel_all_cancels_every_job_and_accepts_an_empty_queue(desk: Desk) -> None:
    desk.record(changes.finish(desk.job(), Outcome.COMPLETED))
    assert desk.run("cancel", "--all") == (0, "no jobs to cancel\n", "")
    held = desk.job("echo held", hold=True)
    queued = desk.job("echo queued")
    code, out, err = desk.run("cancel", "--all")
    assert (code, err) == (0, "")
    assert out == f"job {held}: cancelled\njob {queued}: cancelled\n"
    assert [desk.state(job) for job in (held, queued)] == ["finished"] * 2


def test_many_jobs_with_the_same_answer_share_a_line(desk: Desk) -> None:
    with desk.store.db.transaction():
        for _ in range(30):
            desk.job()
    assert desk.run("cancel", "--all") == (0, "30 jobs: cancelled\n", "")


def test_cancel_ends_a_running_job_without_a_scheduler(desk: Desk) -> None:
    job = desk.run_job(LONG)
    log = desk.path / f"job_{job}.log"
    wait_for(lambda: "up" in log.read_text(), "output")
    assert desk.run("cancel", job, "--grace", 5) == (0, f"job {job}: cancelled\n", "")
    desk.wait_until_processes_end()
    assert "bye" in log.read_text()
    assert desk.requests() == []
    attempt = desk.store.attempts(job)[0]
    result = observe(desk.folder(attempt), attempt.token).result
    assert result is not None
    assert (result.cause, result.exit_code) == ("cancelled", 3)
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.outcome) == ("finished", "cancelled")
    code, _, err = desk.run("cancel", job)
    assert (code, err) == (1, f"gpu-scheduler: job {job} is already finished (cancelled)\n")
    refused = f"gpu-scheduler: job {job} is finished; hold needs a job that is queued\n"
    assert desk.run("hold", job) == (1, "", refused)


def test_a_job_that_ended_without_a_scheduler_can_be_retried_before_this_is_recorded(desk: Desk) -> None:
    job = desk.run_job("exit 7")
    desk.wait_until_processes_end()
    assert desk.state(job) == "running"
    assert desk.run("retry", job) == (0, f"job {job}: queued again\n", "")
    assert (desk.state(job), len(desk.store.attempts(job)), desk.requests()) == ("queued", 1, [])


def test_a_job_that_ended_without_a_scheduler_cannot_be_cancelled_before_this_is_recorded(desk: Desk) -> None:
    job = desk.run_job("exit 7")
    desk.wait_until_processes_end()
    refused = f"gpu-scheduler: job {job} is already finished (failed, exit code 7)\n"
    assert desk.run("cancel", job) == (1, "", refused)


def test_cancel_kills_a_job_that_ignores_sigterm_after_the_grace_period(desk: Desk) -> None:
    job = desk.run_job("trap '' TERM; echo up; while :; do sleep 0.02; done")
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    began = time.monotonic()
    assert desk.run("cancel", job, "--grace", 0.3) == (0, f"job {job}: cancelled\n", "")
    assert time.monotonic() - began >= 0.3
    desk.wait_until_processes_end()


@pytest.mark.parametrize("environment", ["", "env -i"])
def test_cancel_ends_the_processes_of_a_job_whose_runner_died(
    desk: Desk, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.store.record_options(StartOptions(grace_s=0.2))
    monkeypatch.setattr(restore, "RUNNER_EXIT_S", 0.1)
    script = "trap '' TERM HUP; echo $$ > pid; while :; do sleep 0.02; done"
    job = desk.run_job(f"exec {environment} sh -c {shlex.quote(script)}")
    pid = int(wait_for(lambda: _read(desk.path / "pid"), "the job's pid") or 0)
    attempt = desk.store.attempts(job)[0]
    kill_runner(desk.folder(attempt), attempt.token)
    wait_for(lambda: observe(desk.folder(attempt), attempt.token).claim == "dead", "the runner's end")
    os.kill(pid, 0)
    with pytest.raises(SchedulerError, match=f"job {job} is active"):
        restore.refuse_active(desk.store)
    code, out, err = desk.run("cancel", job, "--grace", 0.2)
    assert (code, out, err) == (0, f"job {job}: cancelled\n", "")
    desk.wait_until_processes_end()
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.outcome, desk.requests()) == ("finished", "cancelled", [])


def test_cancel_stops_an_unclaimed_attempt_before_it_begins(desk: Desk) -> None:
    job = desk.job()
    attempt = desk.attempt(job)
    desk.folder(attempt).mkdir(parents=True)
    code, out, err = desk.run("cancel", job)
    assert (code, out, err) == (0, f"job {job}: cancelled\n", "")
    assert (desk.state(job), desk.requests()) == ("finished", [])
    assert observe(desk.folder(attempt), attempt.token).claim == "void"
    row = desk.store.job(job)
    assert row is not None
    assert row.outcome == "cancelled"


def test_a_running_scheduler_cancels_a_running_job(desk: Desk) -> None:
    job = desk.run_job(LONG)
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    with desk.scheduler():
        assert desk.run("cancel", job, "--grace", "1") == (0, f"job {job}: being stopped\n", "")
        wait_for(lambda: desk.state(job) == "finished", "the job's end")


def test_cancel_takes_over_from_a_scheduler_that_dies_before_answering(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.run_job(LONG)
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    with desk.scheduler("deaf") as pid:
        monkeypatch.setattr(DataDir, "ring_doorbell", lambda home: os.kill(pid, signal.SIGKILL))
        assert desk.run("cancel", job) == (0, f"job {job}: cancelled\n", "")


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None
