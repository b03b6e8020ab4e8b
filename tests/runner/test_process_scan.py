"""Tests that a scan finds the processes of an attempt, and that no other process is signalled."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpu_scheduler.runner import group_signals, process_scan
from gpu_scheduler.runner.folder import TOKEN, fields_of, mark_of, set_mark
from gpu_scheduler.runner.process_scan import RecordedCommand
from tests.runner.attempt import wait_for


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Starts a process that has a token and spends almost all its time in exec.

    Yields the token and the pid.
    """
    token = secrets.token_hex(16)
    script = tmp_path / "again.sh"
    script.write_text('exec bash "$0"\n')
    process = subprocess.Popen(["bash", str(script)], env={"PATH": os.environ["PATH"], TOKEN: token})
    yield token, process.pid
    process.kill()
    process.wait()


def test_a_scan_finds_a_process_during_exec(restless: tuple[str, int]) -> None:
    token, pid = restless
    seen = [set(process_scan.scan({token: None}).found.get(token, {})) for _ in range(150)]
    assert [found for found in seen if found != {pid}] == []


def test_a_process_without_an_environment_has_no_token() -> None:
    process = subprocess.Popen(["sleep", "60"], env={})
    try:
        assert process_scan.scan({"x": None}).found == {}
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("equals", ["=", "\0"])
@pytest.mark.parametrize("text", ["{0}abc\0A=1\0", "A=1\0{0}abc\0", "X{0}no\0{0}abc\0B=2\0", "A=1\0{0}abc"])
def test_finds_the_token_of_a_process_while_bash_parses_its_environment(text: str, equals: str) -> None:
    assert process_scan.token_in(text.format(TOKEN + equals).encode()) == b"abc"
    assert process_scan.token_in(text.format(f"{TOKEN}S=").encode()) == b""


