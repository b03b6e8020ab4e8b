"""The `stop` command ends the scheduler. It leaves no request that would end the next scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.control import requests as control
from gpu_scheduler.control import stop
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.store import data_dir
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests.cli.desk import Desk
from tests.processes import sweep
from tests.waiting import wait_for

LONG = "echo up; while :; do sleep 0.02; done"


def waiting(pid: int) -> str:
    return f"waiting for the scheduler (pid {pid}) to end\n"


def test_stop_reports_that_no_scheduler_runs_and_leaves_no_request(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("stop")
    assert (code, out, err) == (0, f"no scheduler is running on {desk.data_dir.state_file}\n", "")
    assert desk.requests() == []


def test_stop_ends_the_scheduler_and_running_jobs_continue(desk: Desk) -> None:
    job = desk.run_job(LONG)
    with desk.scheduler() as pid:
        code, out, err = desk.run("stop")
        assert (code, err) == (0, "")
        assert out.startswith(
            f"{waiting(pid)}the scheduler (pid {pid}) has ended\nrunning jobs continue: job {job};"
        )
        assert scheduler_pid(desk.data_dir.lock) is None
    assert processes_of(desk.folders)
    assert desk.state(job) == "running"
    assert desk.requests() == []


def test_stop_ends_the_scheduler_even_if_nobody_reads_the_output_of_stop(desk: Desk) -> None:
    assert desk.store
    with desk.scheduler():
        read, write = os.pipe()
        os.close(read)
        words = [sys.executable, "-m", "gpu_scheduler", "stop"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run(words, stdout=write, cwd=desk.path, env=environment, check=False, timeout=60)
        os.close(write)
        assert scheduler_pid(desk.data_dir.lock) is None


def test_stop_names_a_scheduler_that_does_not_end_and_withdraws_the_request(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "END_TIMEOUT_S", 0.1)
    with desk.scheduler("deaf") as pid:
        code, out, err = desk.run("stop")
        assert (code, out) == (1, waiting(pid))
        assert f"pid {pid}" in err
        assert f"`kill {pid}`" in err
    assert desk.requests() == []


def test_stop_says_at_once_that_it_cannot_use_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.store
    with desk.scheduler("deaf"), monkeypatch.context() as patch:
        patch.setattr(data_dir, "allowed_owners", lambda _: frozenset((54321,)))
        patch.setattr(time, "sleep", lambda _: pytest.fail("stop waits"))
        code, out, err = desk.run("stop")
        assert (code, out, "belongs to" in err) == (1, "", True), err


def test_stop_shows_no_pid_for_a_scheduler_in_another_container(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.store
    monkeypatch.setattr(stop, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(stop, "scheduler_pid", lambda lock: 0)
    monkeypatch.setattr(control, "scheduler_pid", lambda lock: 0)
    code, out, err = desk.run("stop")
    assert (code, out) == (1, "waiting for the scheduler (in another container) to end\n")
    assert "the scheduler (in another container) has not ended" in err
    assert "kill" not in err


def test_stop_ends_a_scheduler_that_is_starting(desk: Desk) -> None:
    with desk.scheduler("rising") as pid:
        assert desk.run("stop") == (0, f"{waiting(pid)}the scheduler (pid {pid}) has ended\n", "")
    assert desk.requests() == []


def test_stop_waits_for_a_first_scheduler_that_has_no_database_yet(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = desk.data_dir.database.with_name("aside")
    assert desk.store
    desk.close()
    desk.data_dir.database.rename(aside)
    with desk.scheduler("rising") as pid:
        sleep = time.sleep

        def made(seconds: float) -> None:
            if aside.exists():
                aside.rename(desk.data_dir.database)
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", made)
        assert desk.run("stop")[:2] == (0, f"{waiting(pid)}the scheduler (pid {pid}) has ended\n")


def test_stop_leaves_no_request_if_the_scheduler_dies_while_it_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.scheduler("deaf") as pid:
        monkeypatch.setattr(DataDir, "ring_doorbell", lambda home: os.kill(pid, signal.SIGKILL))
        assert desk.run("stop")[0] == 0
    assert desk.requests() == []


def state_of(desk: Desk) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(desk.data_dir.state_file.read_text())
    return state


def with_state_file(desk: Desk) -> None:
    """Writes the state file as the scheduler does when it ends."""
    StateFileWatcher(desk.store).write(0.0, at_once=True)


def test_stop_without_a_scheduler_frees_the_shares_of_ended_jobs(desk: Desk) -> None:
    ends, stays = desk.run_job("while [ ! -e go ]; do sleep 0.01; done"), desk.run_job(LONG)
    file = desk.data_dir.state_file
    file.write_text('{"screen_sessions": ["kept"], "gpu_status": [], "paused_gpus": [], "_scheduler": {}}')
    desk.run("pause", "1")
    with_state_file(desk)
    assert state_of(desk)["gpu_status"] == [1.0, 0.0]
    assert state_of(desk)["jobs"] == {"running": 2, "running_ids": [ends, stays]}
    (desk.path / "go").touch()
    [row] = desk.store.attempts(ends)
    wait_for(lambda: observe(desk.folder(row), row.token).result, "the result")
    assert desk.run("stop") == (
        0,
        f"no scheduler is running on {file}\nrunning jobs continue: job {stays}; `cancel JOB` ends a job; the"
        f" next `start` continues to manage them\n{file.name} updated: gpu_status [0.5, 0.0]\n",
        "",
    )
    state = state_of(desk)
    assert (state["gpu_status"], state["paused_gpus"]) == ([0.5, 0.0], [1])
    assert state["jobs"] == {"running": 1, "running_ids": [stays]}
    assert state["screen_sessions"] == ["kept"]
    assert desk.state(ends) == "finished"
    assert desk.run("stop", "--jobs") == (
        0,
        f"waiting for job {stays} to end (SIGKILL after 10 s)\n"
        f"job {stays}: cancelled\n{file.name} updated: gpu_status [0.0, 0.0]\n",
        "",
    )
    assert desk.run("stop") == (0, f"no scheduler is running on {file}\n", "")


@pytest.mark.parametrize(
    "content",
    [None, "{", '{"gpu_status": [1.0, 1.0], "paused_gpus": []}'],
    ids=["deleted", "broken", "older's"],
)
def test_stop_does_not_change_a_foreign_or_broken_state_file(desk: Desk, content: str | None) -> None:
    assert desk.store
    with_state_file(desk)
    desk.data_dir.state_file.unlink()
    if content is not None:
        desk.data_dir.state_file.write_text(content)
    assert desk.run("stop") == (0, f"no scheduler is running on {desk.data_dir.state_file}\n", "")
    now = desk.data_dir.state_file.read_text() if desk.data_dir.state_file.exists() else None
    assert now == content


def test_a_job_keeps_its_share_while_its_command_outlives_the_runner(desk: Desk) -> None:
    job = desk.run_job(f"echo $$ > pid; {LONG}")
    wait_for((desk.path / "pid").exists, "the start of the command")
    with_state_file(desk)
    [row] = desk.store.attempts(job)
    runner = observe(desk.folder(row), row.token).pid
    assert runner
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: observe(desk.folder(row), row.token).claim == "dead", "the runner's end")
    desk.run("stop")
    assert state_of(desk)["gpu_status"] == [0.5, 0.0]
    assert not sweep(desk.folder(row), row.token, 0.0)
    desk.run("stop")
    assert state_of(desk)["gpu_status"] == [0.0, 0.0]


def test_stop_with_jobs_cancels_all_jobs_and_records_them_as_cancelled(desk: Desk) -> None:
    job = desk.run_job(LONG)
    waiting = desk.job("echo next")
    wait_for(lambda: "up" in (desk.path / f"job_{job}.log").read_text(), "output")
    with desk.scheduler() as pid:
        code, out, err = desk.run("stop", "--jobs", "--grace", "2")
        assert (code, err) == (0, "")
        first, rest = out.split("\n", 1)
        assert (
            first == f"waiting for the scheduler (pid {pid}) to cancel job {job} (SIGKILL after 2 s) and end"
        )
        assert rest == f"the scheduler (pid {pid}) has ended\njob {job}: cancelled\n"
    desk.wait_until_processes_end()
    with desk.scheduler():
        wait_for(lambda: desk.state(job) == "finished", "the scheduler's record")
        row = desk.store.job(job)
        assert row is not None
        assert row.outcome == "cancelled"
        assert scheduler_pid(desk.data_dir.lock) is not None
    assert desk.state(waiting) == "queued"


def test_stop_with_jobs_cancels_all_jobs_without_a_scheduler(desk: Desk) -> None:
    job = desk.run_job(LONG)
    assert desk.run("stop", "--jobs") == (
        0,
        f"waiting for job {job} to end (SIGKILL after 10 s)\njob {job}: cancelled\n",
        "",
    )
    desk.wait_until_processes_end()
    assert (desk.requests(), desk.state(job)) == ([], "finished")
    nothing = f"no scheduler is running on {desk.data_dir.state_file}\n"
    assert desk.run("stop", "--jobs") == (0, nothing, "")
    assert desk.requests() == []
