"""Commands without a scheduler: where they may run no rounds, and jobs that their rounds cannot end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.config import StartOptions
from gpu_scheduler.control import requests as control
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.rounds import command
from gpu_scheduler.store.data_dir import Host, write_host
from gpu_scheduler.store.database import newest_schema_version
from tests import changes
from tests.cli.desk import Desk
from tests.processes import has_arguments
from tests.waiting import wait_for

SLEEP = "while :; do sleep 0.02; done"
RECORDED = "recorded; takes effect when the scheduler starts"
Prevent = Callable[[Desk, pytest.MonkeyPatch], None]


def hide_processes(_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes /proc look like that of another pid namespace."""
    monkeypatch.setattr(command, "shows_own_pids", lambda: False)


def move_store(desk: Desk, _monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store look as if it had been moved here from another file system."""
    recorded = {"id": "an-id", "path": str(desk.path / "old" / "gpu_scheduler_state.d")}
    desk.store.db.set_meta("folder", json.dumps(recorded))


def lose_job(desk: Desk, _monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the store lack a job whose attempt folder exists, as an older database that was put back does."""
    folder = desk.data_dir.runs / "99" / "1-0123abcd"
    folder.mkdir(parents=True)
    (folder / "claim").touch()


@pytest.mark.parametrize("prevent", [hide_processes, move_store, lose_job])
def test_a_command_only_records_its_request_where_it_may_run_no_rounds(
    desk: Desk, prevent: Prevent, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, queued = desk.run_job(SLEEP), desk.job()
    prevent(desk, monkeypatch)
    assert desk.run("hold", queued) == (0, f"job {queued}: {RECORDED}\n", "")
    assert desk.run("pause", 1) == (0, f"GPU 1: {RECORDED}\n", "")
    assert desk.run("cancel", running) == (0, f"job {running}: {RECORDED}\n", "")
    code, _, err = desk.run("preempt", running)
    pending = f"job {running} has not ended; the request takes effect when the scheduler starts\n"
    assert (code, err) == (1, f"gpu-scheduler: {pending}")
    code, out, err = desk.run("stop", "--jobs")
    assert (code, err) == (1, "")
    assert out.endswith(f"job {running}: not ended yet; the next `start` ends it\n")
    assert desk.requests() == [
        ("hold", str(queued)),
        ("pause", "SIM-1"),
        ("cancel", str(running)),
        ("preempt", str(running)),
        ("cancel", str(running)),
    ]
    assert (desk.state(running), desk.state(queued)) == ("running", "queued")
    assert processes_of(desk.folders)


def test_a_command_refuses_the_store_of_another_host_and_runs_no_rounds(desk: Desk) -> None:
    running = desk.run_job(SLEEP)
    write_host(desk.data_dir.host_file, Host("gpu-other", "0" * 32))
    code, out, err = desk.run("cancel", running)
    assert (code, out, "belongs to host gpu-other" in err) == (1, "", True)
    assert (desk.requests(), desk.state(running)) == ([], "running")
    assert processes_of(desk.folders)
    desk.data_dir.host_file.unlink()


def test_a_command_refuses_a_store_with_an_older_schema_and_does_not_upgrade_it(desk: Desk) -> None:
    job, older = desk.job(), newest_schema_version() - 1
    desk.store.db.connection.execute(f"PRAGMA user_version = {older}")
    code, out, err = desk.run("hold", job)
    assert (code, out) == (1, "")
    assert "run `start` with this version to upgrade the store" in err
    assert desk.store.db.schema_version == older
    assert (desk.requests(), desk.state(job)) == ([], "queued")


def test_the_rounds_of_a_command_start_no_job(desk: Desk) -> None:
    job, other = desk.job(), desk.job()
    assert desk.run("hold", other)[0] == 0
    assert (desk.state(job), desk.store.attempts(job)) == ("queued", [])


@pytest.mark.parametrize("words", [("cancel", "1", "--grace", "0.2"), ("stop", "--jobs", "--grace", "0.2")])
def test_the_processes_that_a_dead_runner_left_have_ended_when_the_command_returns(
    desk: Desk, words: tuple[str, ...]
) -> None:
    desk.store.record_options(StartOptions(grace_s=0.2))
    job = desk.run_without_runner()
    code, out, err = desk.run(*words)
    assert (code, out.splitlines()[-1], err) == (0, f"job {job}: cancelled", "")
    assert not processes_of(desk.folders)
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.outcome, desk.requests()) == ("finished", Outcome.CANCELLED, [])


def test_a_job_that_ends_by_itself_meanwhile_was_not_cancelled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.run_job("until [ -e go ]; do sleep 0.02; done; exit 7")
    monkeypatch.setattr(DirectExecutor, "request_stop", lambda *_: (desk.path / "go").touch())
    refused = f"gpu-scheduler: job {job} is already finished (failed, exit code 7)\n"
    assert desk.run("cancel", job) == (1, "", refused)
    assert (desk.state(job), desk.requests()) == ("finished", [])


def test_a_cancel_fails_if_the_processes_outlive_its_wait(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.run_without_runner()
    monkeypatch.setattr(control, "GRACE_S", 0.0)
    monkeypatch.setattr(control, "STOP_MARGIN_S", 0.1)
    left = f"job {job}: not ended yet; the next `start` ends it; see `why {job}`\n"
    assert desk.run("cancel", job, "--grace", "0") == (1, left, "")
    assert processes_of(desk.folders)
    assert desk.requests() == [("cancel", str(job))]


def test_a_job_on_a_remote_executor_is_left_to_the_next_start(desk: Desk) -> None:
    job = desk.run_job(SLEEP)
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'elsewhere'")
    left = "not ended yet; the next `start` ends it"
    assert desk.run("cancel", job)[:2] == (1, f"job {job}: {left}; see `why {job}`\n")
    code, out, _ = desk.run("stop", "--jobs")
    assert (code, out.splitlines()[-1]) == (1, f"job {job}: {left}")
    code, _, err = desk.run("preempt", job)
    assert (code, err) == (1, f"gpu-scheduler: job {job} is already being cancelled\n")
    assert (desk.requests(), desk.state(job)) == ([], "running")
    assert processes_of(desk.folders)
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'direct'")


@pytest.fixture
def adopted(desk: Desk) -> Iterator[subprocess.Popen[bytes]]:
    """Adopts a process as job 1, which no runner watches, because no scheduler is running."""
    assert desk.store
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]) as process:
        wait_for(lambda: has_arguments(process.pid))
        assert desk.run("adopt", process.pid, "--gpus", "0")[0] == 0
        yield process
        process.kill()


