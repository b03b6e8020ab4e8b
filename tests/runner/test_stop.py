"""Tests of machine shutdowns, and of stop requests at every stage of an attempt."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from gpu_scheduler.attempts.folder import observe, request_stop, wake_runner
from gpu_scheduler.core.model.job import OnTimeout, StopRequest
from tests.runner.attempt import PreparedAttempt, patched, wait_for
from tests.runner.conftest import Make

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"
SAVING = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"

SAVING_PROGRAM = """
import os, signal, sys, time
def save(*_):
    os.write(1, b"asked\\n")  # `print` fails if the signal interrupts another one
    time.sleep(0.3)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    os.write(1, b"saved\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""

#: A patch that makes a function write the file `stop` before the real function is called.
WRITES_STOP = """
real = {function}
def first(*args, **more):
    if {when}:
        folder = sys.argv[-1]
        text = open(folder + "/spec.json").read().partition('"token": "')[2][:32]
        with open(folder + "/stop.new", "w") as file:
            file.write('{{"token": "%s", "cause": "cancelled", "grace_s": 5.0, "follow": "kill"}}' % text)
        os.replace(folder + "/stop.new", folder + "/stop")
    return real(*args, **more)
{function} = first
"""


def command_of(attempt: PreparedAttempt) -> int:
    """Returns the pid of the command once it has printed "up"."""
    attempt.until_logged("up")
    runner = attempt.status().pid
    return min(pid for pid in attempt.pids() if pid != runner and leads_a_group(pid))


def leads_a_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False  # The process was a short-lived child of the command and has ended.


def test_a_stop_before_the_claim_prevents_the_start_of_the_command(make: Make) -> None:
    attempt = make("echo ran")
    attempt.prepare()
    assert attempt.stop() is False
    result = attempt.launch().result()
    assert (result.cause, result.began, result.exit_code, result.signal) == ("cancelled", False, None, None)
    assert "ran" not in attempt.output()


@pytest.mark.parametrize(
    ("function", "when", "started"),
    [("os.unlink", "args[0].startswith('.claim')", False), ("os.posix_spawn", "True", True)],
)
def test_a_stop_right_after_the_claim_cancels_the_attempt(
    make: Make, tmp_path: Path, function: str, when: str, started: bool
) -> None:
    attempt = make("exec sleep 300")
    result = attempt.launch(patched(tmp_path, WRITES_STOP.format(function=function, when=when))).result()
    assert result.cause == "cancelled"
    assert (result.signal is not None) is started


def test_a_stop_ends_a_running_command(make: Make) -> None:
    attempt = make("echo up; exec sleep 300").launch()
    attempt.until_logged("up")
    assert attempt.stop() is True
    result = attempt.result()
    assert (result.cause, result.signal, result.began) == ("cancelled", signal.SIGTERM, True)
    assert "--- cancelled: signal 15" in attempt.output()


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(make: Make) -> None:
    attempt = make(STUBBORN).launch()
    attempt.until_logged("up")
    start = time.monotonic()
    attempt.stop(grace_s=0.5)
    assert attempt.result().signal == signal.SIGKILL
    assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize("command", ["{docker} run image", "{docker} run image; true", "cat"])
def test_the_kill_of_a_container_client_is_reported(make: Make, tmp_path: Path, command: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/bash\n{STUBBORN}\n")
    docker.chmod(0o755)
    is_container = "docker" in command
    attempt = make(command.format(docker=docker) if is_container else STUBBORN).launch()
    attempt.until_logged("up")
    attempt.stop(grace_s=0.2)
    said = (
        "docker had to be killed, which does not reach its container: `docker ps` shows whether it still runs"
    )
    assert attempt.result().message == (said if is_container else None)
    assert (f"; {said}" in attempt.output()) is is_container


def test_a_stop_ends_a_suspended_command(make: Make) -> None:
    attempt = make("echo up; kill -STOP $$; exit 1").launch()
    attempt.until_logged("up")
    attempt.stop()
    assert attempt.result().signal == signal.SIGTERM


def test_a_later_stop_request_shortens_the_grace_period(make: Make) -> None:
    attempt = make(STUBBORN).launch()
    attempt.until_logged("up")
    attempt.stop(grace_s=60)
    attempt.stop(grace_s=0)
    assert attempt.result(5).signal == signal.SIGKILL


def test_a_command_continues_after_its_preemption_was_withdrawn(make: Make, tmp_path: Path) -> None:
    attempt = make(f"trap '' TERM; echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5").launch()
    attempt.until_logged("up")
    assert attempt.stop("preempted", 0.2, "withdraw") is True
    wait_for((attempt.folder / "withdrawn").exists, "the withdrawal")
    seen = attempt.status()
    assert seen.claim == "live"
    assert seen.stop is None
    (tmp_path / "go").touch()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 5)


def test_a_preemption_that_was_withdrawn_is_ignored_if_it_is_written_again(
    make: Make, tmp_path: Path
) -> None:
    script = f"trap 'echo told' TERM; echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5"
    attempt = make(script).launch()
    attempt.until_logged("up")
    for stop_id in ("first", "second"):
        attempt.stop("preempted", 0.1, "withdraw", stop_id)
        wait_for(lambda: _withdrawn_id(attempt) == stop_id, "the withdrawal")  # noqa: B023
        attempt.stop("preempted", 0.1, "withdraw", stop_id)
        wait_for(lambda: attempt.status().stop is None, "the repeated file is renamed")
    (tmp_path / "go").touch()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 5)
    assert attempt.output().count("told") == 2


