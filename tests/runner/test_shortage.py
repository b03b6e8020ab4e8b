"""Tests that a runner waits for missing processes or files before its claim, and reports them after it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.runner import folder, process_scan, shortage
from gpu_scheduler.runner.leftovers import Leftovers
from tests.runner.attempt import patched
from tests.runner.conftest import Make

#: Code for `patched`. `failing` makes a function of `os` fail at the calls with these numbers, counted from
#: 0.
FAILING = """
def failing(name, number, calls):
    real, made = getattr(os, name), []
    def call(*words, **more):
        made.append(name)
        if len(made) - 1 in calls:
            raise OSError(number, os.strerror(number))
        return real(*words, **more)
    setattr(os, name, call)
"""
NO_FORK = "Resource temporarily unavailable"


def test_the_result_contains_the_errno_if_a_shortage_prevents_the_start_of_the_command(
    make: Make, tmp_path: Path
) -> None:
    executor = patched(tmp_path, FAILING + "failing('posix_spawn', 11, range(99))")
    result = make("exit 0").launch(executor).result()
    assert (result.began, result.shortage) == (False, errno.EAGAIN)
    assert result.message == f"the command could not be started: bash: {NO_FORK}"


def test_the_result_reports_a_shortage_of_descriptors_after_the_claim(make: Make, tmp_path: Path) -> None:
    # The third pipe is for the report of command.sh. The first two are for signals and output.
    executor = patched(tmp_path, FAILING + "failing('pipe', 24, [2])")
    result = make("exit 0").launch(executor).result()
    assert (result.began, result.shortage) == (False, errno.EMFILE)


def test_a_shell_that_cannot_fork_reports_the_shortage(make: Make, tmp_path: Path) -> None:
    executor = patched(tmp_path, FAILING + "failing('posix_spawn', 11, range(1, 99))")
    attempt = make("")
    attempt.command_sh = "printf '!environment_missing no environment' >&3; exit 1"
    result = attempt.launch(executor).result()
    assert (result.began, result.shortage) == (False, errno.EAGAIN)
    assert result.message == f"no process could be started: {NO_FORK} (no environment)"


def test_a_failure_without_a_shortage_is_not_reported_as_a_shortage(make: Make) -> None:
    attempt = make("exit 1")
    began = attempt.launch().result()
    assert (began.began, began.shortage) == (True, None)
    other = make("")
    other.command_sh = "printf '!environment_missing no environment' >&3; exit 1"
    failed = other.launch(DirectExecutor()).result()
    assert (failed.began, failed.shortage, failed.message) == (False, None, "no environment")


def test_a_runner_waits_until_it_has_file_descriptors_before_it_writes_its_claim(
    make: Make, tmp_path: Path
) -> None:
    executor = patched(tmp_path, FAILING + "failing('pipe', 24, [0, 2, 4])")
    result = make("exit 5").launch(executor).result()
    assert (result.exit_code, result.shortage) == (5, None)


def test_a_failed_scan_for_remaining_processes_does_not_lose_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(tokens: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process_scan, "scan", refuse)
    now = time.monotonic()
    leftovers = Leftovers("token", None, 1.0, now)
    assert leftovers.step(now) is not None
    assert leftovers.any_left(), "nobody knows"
    assert leftovers.step(now + 60.0) is None
    assert leftovers.survivors == []


def test_a_failed_process_scan_raises_an_error_instead_of_returning_no_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int, name: str) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(folder, "read_proc", refuse)
    for look in (
        lambda: process_scan.scan({"a": None}),
        lambda: process_scan.descendants(1),
        lambda: process_scan.is_running(1, 1),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            look()


def test_checking_for_a_start_error_starts_all_its_trial_processes_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned: list[int] = []

    def spawn(program: str, argv: list[str], env: dict[str, str], **more: object) -> int:
        if len(spawned) == 3:
            raise OSError(errno.EAGAIN, NO_FORK)
        spawned.append(len(spawned) + 1)
        return spawned[-1]

    waited: list[int] = []
    monkeypatch.setattr(os, "posix_spawn", spawn)

    def wait(pid: int, options: int) -> tuple[int, int]:
        waited.append(pid)
        return pid, 0

    monkeypatch.setattr(os, "waitpid", wait)
    assert shortage.start_error(4) == errno.EAGAIN
    assert waited == spawned == [1, 2, 3]
    spawned.clear()
    assert shortage.start_error(3) is None
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (pid, 127 << 8))
    spawned.clear()
    assert shortage.start_error(1) == errno.ENOMEM
