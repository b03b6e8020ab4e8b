"""Forgetting the history with --fresh: removed and kept data, atomicity, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_scheduler.attempts.folder import observe, request_stop
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.daemon import restore
from gpu_scheduler.daemon.service import count_jobs_to_forget
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import jobs_files
from gpu_scheduler.store import new_store as forget
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.new_store import forgetting_jobs
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.state_file import requested_pauses
from gpu_scheduler.store.store import Store
from tests import changes
from tests.cli.desk import Desk
from tests.processes import sweep
from tests.waiting import wait_for

LONG = "echo up; while :; do sleep 0.02; done"
ROOT = Path(__file__).parents[2]


def finish_attempt(desk: Desk, job: int, attempt: int) -> None:
    desk.record(
        changes.end(attempt, Outcome.COMPLETED),
        *changes.leave(attempt),
    )


def fill_store(desk: Desk) -> tuple[int, int]:
    """Inserts a finished job, with its attempt folder and its line, and a queued job. Returns their ids."""
    done, waits = desk.job(), desk.job("echo later")
    row = desk.attempt(done)
    desk.folder(row).mkdir(parents=True)
    (desk.folder(row) / "spec.json").write_text("{}")
    finish_attempt(desk, done, row.id)
    store = desk.store
    jobs_files.working_folder(store, "/x/jobs.txt", "/x")
    with store.db.transaction() as db:
        db.execute(
            "INSERT INTO line (path, position, number, text, job_id) VALUES ('/x/jobs.txt', 0, 1, 'a', ?)",
            (done,),
        )
        db.execute(
            "INSERT INTO measurement (workload_class, at, gpu_count, peak_mib, outcome)"
            " VALUES ('[]', 0, 1, 9, 'completed')"
        )
        db.execute("INSERT INTO run_time (workload_class, identity, at, seconds) VALUES ('[]', 'a', 0, 9)")
    never = WaitReason(WaitKind.TOO_FEW_GPUS, need=Need(9, 1000))
    job = store.job(waits)
    assert job is not None
    desk.record(act.SetWaitReason(job.spec_key, never))
    add_request(store, "retry", str(done))
    return done, waits


def count(store: Store, table: str) -> int:
    row = store.db.row(f"SELECT count(*) AS n FROM {table}")
    assert row is not None
    return int(row["n"])


CLEARED_TABLES = ("job", "attempt", "allocation", "line", "pending_group", "job_count")


def test_fresh_forgets_jobs_and_keeps_facts_about_the_machine(desk: Desk) -> None:
    _, waits = fill_store(desk)
    desk.record(changes.pause("SIM-0"))
    store = desk.store
    add_request(store, "resume", "SIM-0")
    add_request(store, "pause", "SIM-1")
    add_request(store, "stop")
    gpus = store.gpus()
    for name in ("journal.jsonl", "journal.jsonl.1", "status.txt"):
        (desk.data_dir.folder / name).write_text("x\n")
    with forgetting_jobs(store) as jobs:
        assert jobs == 2
    assert [table for table in CLEARED_TABLES if count(store, table)] == []
    assert store.gpus() == gpus
    assert requested_pauses(store) == {"SIM-0": False, "SIM-1": True}
    assert desk.requests() == [("resume", "SIM-0"), ("pause", "SIM-1")]
    assert (count(store, "measurement"), count(store, "run_time")) == (1, 1)
    assert state_counts(store) == {}
    assert list(desk.data_dir.runs.iterdir()) == []
    assert {path.name for path in desk.data_dir.folder.iterdir()}.isdisjoint(
        {"journal.jsonl", "journal.jsonl.1"}
    )
    assert (desk.data_dir.folder / "status.txt").exists()
    assert store.db.rows("PRAGMA foreign_key_check") == []
    # Ids are never reused, and new jobs get the next queue positions.
    again = desk.job()
    assert again == waits + 1
    assert state_counts(store) == {"queued": 1}
    assert jobs_files.working_folder(store, "/x/jobs.txt", "/elsewhere") == "/x"


def test_event_ids_continue_and_an_event_records_the_fresh_start(desk: Desk) -> None:
    fill_store(desk)
    store = desk.store
    newest = store.db.row("SELECT max(id) AS n FROM event")
    assert newest is not None
    with forgetting_jobs(store):
        pass
    (row,) = store.db.rows("SELECT id AS number, * FROM event")
    assert (row["number"], row["kind"], row["job_id"]) == (newest["n"] + 1, "forgotten", 0)
    assert json.loads(row["data"]) == {"jobs": 2}


def test_fresh_on_an_empty_store_changes_nothing(desk: Desk) -> None:
    with forgetting_jobs(desk.store) as jobs:
        assert jobs == 0
    assert count(desk.store, "event") == 0


def test_a_failed_fresh_start_forgets_no_jobs(desk: Desk) -> None:
    done, _ = fill_store(desk)
    before = {table: count(desk.store, table) for table in (*CLEARED_TABLES, "event", "request")}
    with pytest.raises(SchedulerError, match="2 jobs, 0 left"), forgetting_jobs(desk.store) as jobs:
        raise SchedulerError(f"{jobs} jobs, {count(desk.store, 'job')} left")
    assert {table: count(desk.store, table) for table in before} == before
    assert [path.name for path in desk.data_dir.runs.iterdir()] == [str(done)]


def test_a_killed_fresh_start_forgets_no_jobs(desk: Desk) -> None:
    done, _ = fill_store(desk)
    program = (
        "import os, sys\n"
        "from gpu_scheduler.store.new_store import forgetting_jobs\n"
        "from gpu_scheduler.store.data_dir import DataDir\n"
        "from gpu_scheduler.store.store import Store\n"
        "with forgetting_jobs(Store(DataDir.of(sys.argv[1]))) as jobs:\n"
        "    os._exit(jobs)\n"
    )
    code = subprocess.run(
        [sys.executable, "-c", program, str(desk.data_dir.state_file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=60,
    ).returncode  # fmt: skip
    assert code == 2
    with closing(Store(desk.data_dir)) as store:
        assert count(store, "job") == 2
        assert count(store, "line") == 1
    assert [path.name for path in desk.data_dir.runs.iterdir()] == [str(done)]


def test_the_next_fresh_start_removes_folders_left_by_a_crash(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = fill_store(desk)

    def crash(home: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forget, "_remove_folders", crash)
        with pytest.raises(KeyboardInterrupt), forgetting_jobs(desk.store):
            pass
    assert count(desk.store, "job") == 0
    assert [path.name for path in desk.data_dir.runs.iterdir()] == [str(done)]
    with forgetting_jobs(desk.store) as jobs:
        assert jobs == 0
    assert list(desk.data_dir.runs.iterdir()) == []


def test_a_folder_that_cannot_be_removed_is_only_reported(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    fill_store(desk)
    (desk.data_dir.runs / "a file").touch()
    with caplog.at_level("WARNING"), forgetting_jobs(desk.store):
        pass
    assert "a file, which belongs to a forgotten job; the next" in caplog.text
    assert count(desk.store, "job") == 0
    (desk.data_dir.runs / "a file").unlink()
    (desk.data_dir.folder / "journal.jsonl").mkdir()
    with caplog.at_level("WARNING"), forgetting_jobs(desk.store):
        pass
    assert "journal.jsonl, which belongs to a forgotten job; the next" in caplog.text


@pytest.mark.parametrize("is_recorded", [True, False])
def test_fresh_is_refused_while_a_job_runs_and_accepted_after_its_end(desk: Desk, is_recorded: bool) -> None:
    job = desk.run_job(LONG)
    for take in (False, True):
        with pytest.raises(
            SchedulerError, match=rf"job {job} is active[^\n]*\n`stop --jobs` ends"
        ) as refused:
            restore.refuse_active(desk.store, void_claims=take)
    assert refused.value.exit_code == 1
    with pytest.raises(SchedulerError, match="is active"):
        count_jobs_to_forget(desk.data_dir)
    with pytest.raises(SchedulerError, match="is active"), restore.jobs_forgotten(desk.store):
        pass
    assert desk.state(job) == "running"
    if is_recorded:
        assert desk.run("stop", "--jobs")[0] == 0
    else:
        [row] = desk.store.attempts(job)
        request_stop(desk.folder(row), row.token, StopRequest("cancelled", 1.0), row.runner)
        desk.wait_until_processes_end()
    assert desk.state(job) == ("finished" if is_recorded else "running")
    assert count_jobs_to_forget(desk.data_dir) == 1
    with restore.jobs_forgotten(desk.store):
        assert count(desk.store, "job") == 0


def test_fresh_does_not_wait_for_running_jobs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise AssertionError("it waits for a job that may run for days")

    job = desk.run_job(LONG)
    with monkeypatch.context() as patch:
        patch.setattr(restore, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        with pytest.raises(SchedulerError, match=f"job {job} is active"):
            restore.refuse_active(desk.store)


def test_fresh_names_several_active_jobs(desk: Desk) -> None:
    first, second = desk.run_job(LONG), desk.run_job(LONG)
    with pytest.raises(SchedulerError, match=f"^jobs {first}, {second} are active; --fresh forgets nothing"):
        restore.refuse_active(desk.store)


def test_fresh_is_refused_while_a_process_of_an_ended_job_is_left(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "RUNNER_EXIT_S", 0.1)
    job = desk.job()
    row = desk.attempt(job)
    desk.record(changes.end(row.id, Outcome.COMPLETED))
    restore.refuse_active(desk.store)
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, "GPU_SCHEDULER_TOKEN": row.token})
    try:
        with pytest.raises(SchedulerError, match=f"job {job} is active"):
            restore.refuse_active(desk.store)
        monkeypatch.setattr(restore, "RUNNER_EXIT_S", 20.0)
        monkeypatch.setattr(time, "sleep", lambda _s: left.kill())  # the process ends during the check
        restore.refuse_active(desk.store)
    finally:
        left.kill()
        left.wait()


def test_fresh_voids_the_claim_of_an_attempt_that_no_runner_has_claimed(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    assert count_jobs_to_forget(desk.data_dir) == 1
    assert observe(desk.folder(row), row.token).claim == "none"
    restore.refuse_active(desk.store, void_claims=True)
    assert observe(desk.folder(row), row.token).claim == "void"
    assert desk.state(job) == "starting"


def test_a_killed_runner_does_not_block_a_fresh_start_once_its_command_has_ended(desk: Desk) -> None:
    job = desk.run_job(LONG)
    token = list(desk.folders)[-1]
    (row,) = desk.store.active_attempts()
    runner = observe(desk.folder(row), token).pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: observe(desk.folder(row), token).claim == "dead", "the runner's end")
    assert not sweep(desk.folder(row), token, 0.0)
    assert observe(desk.folder(row), token).result is None
    restore.refuse_active(desk.store, void_claims=True)
    assert desk.state(job) == "running"


def test_fresh_does_not_void_the_claim_of_an_ended_attempt(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    desk.record(changes.end(row.id, Outcome.FAILED))
    restore.refuse_active(desk.store, void_claims=True)
    assert not desk.folder(row).exists()


def test_fresh_is_refused_if_an_attempt_folder_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    row = desk.attempt(desk.job())
    monkeypatch.setattr(restore, "observe", fail)
    with pytest.raises(SchedulerError) as refused:
        count_jobs_to_forget(desk.data_dir)
    assert str(refused.value) == f"{desk.folder(row)}: Permission denied; no job was forgotten"


def test_logs_the_number_of_forgotten_jobs_after_forgetting_them(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    fill_store(desk)
    with caplog.at_level("INFO"):
        with restore.jobs_forgotten(desk.store):
            assert caplog.messages == []
        assert caplog.messages == ["forgot 2 jobs"]


def test_attempts_from_before_a_reboot_do_not_block_a_fresh_start(desk: Desk) -> None:
    row = desk.attempt(desk.job())
    with desk.store.db.transaction() as db:
        db.execute("UPDATE attempt SET boot_id = 'another'")
    restore.refuse_active(desk.store, void_claims=True)
    assert not desk.folder(row).exists()


def test_fresh_without_a_store_creates_nothing(desk: Desk) -> None:
    assert count_jobs_to_forget(desk.data_dir) == 0
    assert list(desk.path.iterdir()) == []


def test_fresh_is_refused_while_a_scheduler_runs(desk: Desk) -> None:
    desk.job()
    with desk.scheduler() as pid, pytest.raises(SchedulerError) as refused:
        count_jobs_to_forget(desk.data_dir)
    assert f"(pid {pid}); end it with `stop`" in str(refused.value)
    assert count_jobs_to_forget(desk.data_dir) == 1