def _withdrawn_id(attempt: PreparedAttempt) -> str | None:
    withdrawn = attempt.status().withdrawn
    return None if withdrawn is None else withdrawn.stop_id


@pytest.mark.parametrize("name", ["INT", "USR1", "USR2", "HUP", "QUIT"])
def test_a_preemption_sends_the_signal_that_it_names(make: Make, name: str) -> None:
    attempt = make(f"trap 'echo got-{name}; exit 0' {name}; echo up; while :; do sleep 0.02; done").launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 5, "withdraw", "1", name)
    result = attempt.result()
    assert (result.cause, result.exit_code) == ("preempted", 0)
    assert f"got-{name}" in attempt.output()


def test_a_cancel_after_a_preemption_with_another_signal_sends_sigterm(make: Make) -> None:
    attempt = make("trap 'echo saved' USR1; echo up; while :; do sleep 0.02; done").launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 60, "withdraw", "1", "USR1")
    attempt.until_logged("saved")
    attempt.stop("cancelled", 60)
    result = attempt.result()
    assert (result.cause, result.signal) == ("cancelled", signal.SIGTERM)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "script", ["{0}; echo never", "({0} 2>&1 | cat); echo never", "bash -c '{0}; echo never'"]
)
def test_a_program_in_a_shell_script_can_save_its_state(
    make: Make, tmp_path: Path, script: str, terminal: bool
) -> None:
    attempt = make(script.format(saving_program(tmp_path)), term_grace_s=0.1, terminal=terminal).launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 30, "withdraw")
    result = attempt.result()
    assert (result.cause, result.signal, result.survivors) == ("preempted", signal.SIGTERM, ())
    assert attempt.body().split()[-2:] == ["asked", "saved"]


def test_a_shell_script_continues_after_a_withdrawal(make: Make, tmp_path: Path) -> None:
    script = f"{saving_program(tmp_path, until='go')}; echo next; exit 5"
    attempt = make(script).launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 0.2, "withdraw")
    wait_for((attempt.folder / "withdrawn").exists, "the withdrawal")
    (tmp_path / "go").touch()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 5)
    assert attempt.body().split()[-3:] == ["asked", "saved", "next"]


