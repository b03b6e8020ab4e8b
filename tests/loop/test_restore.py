"""Tests that `start` refuses, forgets or restores a lost store, with real databases, folders and runners."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import AttemptRef, observe
from gpu_scheduler.config import StartOptions
from gpu_scheduler.daemon.restore import jobs_forgotten, open_store, refuse_unrecorded
from gpu_scheduler.daemon.service import count_jobs_to_forget
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.store import backups, moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.inspection import inspect_store
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.new_store import forgetting_jobs
from gpu_scheduler.store.requests import add_request, open_requests
from gpu_scheduler.store.store import Store
from tests.loop.rig import SETTINGS, Rig
from tests.processes import exists, is_zombie, sweep
from tests.reasons import words
from tests.waiting import wait_for

#: A command that runs until the file `go` exists.
LONG = "echo $$ >> trace; while [ ! -e go ]; do sleep 0.02; done; echo end >> trace"


class Quick(DirectExecutor):
    """Starts a real runner only for commands that contain `while`.

    For others, writes the files of an ended attempt.
    """

    def launch(self, attempt: AttemptRef) -> None:
        folder = attempt.folder
        spec = json.loads((folder / "spec.json").read_text())
        job = spec["origin"]["spec"]
        if "while" in job.get("command", ""):
            super().launch(attempt)
            return
        words = ["bash", "-c", job["command"]] if "command" in job else [sys.executable, "-IS", job["script"]]
        code = subprocess.run([*words, *job.get("arguments", ())], cwd=spec["cwd"], check=False).returncode
        claim = {
            "token": spec["token"],
            "boot_id": spec["boot_id"],
            "pid": 0,
            "start_ticks": 0,
            "session": None,
        }
        (folder / "claim").write_text(json.dumps({**claim, "log": spec["log"]}))
        end: dict[str, object] = {
            "cause": None,
            "exit_code": code,
            "signal": None,
            "began": True,
            "message": None,
            "survivors": [],
        }
        at = time.time()
        (folder / "result").write_text(json.dumps({**end, **claim, "started_at": at - 1, "ended_at": at}))


class RestoredStore:
    """A folder with a scheduler. The test loses the store of this scheduler and opens it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = DataDir.of(str(folder / "state.json"))
        self.rig = Rig(folder, executor=Quick())
        self.folders: dict[str, Path] = {}

    def running(self, command: str = LONG, **values: object) -> int:
        job = self.rig.add_job(command, **values)
        self.rig.runner_pid(job)
        return job

    def ended(self, command: str, **values: object) -> int:
        job = self.rig.add_job(command, **values)
        self.rig.tick_until(lambda: self.rig.job(job).state == "finished", f"end of job {job}")
        return job

    def folder_of(self, job: int) -> Path:
        return self.rig.attempt_folder(job)

    def backup(self) -> None:
        backups.make_backup(self.rig.store.db.connection, self.data_dir)

    def close(self) -> None:
        """Simulates a kill of the scheduler: closes its store, and makes its executor forget its children."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # The store is already closed.
            for (attempt_id,) in self.rig.store.db.rows("SELECT id FROM attempt"):
                attempt = self.rig.store.attempt(attempt_id)
                assert attempt is not None
                self.folders[attempt.token] = self.data_dir.attempt_folder(attempt)
        self.rig.store.close()

    def lose(self) -> None:
        self.close()
        for path in self.folder.glob("state.d/scheduler.db*"):
            path.unlink()

    def start(self, **options: Any) -> Store:
        options = {
            **asdict(SETTINGS),
            "state_file": str(self.data_dir.state_file),
            "jobs_file": "",
            **options,
        }
        return open_store(self.data_dir, StartOptions(**options))

    def restore(self, **options: Any) -> None:
        """Restores the store as `start --restore` does, and continues with a new scheduler."""
        self.start(restore=True, **options).close()
        self.rig = Rig(self.folder, executor=Quick())

    def trace(self) -> list[str]:
        path = self.folder / "trace"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestoredStore]:
    monkeypatch.setattr(logging.getLogger("gpu_scheduler"), "propagate", True)
    one = RestoredStore(tmp_path)
    yield one
    (tmp_path / "go").touch()
    one.close()
    for token, folder in one.folders.items():
        sweep(folder, token, 0.0)


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    names = ("job", "attempt", "line")
    return {name: [tuple(row) for row in store.db.rows(f"SELECT * FROM {name}")] for name in names}


def test_start_refuses_a_lost_store_and_names_the_running_jobs(desk: RestoredStore) -> None:
    desk.ended("exit 3")
    lives = desk.running()
    wait_for(desk.trace, "the job's line in the trace")
    pid = observe(desk.folder_of(lives), desk.rig.store.attempts(lives)[0].token).pid
    desk.lose()
    database = desk.data_dir.database
    other = desk.folder / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE other (a)")
    for content, problem in (
        (None, "is missing"),
        (b"", "is empty"),
        (other.read_bytes(), "is empty"),
        (b"this is no database" * 500, "is damaged: file is not a database"),
    ):
        if content is not None:
            database.write_bytes(content)
        with pytest.raises(SchedulerError) as refused:
            desk.start()
        head, lives_on, ways = str(refused.value).split("\n")
        damaged = f"{database} {problem}"
        assert head == f"2 attempt folders in {desk.data_dir.runs} are missing from the store: {damaged}"
        assert lives_on == f"job {lives} is still running (pid {pid}); `start` does not signal it"
        assert "`start --restore` continues from these folders alone, because there is no backup;" in ways
        assert "`start --fresh` forgets all jobs, but only when none of them is running" in ways
        assert (database.read_bytes() if database.exists() else None) == content
        for refuse in (
            lambda: refuse_unrecorded(inspect_store(desk.data_dir)),
            lambda: count_jobs_to_forget(desk.data_dir),
        ):
            with pytest.raises(SchedulerError, match=f"job {lives} is active; --fresh forgets nothing"):
                refuse()
    assert len(desk.trace()) == 1
    os.kill(int(desk.trace()[0]), 0)


def test_read_only_commands_report_that_the_store_is_lost(desk: RestoredStore) -> None:
    desk.ended("true")
    desk.lose()
    for content in (None, b""):
        if content is not None:
            desk.data_dir.database.write_bytes(content)
        with pytest.raises(
            SchedulerError, match=r"was lost: scheduler\.db is missing or empty; `start` reports"
        ):
            Store(desk.data_dir)
    assert not desk.data_dir.database.read_bytes(), "a reader must not create a store"


def test_restores_a_store_from_the_attempt_folders_alone(desk: RestoredStore) -> None:
    completed, failed = desk.ended("true"), desk.ended("exit 3", name="bert", share=500, priority=7)
    killed, lives = desk.running(), desk.running()
    runner = desk.rig.runner_pid(killed)
    wait_for(lambda: len(desk.trace()) == 2, "both jobs' lines in the trace")
    never = desk.rig.add_job("echo never >> trace")
    before = {row["id"]: row for row in desk.rig.store.db.rows("SELECT * FROM job")}
    [lost] = desk.rig.store.attempts(lives)
    [attempt] = desk.rig.store.attempts(killed)
    desk.lose()
    os.kill(runner, signal.SIGKILL)
    sweep(desk.data_dir.attempt_folder(attempt), attempt.token, 0.0)

    desk.restore()
    rows = {row["id"]: row for row in desk.rig.store.db.rows("SELECT * FROM job")}
    assert set(rows) == set(before) - {never}
    for name in ("text", "spec", "identity", "spec_key", "priority", "name", "source"):
        assert {job: row[name] for job, row in rows.items()} == {job: before[job][name] for job in rows}
    ended = [
        tuple(rows[job][name] for name in ("state", "outcome", "exit_code")) for job in (completed, failed)
    ]
    assert ended == [("finished", "completed", 0), ("finished", "failed", 3)]
    assert rows[lives]["state"] == "running"
    assert rows[killed]["state"] == "held"
    assert words(rows[killed]["reason"]) == f"its runner was killed; `retry {killed}` runs it again"
    [attempt] = desk.rig.store.attempts(lives)
    for name in ("number", "token", "boot_id", "allocations", "log", "created_at"):
        assert getattr(attempt, name) == getattr(lost, name), name
    assert {row.job_id for row in desk.rig.store.active_attempts()} == {lives}
    (desk.folder / "go").touch()
    assert desk.rig.tick_until_ended(lives).outcome == "completed"
    assert desk.trace().count("end") == 1
    assert desk.rig.add_job("true") == lives + 1


def test_restore_holds_a_job_whose_attempt_had_not_begun(
    desk: RestoredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.rig.executor, "launch", lambda folder: None)
    job = desk.rig.add_job(LONG)
    desk.rig.tick()
    folder, token = desk.folder_of(job), desk.rig.store.attempts(job)[0].token
    desk.lose()
    desk.restore()
    row = desk.rig.job(job)
    assert (row.state, row.outcome) == ("held", None)
    assert words(row.reason) == f"it had not begun when the store was lost; `retry {job}` runs it"
    assert observe(folder, token).claim == "void"
    add_request(desk.rig.store, "requeue", str(job))
    (desk.folder / "go").touch()
    assert desk.rig.tick_until_ended(job).outcome == "completed"
    assert [row.number for row in desk.rig.store.attempts(job)] == [1, 2]


def test_restore_adds_the_attempts_found_in_folders_to_those_in_a_backup(
    desk: RestoredStore, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ended("true")
    waits = desk.rig.add_job("echo waited >> trace")
    desk.backup()
    desk.rig.tick_until(lambda: desk.rig.job(waits).state == "finished", "the end of the job")
    new = desk.running()
    desk.lose()
    with pytest.raises(
        SchedulerError,
        match=f"`start --restore` continues from the backup of 20.* in {desk.data_dir.backups}",
    ):
        desk.start()
    desk.restore()
    assert desk.rig.job(waits).outcome == "completed"
    desk.rig.tick()
    assert desk.rig.job(new).state == "running"
    assert desk.trace().count("waited") == 1
    assert f"restored from {desk.data_dir.backups}/scheduler-1.db" in caplog.text
    assert f"2 attempts were added to the store from their folders: jobs {waits}, {new}" in caplog.text
    assert moved_or_copied.original_of_copy(desk.rig.store) is None


def test_start_refuses_an_older_database_and_restores_the_newest_backup(desk: RestoredStore) -> None:
    first = desk.ended("true")
    desk.backup()
    desk.ended("true")
    cancelled = desk.rig.add_job("true", hold=True)
    desk.backup()
    desk.lose()
    shutil.copyfile(desk.data_dir.backups / "scheduler-1.db", desk.data_dir.database)
    with pytest.raises(
        SchedulerError,
        match=r"1 attempt folder in .*/runs is missing from the store: .*/scheduler\.db is older than this",
    ):
        desk.start()
    desk.restore()
    assert desk.rig.job(cancelled).state == "held", "the second backup contains the job"
    [aside] = [path for path in desk.data_dir.folder.glob("scheduler.db.lost-*") if path.name[-1].isdigit()]
    assert backups.highest_ids(aside).jobs == first
    desk.close()
    desk.start().close()
    desk.rig = Rig(desk.folder, executor=Quick())


def test_restore_skips_a_damaged_backup_and_keeps_a_copy_of_the_damaged_database(
    desk: RestoredStore, caplog: pytest.LogCaptureFixture
) -> None:
    job = desk.ended("true")
    for _ in range(2):
        desk.backup()
    desk.close()
    damage = b"x" * desk.data_dir.database.stat().st_size
    desk.data_dir.database.write_bytes(damage)
    (desk.data_dir.backups / "scheduler-2.db").write_bytes(damage)
    desk.restore()
    assert desk.rig.job(job).outcome == "completed"
    assert "scheduler-2.db is damaged: file is not a database; it is skipped" in caplog.text
    assert f"restored from {desk.data_dir.backups}/scheduler-1.db" in caplog.text
    [aside] = desk.data_dir.folder.glob("scheduler.db.lost-*[0-9]")
    assert aside.read_bytes() == damage


def test_start_refuses_a_missing_store_of_which_only_a_backup_is_left(desk: RestoredStore) -> None:
    desk.rig.add_job("true", hold=True)
    desk.backup()
    desk.lose()
    with pytest.raises(
        SchedulerError, match=r"the store was lost: .*scheduler\.db is missing\n`start --restore`"
    ):
        desk.start()
    desk.restore()
    assert state_counts(desk.rig.store) == {"held": 1}


def test_restoring_an_intact_store_changes_nothing(
    desk: RestoredStore, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ended("true")
    desk.backup()
    desk.rig.add_job("true", hold=True)
    before = tables(desk.rig.store)
    desk.close()
    with caplog.at_level("INFO"):
        desk.restore()
    assert tables(desk.rig.store) == before
    assert "the store is intact and contains every attempt; nothing is restored" in caplog.text


def test_the_last_attempt_decides_the_outcome_of_a_restored_job(desk: RestoredStore) -> None:
    desk.backup()
    job = desk.ended("[ -e again ] || exit 3")
    (desk.folder / "again").touch()
    add_request(desk.rig.store, "requeue", str(job))
    desk.rig.tick_until(lambda: desk.rig.job(job).outcome == "completed", "the second attempt")
    desk.lose()
    desk.restore()
    assert desk.rig.job(job).outcome == "completed"
    assert [row.outcome for row in desk.rig.store.attempts(job)] == ["failed", "completed"]


def test_restore_finishes_an_attempt_that_was_open_in_the_backup(desk: RestoredStore) -> None:
    job = desk.running("while [ ! -e go ]; do sleep 0.02; done; [ -e again ] || exit 3")
    desk.backup()
    (desk.folder / "go").touch()
    desk.rig.tick_until_ended(job)
    (desk.folder / "again").touch()
    add_request(desk.rig.store, "requeue", str(job))
    desk.rig.tick_until(lambda: desk.rig.job(job).outcome == "completed", "the second attempt")
    desk.lose()
    desk.restore()
    assert [row.outcome for row in desk.rig.store.attempts(job)] == ["failed", "completed"]
    assert (desk.rig.job(job).state, desk.rig.job(job).outcome) == ("finished", "completed")
    assert desk.rig.store.active_attempts() == []


def test_restore_does_not_retry_a_failed_job(desk: RestoredStore) -> None:
    job = desk.rig.add_job("exit 3", fail_retries=0)
    desk.rig.tick_until_ended(job)
    [folder] = backups.list_attempt_folders(desk.data_dir)
    spec = json.loads((folder.path / "spec.json").read_text())
    spec["origin"]["spec"]["fail_retries"] = 5
    (folder.path / "spec.json").write_text(json.dumps(spec))
    desk.lose()
    desk.restore()
    assert (desk.rig.job(job).state, desk.rig.job(job).outcome) == ("finished", "failed")


def lines_of(desk: RestoredStore, *, ends: bool = True) -> Callable[[float], JobsFileWatcher]:
    """Returns a function that reads jobs.txt with a new watcher, at a given time and until 20 s later."""

    def look(now: float) -> JobsFileWatcher:
        watch = JobsFileWatcher(desk.rig.store, str(desk.folder / "jobs.txt"), None)
        for at in (now, now + 3, now + 20):
            watch.check(at)
        return watch

    return look


@pytest.mark.parametrize("backed_up", [0, 2, 3])
def test_lines_of_restored_attempts_do_not_run_again(
    desk: RestoredStore, backed_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.folder)
    (desk.folder / "s.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    lines = ["echo a >> trace", "[name=b] echo a >> trace", "1,s.py,,3", "1,s.py,,0", f"[hold] {LONG}"]
    look = lines_of(desk)
    (desk.folder / "jobs.txt").write_text("".join(f"{line}\n" for line in lines[:backed_up]))
    look(0)
    if backed_up:
        desk.backup()
    (desk.folder / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
    look(100)
    desk.rig.tick_until(
        lambda: state_counts(desk.rig.store) == {"finished": 4, "held": 1},
        "the ends of all jobs but the held one",
    )
    desk.lose()
    monkeypatch.chdir("/")  # Lines keep the working folder in which they were first read.
    desk.restore(jobs_file=str(desk.folder / "jobs.txt"))
    for again in range(2):
        lines_of(desk)(200 + 100 * again)
        desk.rig.tick()
    assert desk.trace() == ["a", "a"]
    assert len(desk.rig.store.db.rows("SELECT 1 FROM attempt")) == 4
    assert open_requests(desk.rig.store) == []
    assert state_counts(desk.rig.store) == {"finished": 4, "held": 1}, (
        "the line whose job never began has a new job"
    )
    outcomes = [row["outcome"] for row in desk.rig.store.db.rows("SELECT outcome FROM job ORDER BY id")]
    assert outcomes == ["completed", "completed", "failed", "completed", None]
    with open(desk.folder / "jobs.txt", "a") as file:
        file.write("echo a >> trace\n")
    lines_of(desk)(500)
    desk.rig.tick_until(lambda: desk.trace() == ["a", "a", "a"], "a line that is appended afterwards")


def test_restore_refuses_attempt_folders_that_do_not_record_the_lines_of_their_jobs(
    desk: RestoredStore,
) -> None:
    job = desk.ended("true")
    [folder] = backups.list_attempt_folders(desk.data_dir)
    spec = json.loads((folder.path / "spec.json").read_text())
    del spec["origin"]
    (folder.path / "spec.json").write_text(json.dumps(spec))
    desk.lose()
    with pytest.raises(SchedulerError, match=f"folders of job {job} in .* do not show which lines they ran"):
        desk.start(restore=True, jobs_file="jobs.txt")
    desk.restore()
    assert desk.rig.job(job).outcome == "completed"
    assert desk.rig.job(job).text == f"bash {folder.path}/command.sh"


def test_a_fresh_start_does_not_reuse_job_ids(desk: RestoredStore) -> None:
    job = desk.ended("true")
    desk.lose()
    store = desk.start(fresh=True)
    with jobs_forgotten(store):
        pass
    store.close()
    assert list(desk.data_dir.runs.iterdir()) == []
    desk.rig = Rig(desk.folder, executor=Quick())
    assert desk.rig.add_job("true") == job + 1


def test_a_lost_store_still_counts_as_lost_after_a_failed_fresh_start(desk: RestoredStore) -> None:
    job = desk.ended("true")
    desk.lose()
    store = desk.start(fresh=True)
    with pytest.raises(SchedulerError, match="a later check"), jobs_forgotten(store):
        raise SchedulerError("a later check")
    store.close()
    with pytest.raises(SchedulerError, match=r"1 attempt folder in .* is missing from the store"):
        desk.start()
    desk.restore()
    assert desk.rig.job(job).outcome == "completed"


def test_a_running_job_without_a_claim_continues_after_a_restore(desk: RestoredStore) -> None:
    job, killed = desk.running(), desk.running()
    wait_for(lambda: len(desk.trace()) == 2, "both jobs' lines in the trace")
    runner, folder = desk.rig.runner_pid(killed), desk.folder_of(killed)
    token = desk.rig.store.attempts(killed)[0].token
    for one in (desk.folder_of(job), folder):
        (one / "claim").unlink()
    desk.lose()
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not exists(runner) or is_zombie(runner), "the runner has ended")
    sweep(folder, token, 0.0)
    desk.restore()
    assert desk.rig.job(job).state == "running"
    assert [row.job_id for row in desk.rig.store.active_attempts()] == [job], "the job keeps its GPUs"
    row = desk.rig.job(killed)
    assert row.state == "held"
    assert words(row.reason) == f"its runner was killed; `retry {killed}` runs it again"
    desk.rig.tick()
    assert desk.rig.job(job).state == "running"
    (desk.folder / "go").touch()
    assert desk.rig.tick_until_ended(job).outcome == "completed"
    assert desk.trace().count("end") == 1


def test_an_empty_attempt_folder_does_not_prevent_the_next_start(desk: RestoredStore) -> None:
    held = desk.rig.add_job("true", hold=True)
    desk.backup()
    (desk.data_dir.runs / str(held) / "1-0123abcd").mkdir(parents=True)
    desk.lose()
    desk.restore()
    desk.close()
    desk.start().close()
    desk.rig = Rig(desk.folder, executor=Quick())
    assert desk.rig.job(held).state == "held"


def test_restore_names_a_folder_whose_attempt_cannot_be_identified(desk: RestoredStore) -> None:
    desk.ended("true")
    [folder] = backups.list_attempt_folders(desk.data_dir)
    desk.lose()
    kept = {name: (folder.path / name).read_bytes() for name in ("spec.json", "claim", "result")}
    for name in kept:
        (folder.path / name).unlink()
    (folder.path / "command.pid").touch()
    with pytest.raises(SchedulerError, match=f"cannot identify the attempt of {folder.path}"):
        desk.start(restore=True)
    folder.path.rename(desk.folder / "moved away")
    desk.restore()
    assert state_counts(desk.rig.store) == {}


@pytest.mark.parametrize("backed_up", [False, True])
def test_restore_replaces_a_database_copied_from_another_folder(desk: RestoredStore, backed_up: bool) -> None:
    moved_or_copied.adopt_folder(desk.rig.store)
    ended = desk.ended("true")
    if backed_up:
        desk.backup()
    lives = desk.running()
    (desk.folder / "other").mkdir()
    other = Rig(desk.folder / "other", executor=Quick())
    moved_or_copied.adopt_folder(other.store)
    for _ in range(3):
        other.tick_until_ended(other.add_job("exit 3"))
    other.store.close()
    desk.lose()
    shutil.copyfile(other.store.data_dir.database, desk.data_dir.database)
    with pytest.raises(SchedulerError) as refused:
        desk.start()
    assert f"{desk.data_dir.database} belongs to the data directory {other.store.data_dir.folder}" in str(
        refused.value
    )
    assert f"job {lives} is still running" in str(refused.value)
    desk.restore()
    assert desk.rig.job(ended).outcome == "completed"
    assert {row.job_id for row in desk.rig.store.active_attempts()} == {lives}
    assert moved_or_copied.original_of_copy(desk.rig.store) is None
    desk.rig.tick()
    assert desk.rig.job(lives).state == "running"


def test_attempt_folders_left_by_a_fresh_start_do_not_prevent_a_start(desk: RestoredStore) -> None:
    desk.ended("true")
    shutil.copytree(desk.data_dir.runs, desk.folder / "kept")
    with forgetting_jobs(desk.rig.store):
        pass
    shutil.copytree(desk.folder / "kept", desk.data_dir.runs, dirs_exist_ok=True)
    (desk.data_dir.runs / "a file").touch()
    desk.close()
    with contextlib.closing(desk.start()) as store:
        assert state_counts(store) == {}  # The user has asked to forget these jobs.
    desk.rig = Rig(desk.folder, executor=Quick())


def test_a_copied_data_directory_counts_as_a_copy_even_without_its_database(desk: RestoredStore) -> None:
    moved_or_copied.adopt_folder(desk.rig.store)
    job = desk.running()
    desk.close()
    copy = desk.folder / "copy"
    copy.mkdir()
    shutil.copytree(desk.data_dir.folder, copy / "state.d", ignore=shutil.ignore_patterns("scheduler.db*"))
    data_dir = DataDir.of(str(copy / "state.json"))
    with pytest.raises(SchedulerError, match=f"job {job} is still running"):
        open_store(data_dir, StartOptions())
    store = open_store(data_dir, StartOptions(restore=True, jobs_file=""))
    assert moved_or_copied.original_of_copy(store) == str(desk.data_dir.folder)
    store.close()
    desk.rig = Rig(desk.folder, executor=Quick())
    desk.rig.tick()
    assert desk.rig.job(job).state == "running"


def test_unreadable_folders_do_not_prevent_a_start_on_an_intact_store(
    desk: RestoredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = desk.rig.add_job("true", hold=True)
    desk.backup()
    folder = desk.data_dir.runs / str(held)
    folder.mkdir()
    desk.close()
    listdir, scandir = os.listdir, os.scandir

    def refuse(listed: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(path: Any) -> Any:
            if str(path) in (str(folder), str(desk.data_dir.backups)):
                raise PermissionError(13, "Permission denied", str(path))
            return listed(path)

        return call

    monkeypatch.setattr(os, "listdir", refuse(listdir))
    monkeypatch.setattr(os, "scandir", refuse(scandir))
    desk.start().close()
    for options in ({"restore": True}, {"fresh": True}):
        with pytest.raises(SchedulerError, match="Permission denied; check its permissions"):
            desk.start(**options)
    monkeypatch.undo()
    desk.rig = Rig(desk.folder, executor=Quick())


def test_start_ignores_the_attempt_folders_of_finished_jobs(desk: RestoredStore) -> None:
    finished = desk.ended("true")
    held = desk.rig.add_job("true", hold=True)
    desk.close()
    for job in (finished, held):
        folder = desk.data_dir.runs / str(job) / "9-0123abcd"
        folder.mkdir(parents=True)
        (folder / "claim").touch()
    assert [one.job_id for one in inspect_store(desk.data_dir, thorough=False).unknown_folders] == [held]
    assert [one.job_id for one in inspect_store(desk.data_dir).unknown_folders] == [finished, held]
