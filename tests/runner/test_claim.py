"""Tests that an attempt's command starts at most once, no matter which process is killed and when."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.attempts.executors import ChildProcesses, DirectExecutor
from gpu_scheduler.attempts.folder import kill_runner, observe, prepare, request_stop, void_claim
from gpu_scheduler.attempts.observe import processes_of, sweep_once
from gpu_scheduler.core.model.job import StopRequest
from gpu_scheduler.runner import process_scan
from gpu_scheduler.runner.folder import START, ResultWriter, boot_id, open_folder, read_spec, start_ticks
from tests.processes import sweep
from tests.runner.attempt import killed_at, patched, wait_for
from tests.runner.conftest import Make


def reap(executor: DirectExecutor, count: int) -> None:
    """Collects the executor's ended runners until at most `count` runners are left."""

    def few() -> bool:
        executor.reap()
        return executor.running <= count

    wait_for(few, f"at most {count} runners")


def test_launching_an_attempt_three_times_starts_its_command_only_once(make: Make) -> None:
    executor = DirectExecutor()
    for _ in range(4):
        attempt = make("echo start >&2; exit 0")
        attempt.prepare()
        for _ in range(3):
            executor.launch(attempt.ref)
        assert attempt.result().exit_code == 0
        reap(executor, 0)
        assert attempt.body() == "start\n"
        left = {path.name for path in attempt.folder.iterdir()}
        assert left == {"spec.json", "command.sh", "command.pid", "claim", "result"}, (
            "runners that lose the race leave no files"
        )


@pytest.mark.parametrize("function", ["os.link", "os.fsync", "os.openpty"])
def test_an_attempt_runs_once_after_a_runner_is_killed_before_its_claim(
    make: Make, tmp_path: Path, function: str
) -> None:
    executor = killed_at(tmp_path, function)
    attempt = make("echo start; exit 4", terminal=True).launch(executor)
    reap(executor, 0)
    assert attempt.status().claim == "none"
    result = attempt.launch().result()
    assert result.exit_code == 4
    assert attempt.body() == "start\n"


def test_an_attempt_whose_runner_was_killed_after_the_claim_never_runs_again(
    make: Make, tmp_path: Path
) -> None:
    executor = killed_at(tmp_path, "os.posix_spawn")
    attempt = make("echo start").launch(executor)
    reap(executor, 0)
    assert attempt.status().claim == "dead"
    again = DirectExecutor()
    attempt.launch(again)
    reap(again, 0)
    assert attempt.status().result is None
    assert attempt.output() == ""


def test_a_killed_runner_counts_as_dead_and_a_sweep_ends_its_processes(make: Make) -> None:
    attempt = make("echo up; (trap '' TERM; while :; do sleep 0.05; done)").launch()
    attempt.until_logged("up")
    assert kill_runner(attempt.folder, attempt.token) is True
    seen = wait_for(lambda: attempt.status().claim == "dead" and attempt.status(), "a dead claim")
    assert seen.result is None
    assert attempt.pids(), "the command keeps running, because its output is a pipe"
    assert sweep(attempt.folder, attempt.token, term_s=0.3, deadline_s=10) == ()
    assert kill_runner(attempt.folder, attempt.token) is False