def test_a_cancel_ends_a_program_whose_shell_is_suspended(make: Make, tmp_path: Path) -> None:
    attempt = make(f"{saving_program(tmp_path, until='never')}; echo never").launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 60, "withdraw")
    attempt.until_logged("asked")
    attempt.stop("cancelled", 0.2)
    result = attempt.result(10)
    assert (result.cause, result.signal, result.survivors) == ("cancelled", signal.SIGKILL, ())


def test_a_cancel_shortens_the_time_of_a_process_whose_parent_has_ended(make: Make, tmp_path: Path) -> None:
    stubborn = shlex.quote(saving_program(tmp_path, until="never"))
    parent = f"import subprocess; subprocess.Popen({stubborn}, shell=True).wait()"
    attempt = make(f"exec {sys.executable} -c {shlex.quote(parent)}").launch()
    attempt.until_logged("up")
    command = command_of(attempt)
    attempt.stop("preempted", 60, "withdraw")
    wait_for(lambda: not Path(f"/proc/{command}").exists(), "the end of the parent")
    attempt.stop("cancelled", 0.2)
    result = attempt.result(10)
    assert (result.cause, result.signal, result.survivors) == ("cancelled", signal.SIGTERM, ())


def saving_program(folder: Path, until: str | None = None) -> str:
    """Returns the command line of a program that saves its work when it gets SIGTERM, and then ends.

    until: the name of a file without which it does not end.
    """
    script = folder / "saving.py"
    script.write_text(SAVING_PROGRAM)
    return f"{sys.executable} -S {script} {folder / until if until else script}"


def test_a_preempted_command_can_save_its_state(make: Make) -> None:
    attempt = make(SAVING).launch()
    attempt.until_logged("up")
    attempt.stop("preempted", 5, "withdraw")
    result = attempt.result()
    assert (result.cause, result.exit_code) == ("preempted", 0)
    assert "saved" in attempt.output()


def test_a_cancel_during_the_withdrawal_of_a_preemption_takes_effect(make: Make, tmp_path: Path) -> None:
    patch = WRITES_STOP.format(function="os.rename", when="args[0] == 'stop'").replace("5.0", "0.1")
    attempt = make(STUBBORN).launch(patched(tmp_path, patch))
    attempt.until_logged("up")
    attempt.stop("preempted", 0.1, "withdraw")
    result = attempt.result()
    assert (result.cause, result.signal) == ("cancelled", signal.SIGKILL)
    seen = attempt.status()
    assert seen.stop is not None
    assert seen.stop.cause == "cancelled"


def test_a_cancel_takes_effect_that_replaces_a_withdrawn_preemption_while_it_is_discarded(
    make: Make, tmp_path: Path
) -> None:
    is_discarded = "args[:2] == ('stop', 'ignored')"
    patch = WRITES_STOP.format(function="os.rename", when=is_discarded).replace("5.0", "0.1")
    attempt = make(STUBBORN).launch(patched(tmp_path, patch))
    attempt.until_logged("up")
    for _ in range(2):
        attempt.stop("preempted", 0.1, "withdraw", "first")
        wait_for((attempt.folder / "withdrawn").exists, "the withdrawal")
    result = attempt.result()
    assert (result.cause, result.signal) == ("cancelled", signal.SIGKILL)
    seen = attempt.status()
    assert seen.stop is not None
    assert seen.stop.cause == "cancelled"


def test_a_cancel_takes_precedence_over_a_preemption_regardless_of_their_order(make: Make) -> None:
    for causes in (("preempted", "cancelled"), ("cancelled", "preempted")):
        attempt = make(STUBBORN).launch()
        attempt.until_logged("up")
        for cause in causes:
            attempt.stop(cause, 0.5)
        assert attempt.result().cause == "cancelled"
        stop = attempt.status().stop
        assert stop is not None
        assert stop.cause == "cancelled"


def test_a_stop_after_the_end_of_the_command_does_not_change_the_result(make: Make) -> None:
    leave = "(trap '' TERM; exec setsid sleep 300 >/dev/null 2>&1) & sleep 0.2; echo up; exit 3"
    attempt = make(leave, term_grace_s=0.6).launch()
    attempt.until_logged("up")
    command = command_of(attempt)
    wait_for(lambda: not os.path.exists(f"/proc/{command}"), "the command has ended")
    attempt.stop()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 3)