@pytest.mark.parametrize("env", [{"A": "1"}, {}])
def test_finds_the_token_at_any_position_in_the_environment_of_a_process(env: dict[str, str]) -> None:
    token = secrets.token_hex(16)
    process = subprocess.Popen(["sleep", "60"], env={**env, TOKEN: token})
    try:
        wait_for(lambda: process.pid in process_scan.scan({token: None}).found.get(token, {}), "found")
        assert process_scan.scan({token[:-1]: None, f"{token}0": None}).found == {}
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("limits", [(resource.RLIM_INFINITY, resource.RLIM_INFINITY), (5, 7)])
def test_a_mark_is_a_limit_that_the_process_and_its_children_keep(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the limit may not be raised, nothing is marked."""
    token, is_free = "0" * 16 + secrets.token_hex(8), limits[1] == resource.RLIM_INFINITY
    text = "env -i setsid sh -c 'echo up; sleep 60 & wait' & exec sleep 60"

    def mark() -> None:
        resource.setrlimit(resource.RLIMIT_RTTIME, limits)
        set_mark(token)

    with subprocess.Popen(["sh", "-c", text], stdout=subprocess.PIPE, preexec_fn=mark) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        found = {process.pid: 0} | wait_for(
            lambda: len(some := process_scan.descendants(process.pid)) > 1 and some, "children"
        )
        marks = {mark_of(pid) for pid in found}
        # The kernel refuses prlimit for a process that runs with another group.
        monkeypatch.setattr(resource, "prlimit", Mock(side_effect=PermissionError))
        marks |= {mark_of(pid) for pid in found}
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    assert marks == ({token[:15]} if is_free else {None})


def test_a_scheduler_removes_the_mark_that_it_inherited() -> None:
    code = (
        "import os; from gpu_scheduler.runner.folder import mark_of, set_mark;"
        "set_mark('a' * 32); print(mark_of(os.getpid())); set_mark(None); print(mark_of(os.getpid()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["a" * 15, "None"]


def test_the_descendants_of_a_process_do_not_include_zombies() -> None:
    process = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"])
    try:
        wait_for(lambda: len(process_scan.descendants(process.pid)) == 2, "two children")
        assert process.pid in process_scan.descendants(os.getpid())
        found = process_scan.descendants(process.pid)
        for pid, ticks in found.items():
            assert process_scan.send_signal(pid, ticks, signal.SIGKILL)
        wait_for(lambda: not process_scan.descendants(process.pid), "the end of all descendants")
    finally:
        process.kill()
        process.wait()


def test_does_not_signal_a_process_with_another_start_time() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        ticks = process_scan.ticks_of(process.pid)
        assert ticks is not None
        assert process_scan.send_signal(process.pid, ticks + 1, signal.SIGKILL) is False
        assert process.poll() is None
        assert process_scan.send_signal(process.pid, ticks, signal.SIGKILL) is True
        assert process.wait() == -signal.SIGKILL
        assert process_scan.send_signal(process.pid, ticks, signal.SIGKILL) is False
    finally:
        process.kill()
        process.wait()


def test_a_new_zombie_makes_a_scan_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie may have forked before it ended. Zombies remain if process 1 does not collect its children."""
    process = subprocess.Popen(["sleep", "60"], env={})

    def ends_then() -> list[int]:
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return [process.pid]

    # The age of the process must not matter.
    monkeypatch.setattr("time.clock_gettime", lambda clock: 1e9)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(process_scan, "newest_first", lambda: [process.pid])
            assert not process_scan.scan({"x": None}).missed
            patch.setattr(process_scan, "newest_first", ends_then)
            assert process_scan.scan({"x": None}).missed
            patch.setattr(process_scan, "newest_first", lambda: [process.pid])
            assert not process_scan.scan({"x": None}).missed, "the scan now knows the ended process"
    finally:
        process.kill()
        process.wait()


def test_a_process_that_ends_during_a_scan_counts_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    token = secrets.token_hex(16)
    process = subprocess.Popen(["sleep", "60"], env={TOKEN: token})

    def ended(pid: int) -> list[bytes] | None:
        if pid == process.pid:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return fields_of(pid)

    try:
        wait_for(lambda: process.pid in process_scan.scan({token: None}).found.get(token, {}), "found")
        with monkeypatch.context() as patch:
            patch.setattr(process_scan, "fields_of", ended)
            assert process_scan.scan({token: None}).found == {token: {process.pid: 0}}
        assert process_scan.scan({token: None}).found == {}
    finally:
        process.kill()
        process.wait()


def test_a_session_with_a_reused_id_belongs_to_no_attempt() -> None:
    """The kernel's autogroup of the session differs from the one that the command recorded."""
    words = ["bash", "-c", "sleep 60 >/dev/null & echo $!; read"]
    leader = subprocess.Popen(
        words, env={}, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert leader.stdout is not None
    left = int(leader.stdout.readline())
    ticks, own = process_scan.ticks_of(leader.pid), process_scan.autogroup(leader.pid)
    leader.communicate()
    try:
        if own is None or ticks is None:
            pytest.skip("this kernel has no autogroups")
        same, other = (RecordedCommand(leader.pid, ticks, group) for group in (own, "/autogroup-0"))
        assert left in process_scan.scan({"t" * 32: same}).found["t" * 32]
        assert process_scan.scan({"t" * 32: other}).found == {}
    finally:
        os.kill(left, signal.SIGKILL)


def signals_group(ticks_off: int) -> bool:
    """Starts a process and signals its group. It is found only while it is one of the newest processes."""
    process = subprocess.Popen(["sleep", "60"], env={}, start_new_session=True)
    try:
        ticks = process_scan.ticks_of(process.pid)
        assert ticks is not None
        command = RecordedCommand(process.pid, ticks - ticks_off, process_scan.autogroup(process.pid))
        return (
            group_signals.signal_group(command, "x", signal.SIGTERM) and process.wait(30) == -signal.SIGTERM
        )
    finally:
        process.kill()
        process.wait()


def test_does_not_signal_a_reused_process_group() -> None:
    wait_for(lambda: signals_group(0), "a signal to the group")
    assert not any(signals_group(1) for _ in range(5))


def test_a_process_group_of_zombies_does_not_count_as_alive() -> None:
    """If process 1 does not collect orphans, zombies remain and make every scan incomplete."""
    process = subprocess.Popen(["sleep", "60"], env={}, start_new_session=True)
    try:
        ticks = process_scan.ticks_of(process.pid)
        assert ticks is not None
        command = RecordedCommand(process.pid, ticks, process_scan.autogroup(process.pid))
        assert group_signals.may_have_living_group(command)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert group_signals.has_group(command)
        assert not group_signals.may_have_living_group(command)
    finally:
        process.kill()
        process.wait()
    assert not group_signals.may_have_living_group(command)


def test_a_process_group_with_a_new_zombie_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [{7: True}, {7: True, 8: True}]
    monkeypatch.setattr(group_signals, "has_group", lambda command: True)
    monkeypatch.setattr(group_signals, "_members", lambda group: ended.pop(0))
    assert group_signals.may_have_living_group(RecordedCommand(7, 70))


def test_sends_no_signals_if_proc_shows_another_pid_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            ticks = process_scan.ticks_of(process.pid)
            assert ticks is not None
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                assert not process_scan.send_signal(process.pid, ticks, signal.SIGKILL)
            assert process.poll() is None
            assert process_scan.send_signal(process.pid, ticks, signal.SIGKILL)
        finally:
            process.kill()


def test_a_scan_waits_for_a_process_that_is_slow_in_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a process may be taken off the processor in the middle of exec."""
    token = secrets.token_hex(16)
    process = subprocess.Popen(["sleep", "60"], env={TOKEN: token})
    real, real_code, reads = process_scan.environment, process_scan._code_address, count()

    def environment(pid: int) -> bytes:
        return b"" if pid == process.pid and next(reads) < 150 else real(pid)

    monkeypatch.setattr(process_scan, "environment", environment)
    monkeypatch.setattr(
        process_scan, "_code_address", lambda pid: 0 if pid == process.pid else real_code(pid)
    )
    try:
        for _ in range(3):
            assert set(process_scan.scan({token: None}).found[token]) == {process.pid}
    finally:
        process.kill()
        process.wait()
