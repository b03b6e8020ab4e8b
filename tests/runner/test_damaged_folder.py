"""Tests of runners whose files are removed or replaced while they are alive."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.attempts.folder import kill_runner, observe, request_stop
from gpu_scheduler.core.model.job import AttemptStatus, RunnerIdentity, StopRequest
from tests.runner.attempt import PreparedAttempt, wait_for
from tests.runner.conftest import Make

UNTIL = "echo up; until [ -e {} ]; do sleep 0.02; done; exit 3"


def runner_of(attempt: PreparedAttempt) -> RunnerIdentity:
    """Returns the runner's identity as the store would record it."""
    runner = attempt.until_live().runner
    assert runner is not None
    return runner


def status_of(attempt: PreparedAttempt, recorded_runner: RunnerIdentity) -> AttemptStatus:
    return observe(attempt.folder, attempt.token, recorded_runner)


def remove(path: Path) -> None:
    path.unlink()


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def overwrite(path: Path) -> None:
    path.write_text("x")


@pytest.mark.parametrize("spoil", [remove, replace_by_folder, overwrite])
def test_a_recorded_runner_counts_as_alive_even_without_its_claim(
    make: Make, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    attempt = make(UNTIL.format(tmp_path / "go")).launch()
    known = runner_of(attempt)
    spoil(attempt.folder / "claim")
    seen = status_of(attempt, known)
    assert (seen.claim, seen.pid) == ("unclaimed", known.pid)
    assert f"its runner (pid {known.pid}) is alive, and the job continues" in seen.anomalies[0]
    (tmp_path / "go").touch()
    assert attempt.result().exit_code == 3


def test_a_recorded_runner_can_be_stopped_and_killed_without_its_claim(make: Make) -> None:
    attempts = [make("trap '' TERM; echo up; while :; do sleep 0.05; done").launch() for _ in range(2)]
    for attempt in attempts:
        attempt.until_logged("up")
        known = runner_of(attempt)
        (attempt.folder / "claim").unlink()
        if attempt is attempts[0]:
            assert request_stop(attempt.folder, attempt.token, StopRequest("cancelled", 0.0), known)
            result = attempt.result()
            assert (result.cause, result.signal) == ("cancelled", signal.SIGKILL)
        else:
            assert kill_runner(attempt.folder, attempt.token, known)
            wait_for(lambda a=attempt, k=known: status_of(a, k).claim == "dead", "a dead claim")  # type: ignore[misc]
            assert status_of(attempt, known).damage == "the file claim was removed"


def test_a_claim_names_its_runner_only_if_that_process_holds_its_lock(make: Make) -> None:
    """The runner of a claim that was written in another pid namespace is not known here."""
    attempt = make("echo up; exec sleep 300").launch()
    attempt.until_logged("up")
    known, claim = runner_of(attempt), attempt.folder / "claim"
    fields = json.loads(claim.read_text())
    claim.write_text(json.dumps({**fields, "pid": os.getpid(), "start_ticks": 5}))
    seen = attempt.status()
    assert (seen.claim, seen.pid, seen.runner) == ("live", known.pid, None)
    attempt.stop()
    assert attempt.result().cause == "cancelled"


def test_a_recorded_runner_with_another_boot_id_or_start_time_counts_as_dead(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    for known in (RunnerIdentity(os.getpid(), 1, "another"), RunnerIdentity(1, 2**40, "another")):
        assert observe(tmp_path, "t", known).claim == "dead"
    gone = observe(tmp_path / "gone", "t", RunnerIdentity(os.getpid(), 1, "another"))
    assert (gone.claim, gone.folder_exists) == ("none", False)


def test_a_sigterm_to_the_runner_means_a_cancel_if_there_is_a_stop_file(make: Make) -> None:
    attempt = make("echo up; exec sleep 300").launch()
    attempt.until_logged("up")
    known = runner_of(attempt)
    (attempt.folder / "claim").unlink()
    assert request_stop(attempt.folder, attempt.token, StopRequest("cancelled", 1.0)) is False
    os.kill(known.pid, signal.SIGTERM)
    assert attempt.result().cause == "cancelled"


@pytest.mark.parametrize("stop", ["FIFO", "folder", "the token alone", "a number for a text"])
def test_a_runner_ignores_an_unusable_stop_file(make: Make, stop: str) -> None:
    attempt = make("echo up; exec sleep 300")
    attempt.prepare()
    path = attempt.folder / "stop"
    if stop == "FIFO":
        os.mkfifo(path)
    elif stop == "folder":
        path.mkdir()
    else:
        more = ', "cause": 1, "grace_s": "x", "follow": []' if stop == "a number for a text" else ""
        path.write_text(f'{{"token": "{attempt.token}"{more}}}')
    attempt.launch()
    attempt.until_logged("up")
    pid = attempt.until_live().pid
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    assert attempt.stop(grace_s=1.0) is True
    assert attempt.result().cause == "cancelled"


def test_a_runner_moves_a_folder_named_result_out_of_the_way(make: Make) -> None:
    attempt = make("exit 4")
    attempt.prepare()
    (attempt.folder / "result" / "x").mkdir(parents=True)
    (attempt.folder / "result.aside-1").touch()
    assert attempt.launch().result().exit_code == 4
    assert (attempt.folder / "result.aside-2" / "x").is_dir()


def test_a_time_limit_too_long_for_poll_does_not_end_the_runner(make: Make) -> None:
    attempt = make("echo up; exec sleep 300", timeout_s=1e10).launch()
    attempt.until_logged("up")
    attempt.stop(grace_s=1.0)
    assert attempt.result().cause == "cancelled"


def test_an_environment_variable_with_a_null_byte_is_reported_as_the_launch_failure(make: Make) -> None:
    attempt = make("echo ran", env={"PATH": os.environ["PATH"], "A": "x\0y"})
    result = attempt.launch().result()
    assert (result.began, result.exit_code) == (False, None)
    assert "could not be started" in (result.message or "")
