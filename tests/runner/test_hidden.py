"""Tests that processes without a visible token are found with the help of the recorded command."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import DirectExecutor, Executor, ScreenExecutor
from gpu_scheduler.attempts.folder import kill_runner, recorded_command
from gpu_scheduler.attempts.observe import processes_of, sweep_once
from gpu_scheduler.runner import folder as files
from gpu_scheduler.runner import process_scan
from gpu_scheduler.system.procfs import Proc
from tests.processes import sweep
from tests.runner.attempt import PreparedAttempt, wait_for
from tests.runner.conftest import Make

#: A program that overwrites its environment with null bytes, as setting a title does, and prints its pid.
TITLE = """\
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with open("/proc/self/stat", "rb") as file:
    fields = file.read().rpartition(b")")[2].split()
begin, end = int(fields[47]), int(fields[48])
with open("/proc/self/mem", "wb", 0) as memory:
    memory.seek(begin)
    memory.write(bytes(end - begin))
print("up", os.getpid(), flush=True)
signal.pause()
"""
#: A program that starts a fork chain. Each process forks the next one and ends before a second scan.
CHAIN = """\
import os, signal, sys, time
end = time.monotonic() + 60
print("up", os.getpid(), flush=True)
if os.fork():
    os._exit(0)
if sys.argv[1:]:
    os.setsid()
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""
#: The content of /proc/PID/stat for process 12, which started at tick 34.
STAT = "12 (a) b) S " + "7 " * 18 + "34 0 0"
HIDDEN = {
    "env -i": "trap '' HUP; exec env -i sh -c 'echo up $$; sleep 300; :'",
    "title": f"exec {sys.executable} -I -S title.py",
    "daemon": "trap '' HUP; setsid env -i sh -c 'echo up $$; exec sleep 300' & wait",
}


@pytest.fixture
def scripts(tmp_path: Path) -> None:
    (tmp_path / "title.py").write_text(TITLE)
    (tmp_path / "chain.py").write_text(CHAIN)


def up(attempt: PreparedAttempt) -> int:
    """Waits until the hidden process prints its pid, and returns the pid."""
    attempt.until_logged("up")
    said = wait_for(
        lambda: [line for line in attempt.output().splitlines() if line.startswith("up")], "the pid"
    )
    return int(said[0].split()[1])


def without_runner(attempt: PreparedAttempt) -> None:
    """Kills the runner and waits for its end."""
    assert kill_runner(attempt.folder, attempt.token)
    wait_for(lambda: attempt.status().claim == "dead", "the end of the runner")


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.usefixtures("scripts")
def test_a_sweep_finds_and_ends_the_hidden_process_of_a_killed_runner(make: Make, hidden: str) -> None:
    attempt = make(HIDDEN[hidden]).launch()
    pid = up(attempt)
    without_runner(attempt)
    assert pid in attempt.pids()
    assert sweep(attempt.folder, attempt.token, term_s=0.2) == ()
    wait_for(lambda: process_scan.ticks_of(pid) is None, "its end")


#: Processes that leave the session, hide their environment and have no parent once the command has ended.
LOST = {
    "from the start": "(setsid env -i sh -c 'echo up $$; exec sleep 300' &); exec sleep 300",
    "after its parent": "setsid env -i sh -c 'trap \"\" TERM; echo up $$; while :; do sleep 1; done'; exit 3",
}


@pytest.mark.parametrize("lost", LOST)
def test_a_sweep_finds_a_process_by_its_mark_after_every_parent_has_ended(make: Make, lost: str) -> None:
    attempt = make(LOST[lost]).launch()
    pid = up(attempt)
    without_runner(attempt)
    assert pid in attempt.pids()
    sweep_once(attempt.folder, attempt.token, signal.SIGTERM)
    command = recorded_command(attempt.folder, attempt.token)
    assert command is not None
    wait_for(lambda: process_scan.ticks_of(command.pid) is None, "the end of the command")
    found = attempt.pids()
    assert process_scan.ticks_of(pid) is None or pid in found
    assert sweep(attempt.folder, attempt.token, term_s=0.2) == ()
    assert process_scan.ticks_of(pid) is None