def test_a_runner_finishes_its_job_even_if_its_folder_is_removed(make: Make, tmp_path: Path) -> None:
    executor = DirectExecutor()
    attempt = make(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 1").launch(executor)
    attempt.until_logged("up")
    shutil.rmtree(attempt.folder)
    (tmp_path / "go").touch()
    reap(executor, 0)
    assert "--- failed: exit code 1" in attempt.output()
    assert not attempt.folder.exists()


def test_a_runner_tries_to_write_the_result_until_it_succeeds(make: Make, tmp_path: Path) -> None:
    patch = f"""
real = os.rename
def fails_while_full(*args, **more):
    if os.path.exists({str(tmp_path / "full")!r}):
        open({str(tmp_path / "tried")!r}, "w").close()
        raise OSError(28, "No space left on device")
    return real(*args, **more)
os.rename = fails_while_full
"""
    (tmp_path / "full").touch()
    attempt = make("exit 3").launch(patched(tmp_path, patch))
    wait_for((tmp_path / "tried").exists, "a failed attempt to write the result")
    assert attempt.status().result is None
    assert attempt.status().claim == "live"
    (tmp_path / "full").unlink()
    assert attempt.result().exit_code == 3


def test_a_runner_killed_before_it_writes_the_result_leaves_no_result(make: Make, tmp_path: Path) -> None:
    executor = killed_at(tmp_path, "os.rename")
    attempt = make("exit 0").launch(executor)
    reap(executor, 0)
    seen = attempt.status()
    assert (seen.claim, seen.result) == ("dead", None)


@pytest.mark.parametrize("text", ["", '{"token": "', "[]"])
def test_a_claim_truncated_by_a_power_failure_is_invalid(make: Make, text: str) -> None:
    attempt = make("echo start")
    attempt.prepare()
    (attempt.folder / "claim").write_text(text)
    seen = attempt.status()
    assert (seen.claim, seen.pid) == ("invalid", None)
    assert seen.damage == f"the file claim is incomplete ({len(text)} bytes)"


def test_a_voided_claim_prevents_the_attempt_from_running(make: Make) -> None:
    attempt = make("echo start")
    assert void_claim(attempt.folder, attempt.token) is True
    assert void_claim(attempt.folder, attempt.token) is True, "the claim is already void"
    executor = DirectExecutor()
    attempt.launch(executor)
    reap(executor, 0)
    assert attempt.status().claim == "void"
    assert attempt.output() == ""


def test_a_live_claim_cannot_be_voided(make: Make) -> None:
    attempt = make("exec sleep 300").launch()
    attempt.until_live()
    assert void_claim(attempt.folder, attempt.token) is False
    assert attempt.status().claim == "live"
    attempt.stop()
    attempt.result()


def test_a_runner_rejects_a_spec_from_another_boot(make: Make) -> None:
    executor = DirectExecutor()
    attempt = make("echo start", boot_id="00000000-0000-0000-0000-000000000000").launch(executor)
    reap(executor, 0)
    assert attempt.status().claim == "none"


def test_prepare_adds_the_missing_files_of_an_attempt_folder(make: Make) -> None:
    attempt = make("exit 6")
    attempt.folder.mkdir(parents=True)
    executor = DirectExecutor()
    with pytest.raises(FileNotFoundError, match=r"spec\.json is missing"):
        read_spec(attempt.folder)
    prepare(attempt.folder, attempt.spec, attempt.command_sh)
    prepare(attempt.folder, attempt.spec, attempt.command_sh)
    executor.launch(attempt.ref)
    assert attempt.result().exit_code == 6


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the paths that are synced, in order, and "" for each file that is renamed."""
    found: list[str] = []
    rename = os.rename

    def record_sync(fd: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{fd}"))

    def record_rename(*args: Any, **folders: Any) -> None:
        found.append("")
        rename(*args, **folders)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    return found


def test_a_power_cut_loses_no_folder_of_a_launched_attempt(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "runs").mkdir()
    prepare(tmp_path / "runs" / "7" / "1-abc", {}, "")
    assert {str(tmp_path / "runs"), str(tmp_path / "runs" / "7")} <= set(synced)


def test_a_power_cut_loses_no_published_result(tmp_path: Path, synced: list[str]) -> None:
    folder = open_folder(str(tmp_path))
    writer = ResultWriter(folder)
    synced.clear()
    assert writer.publish({"exit_code": 7})
    assert synced == [str(tmp_path / f".result.{os.getpid()}"), "", str(tmp_path)]
    os.close(writer._fd)
    os.close(folder)


def test_incomplete_claims_and_results_and_those_with_another_token_are_invalid(tmp_path: Path) -> None:
    (tmp_path / "claim").write_text("")
    (tmp_path / "result").write_text('{"token": "x"')
    seen = observe(tmp_path, "t")
    assert (seen.claim, seen.result) == ("invalid", None)
    assert len(seen.anomalies) == 2
    (tmp_path / "claim").write_text(json.dumps({"token": "other"}))
    assert observe(tmp_path, "t").claim == "invalid"
    (tmp_path / "result").write_text(json.dumps({"token": "other"}))
    assert "wrong token" in observe(tmp_path, "t").anomalies[0]
    assert observe(tmp_path / "none", "t").claim == "none"


def test_the_processes_of_a_runner_started_by_hand_have_its_token(make: Make) -> None:
    attempt = make("exec sleep 300")
    attempt.prepare()
    pid = ChildProcesses().start((sys.executable, "-I", "-S", START, str(attempt.folder)), {})
    attempt.until_live()
    assert pid in attempt.pids()
    attempt.stop()
    attempt.result()


def test_a_runner_that_fails_reports_the_reason(make: Make, tmp_path: Path) -> None:
    patch = "def broken(fd): raise OSError(5, 'Input/output error')\nos.fsync = broken"
    executor = patched(tmp_path, patch)
    attempt = make("echo start").launch(executor)
    reap(executor, 0)
    assert attempt.status().anomalies == ("the runner failed: OSError: [Errno 5] Input/output error",)


def test_a_sweep_ends_only_processes_with_the_attempts_token(make: Make) -> None:
    one, two = make("exec sleep 300").launch(), make("exec sleep 300").launch()
    for attempt in (one, two):
        wait_for(lambda a=attempt: len(a.pids()) == 2, "runner and command")  # type: ignore[misc]
    nobodys = secrets.token_hex(16)
    alive = processes_of({one.token: one.folder, two.token: two.folder, nobodys: one.folder})
    assert set(alive) == {one.token, two.token}
    found = sweep_once(one.folder, one.token, signal.SIGKILL)
    assert set(found) == set(alive[one.token])
    one.until_gone()
    assert two.pids() == alive[two.token]
    assert os.getpid() not in found
    two.stop()
    two.result()


def test_a_copied_claim_does_not_count_as_dead_while_its_runner_is_alive(make: Make, tmp_path: Path) -> None:
    attempt = make("echo start; exec sleep 60").launch()
    attempt.until_logged("start")
    pid = attempt.until_live().pid
    assert pid is not None
    copy = tmp_path / "copy"
    shutil.copytree(attempt.folder, copy)
    seen = observe(copy, attempt.token)
    assert (seen.claim, seen.pid, seen.result) == ("unlocked", pid, None)
    [told] = seen.anomalies
    assert told.startswith(f"its runner (pid {pid}) is alive but has no lock on the claim in {copy}, ")
    assert not kill_runner(copy, attempt.token)
    assert not request_stop(copy, attempt.token, StopRequest("cancelled", 0.0))
    assert attempt.status().claim == "live"
    os.kill(pid, signal.SIGKILL)
    # The lock is released before the runner becomes a zombie, so an exiting runner never counts as alive.
    wait_for(lambda: attempt.status().claim != "live", "a free lock")
    assert attempt.status().claim == "dead"
    assert observe(copy, attempt.token).claim == "dead"
    assert observe(copy, attempt.token).anomalies == ()


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another"},
        {"start_ticks": 1},
        {"pid": 2**22 + 1},
    ],
)
def test_a_claim_counts_as_dead_if_no_process_matches_its_runner(
    tmp_path: Path, change: dict[str, object]
) -> None:
    claim: dict[str, object] = {
        "token": "t", "pid": os.getpid(), "start_ticks": start_ticks(), "boot_id": boot_id(),
    }  # fmt: skip
    (tmp_path / "claim").write_text(json.dumps(claim))
    assert observe(tmp_path, "t").claim == "unlocked"
    (tmp_path / "claim").write_text(json.dumps(claim | change))
    assert observe(tmp_path, "t").claim == "dead"


def test_a_runner_that_is_a_zombie_counts_as_dead(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        signal.pause()
    ticks = process_scan.ticks_of(child)
    claim = {"token": "t", "pid": child, "start_ticks": ticks, "boot_id": boot_id()}
    (tmp_path / "claim").write_text(json.dumps(claim))
    assert observe(tmp_path, "t").claim == "unlocked"
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert observe(tmp_path, "t").claim == "dead"
    os.waitpid(child, 0)