@pytest.mark.parametrize("runner_first", [True, False])
@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo up; exec sleep 300", ("machine", None, 15)), (SAVING, (None, 0, None))],
)
def test_a_machine_shutdown_interrupts_the_command(
    make: Make, script: str, expected: tuple[str | None, int | None, int | None], runner_first: bool
) -> None:
    attempt = make(script).launch()
    command = command_of(attempt)
    runner = attempt.status().pid
    assert runner is not None
    for pid in (runner, command) if runner_first else (command, runner):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            assert runner_first or expected[0] is None
    result = attempt.result()
    assert (result.cause, result.exit_code, result.signal) == expected


def test_a_machine_shutdown_after_the_end_of_the_command_does_not_change_the_result(make: Make) -> None:
    leave = "(trap '' TERM; exec setsid sleep 300 >/dev/null 2>&1) & sleep 0.2; echo up; exit 3"
    attempt = make(leave, term_grace_s=1.2).launch()
    command, runner = command_of(attempt), attempt.status().pid
    assert runner is not None
    wait_for(lambda: not os.path.exists(f"/proc/{command}"), "the command has ended")
    late = time.monotonic() + 0.5
    wait_for(lambda: time.monotonic() > late, "more than 0.3 s")
    os.kill(runner, signal.SIGTERM)
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 3)


def test_a_machine_shutdown_interrupts_a_command_that_has_not_begun(make: Make) -> None:
    attempt = make("")
    attempt.command_sh = "echo up; sleep 300; printf . >&3\n"
    attempt.launch()
    command, runner = command_of(attempt), attempt.status().pid
    assert runner is not None
    os.kill(command, signal.SIGTERM)
    os.kill(runner, signal.SIGTERM)
    result = attempt.result()
    assert (result.cause, result.began) == ("machine", False)


def test_a_stop_request_with_another_token_is_ignored_and_reported(make: Make) -> None:
    attempt = make("echo up; until [ -e go ]; do sleep 0.02; done").launch()
    attempt.until_logged("up")
    request_stop(attempt.folder, "0" * 32, StopRequest("cancelled", 0))
    assert wake_runner(attempt.folder, attempt.token) is True
    seen = attempt.status()
    assert seen.stop is None
    assert seen.anomalies == ("stop has the wrong token (00000000…); ignored",)
    (attempt.log.parent / "go").touch()
    assert attempt.result().cause is None


def test_a_stop_does_not_signal_any_process_without_a_valid_claim(tmp_path: Path) -> None:
    assert request_stop(tmp_path / "none", "t", StopRequest("cancelled", 1)) is False
    assert wake_runner(tmp_path, "t") is False
    claim = {"token": "t", "pid": os.getpid(), "start_ticks": 1, "boot_id": "b"}
    (tmp_path / "claim").write_text(json.dumps(claim))
    assert wake_runner(tmp_path, "t") is False
    assert observe(tmp_path, "t").claim == "dead"


@pytest.mark.parametrize(
    ("first", "second", "terms"),
    [
        ((30.0, "kill"), (60.0, "withdraw"), (30.0, "kill")),
        ((30.0, "withdraw"), (60.0, "kill"), (60.0, "kill")),
        ((30.0, "kill"), (10.0, "kill"), (10.0, "kill")),
    ],
)
def test_a_second_preemption_keeps_the_terms_of_the_first_in_the_file(
    make: Make, first: tuple[float, OnTimeout], second: tuple[float, OnTimeout], terms: tuple[float, str]
) -> None:
    attempt = make("true")
    attempt.prepare()
    for grace_s, follow in (first, second):
        assert not attempt.stop("preempted", grace_s, follow, stop_id="x")  # no runner is alive
    written = json.loads((attempt.folder / "stop").read_text())
    assert (written["grace_s"], written["follow"]) == terms