def test_a_stopped_process_ends_at_the_sigterm_of_a_sweep(make: Make) -> None:
    attempt = make("echo up $$; kill -STOP $$; sleep 300").launch()
    pid = up(attempt)
    without_runner(attempt)
    wait_for(lambda: b"T" in (files.fields_of(pid) or []), "the stopped process")
    sweep_once(attempt.folder, attempt.token, signal.SIGTERM)
    wait_for(lambda: process_scan.ticks_of(pid) is None, "its end", 20)


def test_a_sweep_sends_sigterm_only_once(make: Make, tmp_path: Path) -> None:
    """A handler that saves the job's work must not begin again."""
    asked = tmp_path / "asked"
    pause = "read -t 0.02 <> <(:)"
    works = f"until [ $end ]; do {pause}; done; for n in {{1..20}}; do {pause}; done"
    attempt = make(f"trap 'echo >> {asked}; end=1' TERM; echo up $$; {works}").launch()
    pid = up(attempt)
    without_runner(attempt)
    assert sweep(attempt.folder, attempt.token, term_s=30.0, deadline_s=60.0) == ()
    assert process_scan.ticks_of(pid) is None
    assert asked.read_text() == "\n"


def test_a_process_is_found_whose_runner_was_killed_after_it_had_ended_the_command(make: Make) -> None:
    """Only the runner connected the hidden process with its attempt: it had adopted it."""
    attempt = make(LOST["after its parent"]).launch()
    pid = up(attempt)
    command = recorded_command(attempt.folder, attempt.token)
    assert command is not None
    attempt.stop()
    wait_for(lambda: process_scan.ticks_of(command.pid) is None, "the end of the command")
    without_runner(attempt)
    assert pid in attempt.pids()
    assert sweep(attempt.folder, attempt.token, term_s=0.2) == ()
    assert process_scan.ticks_of(pid) is None


def test_a_sweep_leaves_no_process_of_a_program_that_forks_all_the_time(make: Make) -> None:
    """A child that is forked after a scan has listed its parent outlives the parent."""
    child = f"300.{secrets.randbelow(10**9)}"
    forks = f"while :; do sleep {child} & sleep 0.001; done"
    attempt = make(f"setsid env -i sh -c 'trap \"\" HUP; echo up $$; {forks}'; exit 3").launch()
    up(attempt)
    without_runner(attempt)
    assert sweep(attempt.folder, attempt.token, term_s=0.2) == ()
    proc = Proc()
    assert ["sleep", child] not in [proc.command_line(one.pid) for one in proc.processes()]


def test_a_sweep_finds_and_ends_a_hidden_process_in_screen(make: Make, sockets: Path) -> None:
    attempt = make(HIDDEN["env -i"], terminal=True, session="gpujob_0_x_7").launch(ScreenExecutor())
    pid = up(attempt)
    without_runner(attempt)
    assert pid in attempt.pids()
    assert sweep(attempt.folder, attempt.token, term_s=0.2) == ()
    wait_for(lambda: process_scan.ticks_of(pid) is None, "its end")


def test_finds_processes_of_the_commands_session_after_the_command_and_runner_ended(make: Make) -> None:
    attempt = make("env -i sh -c 'echo up $$; exec sleep 300' & wait").launch()
    pid = up(attempt)
    without_runner(attempt)
    command = recorded_command(attempt.folder, attempt.token)
    assert command is not None
    assert process_scan.send_signal(command.pid, command.ticks, signal.SIGKILL)
    wait_for(lambda: process_scan.ticks_of(command.pid) is None, "the end of the command")
    assert attempt.pids() == (pid,)


def test_a_sweep_spares_processes_of_another_attempt_in_the_same_session(make: Make) -> None:
    """The other attempt represents a job of a scheduler that was itself started by a job."""
    other = secrets.token_hex(16)
    attempt = make(
        f"GPU_SCHEDULER_TOKEN={other} sh -c 'env -i sleep 300 & echo up $$; wait' & exec sleep 300"
    ).launch()
    pid = up(attempt)
    without_runner(attempt)
    assert sweep(attempt.folder, attempt.token, term_s=0.0) == ()
    assert process_scan.ticks_of(pid) is not None
    child = wait_for(lambda: list(process_scan.descendants(pid)), "the child of the process")
    for left in (pid, *child):
        os.kill(left, signal.SIGKILL)