def test_requests_for_an_adopted_process_that_nobody_watches_stay_open(
    desk: Desk, adopted: subprocess.Popen[bytes]
) -> None:
    left = "job 1: not ended yet; the next `start` ends it; see `why 1`\n"
    assert desk.run("cancel", 1) == (1, left, "")
    code, out, err = desk.run("preempt", 1)
    assert (code, out) == (1, "")
    assert err == "gpu-scheduler: job 1 has not ended; the request takes effect when the scheduler starts\n"
    cannot = "job 1 is an adopted process, which already runs, so it cannot be"
    assert desk.run("hold", 1) == (1, "", f"gpu-scheduler: {cannot} held\n")
    assert desk.run("priority", 1, 5) == (1, "", f"gpu-scheduler: {cannot} changed\n")
    assert desk.run("set", 1, "vram=3G")[::2] == (1, f"gpu-scheduler: {cannot} changed\n")
    # The rounds of other commands do not answer them either.
    assert desk.run("hold", desk.job())[0] == 0
    assert desk.requests() == [("cancel", "1"), ("preempt", "1")]
    assert (desk.state(1), adopted.poll()) == ("queued", None)
    assert desk.run("stop", "--jobs")[0] == 0
    assert adopted.poll() is None


def test_a_refused_retry_names_the_failed_parent_and_queues_nothing(desk: Desk) -> None:
    parent = desk.job()
    child = desk.job_after(parent)
    desk.record(changes.finish(parent, Outcome.FAILED), act.SettleDependencies())
    code, out, err = desk.run("retry", child)
    assert (code, out) == (1, "")
    assert f"job {child} would be skipped, because job {parent} did not complete; run `retry {parent}`" in err
    assert (desk.state(child), desk.requests()) == ("finished", [])
    assert desk.run("retry", child, parent)[0] == 0
    assert [desk.state(job) for job in (parent, child)] == ["queued", "queued"]


def test_the_console_shows_no_log_of_the_rounds(desk: Desk) -> None:
    job, other = desk.run_job(SLEEP), desk.job()
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'elsewhere'")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "hold", str(other)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'direct'")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"job {other}: held\n", "")
    assert desk.state(job) == "running"