def test_command_sh_records_its_process_before_the_command_begins(make: Make) -> None:
    attempt = make("echo $$ $(cat /proc/$$/stat); exec sleep 300").launch()
    wait_for(lambda: attempt.output().endswith("\n"), "the output of the command")
    pid, stat = attempt.output().split(maxsplit=1)
    command = recorded_command(attempt.folder, attempt.token)
    assert command is not None
    assert (command.pid, command.ticks) == (int(pid), int(stat.rpartition(")")[2].split()[19]))
    assert command.autogroup == process_scan.autogroup(command.pid)
    attempt.stop()
    attempt.result()


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        (f"{{token}} {{boot}} {{init}}\n{STAT}\n/autogroup-5 nice 0\n   ", (12, 34, "/autogroup-5")),
        (f"{{token}} {{boot}} {{init}}\n{STAT}\n   ", (12, 34, None)),
        (f"{{token}} {{boot}} {{init}}\n{STAT}\n/autogr", (12, 34, None)),
        (f"{{token}} {{boot}} {{init}}\n{STAT}\n\n   ", (12, 34, None)),
        (f"{{token}} {{boot}} {{init}}\n{STAT}", None),
        ("{token} {boot} {init}\n12 (bash) S 1\n", None),
        (f"{{token}} {{boot}} {{init}}\n{STAT.replace('34', '-4')}\n", None),
        ("{token} {boot} {init}\n            ", None),
        (f"other {{boot}} {{init}}\n{STAT}\n", None),
        (f"{{token}} another-boot {{init}}\n{STAT}\n", None),
        (f"{{token}} {{boot}} 9{{init}}\n{STAT}\n", None),
        ("\0\xff", None),
        ("", None),
    ],
)
def test_rejects_a_recorded_command_that_is_incomplete_or_of_another_attempt(
    tmp_path: Path, text: str, recorded: tuple[int, int, str | None] | None
) -> None:
    text = text.format(token="t", boot=files.boot_id(), init=files.init_ticks())
    (tmp_path / "command.pid").write_text(text, "latin-1")
    command = recorded_command(tmp_path, "t")
    assert (command and (command.pid, command.ticks, command.autogroup)) == recorded


def test_rejects_a_recorded_command_that_is_not_a_file(tmp_path: Path) -> None:
    assert recorded_command(tmp_path, "t") is None
    os.mkfifo(tmp_path / "command.pid")
    assert recorded_command(tmp_path, "t") is None
    (tmp_path / "command.pid").unlink()
    (tmp_path / "command.pid").mkdir()
    assert recorded_command(tmp_path, "t") is None
    assert recorded_command(tmp_path / "gone", "t") is None


def test_processes_are_identified_by_token_even_if_no_command_is_recorded(make: Make) -> None:
    attempt = make("echo up $$; exec sleep 300").launch()
    pid = up(attempt)
    (attempt.folder / "command.pid").unlink()
    without_runner(attempt)
    assert attempt.pids() == (pid,)


@pytest.mark.parametrize("executor", ["direct", "screen"])
@pytest.mark.parametrize("leaves", ["", "setsid"])
@pytest.mark.usefixtures("scripts")
def test_a_fork_chain_ends_when_its_job_ends(
    make: Make, request: pytest.FixtureRequest, executor: str, leaves: str
) -> None:
    one: Executor = DirectExecutor()
    if executor == "screen":
        request.getfixturevalue("sockets")
        one = ScreenExecutor()
    attempt = make(
        f"{sys.executable} -I -S chain.py {leaves}",
        terminal=executor == "screen",
        session="gpujob_0_x_7",
        term_grace_s=0.3,
    ).launch(one)
    attempt.result()
    runner = attempt.status().pid
    wait_for(lambda: runner is None or process_scan.ticks_of(runner) is None, "the end of the runner")
    until_over(attempt)


def until_over(attempt: PreparedAttempt) -> None:
    """Waits until five complete scans in a row find no process of the attempt."""

    def over() -> bool:
        return not any(processes_of({attempt.token: attempt.folder}, [attempt.token]) for _ in range(5))

    wait_for(over, "the end of the chain")


@pytest.mark.usefixtures("scripts")
def test_a_sweep_ends_the_fork_chain_of_a_killed_runner(make: Make) -> None:
    attempt = make(f"{sys.executable} -I -S chain.py; exec sleep 300").launch()
    up(attempt)
    without_runner(attempt)
    assert sweep(attempt.folder, attempt.token, term_s=0.1) == ()
    until_over(attempt)
