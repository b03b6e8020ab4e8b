"""Tests of the command's terminal and its window, with real Screen, real tmux and a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import ScreenExecutor
from gpu_scheduler.runner.folder import START, TOKEN
from tests.runner.attempt import PreparedAttempt, wait_for
from tests.runner.conftest import Make

RESIZED = (
    "trap 'echo size $(stty size)' WINCH; echo size $(stty size); until [ -e {go} ]; do sleep 0.05; done"
)


class Window:
    """A pseudo-terminal in which a runner runs as Screen would start it."""

    def __init__(self, attempt: PreparedAttempt, rows: int, columns: int) -> None:
        self.master, slave = os.openpty()
        self.resize(rows, columns)
        name = os.ttyname(slave)
        attempt.prepare()
        terminal = [(os.POSIX_SPAWN_OPEN, fd, name, os.O_RDWR, 0) for fd in (0, 1, 2)]
        argv = [sys.executable, "-I", "-S", START, str(attempt.folder)]
        env = {TOKEN: attempt.token, "TERM": "screen"}
        self.pid = os.posix_spawn(argv[0], argv, env, file_actions=terminal, setsid=True)
        self.slave = slave
        self.shown = b""

    def resize(self, rows: int, columns: int) -> None:
        """Sets the size of the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("hhhh", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Types these keys into the window."""
        os.write(self.master, keys)

    def read(self) -> bytes:
        """Returns everything that the window has shown so far."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.shown += os.read(self.master, 1 << 16)
            except OSError:
                break
        return self.shown

    def close(self) -> None:
        """Closes the window, which sends a hangup, and collects the runner."""
        for fd in (self.master, self.slave):
            os.close(fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def screened(make: Make, sockets: Path) -> Iterator[Make]:
    """Makes attempts, launches them in real Screen sessions and waits for their claims."""
    executor = ScreenExecutor()
    made: list[PreparedAttempt] = []

    def one(script: str, **spec: object) -> PreparedAttempt:
        attempt = make(script, terminal=True, session=f"gpujob_0_test_{len(made)}", **spec).launch(executor)
        made.append(attempt)
        attempt.until_live()
        return attempt

    yield one
    for attempt in made:
        attempt.clean()
    executor.reap()


def screen(attempt: PreparedAttempt, *command: str) -> None:
    """Sends a Screen command to the attempt's session."""
    session = attempt.status().session
    assert session is not None
    subprocess.run(
        ["screen", "-S", session, "-p", "0", "-X", *command], check=True, stdout=subprocess.DEVNULL
    )


def test_a_command_has_a_terminal_and_the_log_contains_its_exact_output(make: Make) -> None:
    attempt = make("tty -s && echo yes; stty size; printf 'a\\r\\nb\\n'; exit 3", terminal=True)
    window = Window(attempt, 33, 111)
    try:
        assert attempt.result().exit_code == 3
        assert attempt.body() == "yes\n33 111\na\r\nb\n"
        wait_for(lambda: b"a\r\r\nb\r\n" in window.read(), "output with carriage returns in the window")
    finally:
        window.close()


def test_a_terminal_without_a_window_has_24_rows_and_80_columns(make: Make) -> None:
    attempt = make("stty size; echo $TERM", terminal=True).launch()
    attempt.result()
    assert attempt.body() == "24 80\nscreen\n"


def test_keys_and_size_changes_and_hangups_of_the_window_reach_the_command(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    attempt = make(f"read line; echo got $line; {RESIZED.format(go=go)}; echo last; exit 8", terminal=True)
    window = Window(attempt, 24, 80)
    attempt.until_live()
    wait_for(lambda: termios.tcgetattr(window.slave)[3] & termios.ICANON == 0, "the raw mode of the terminal")
    window.type(b"x" * 5 + b"\r")
    attempt.until_logged("got xxxxx")
    attempt.until_logged("size 24 80")
    window.resize(40, 132)
    attempt.until_logged("size 40 132")
    os.close(window.slave)
    os.close(window.master)
    go.touch()
    result = attempt.result()
    os.waitpid(window.pid, 0)
    assert result.exit_code == 8
    assert attempt.body().endswith("last\n")


def test_a_blocked_window_does_not_block_the_command(make: Make) -> None:
    attempt = make("head -c 3000000 /dev/zero | tr '\\0' y; exit 2", terminal=True)
    window = Window(attempt, 24, 80)
    try:
        assert attempt.result().exit_code == 2
        assert attempt.body() == "y" * 3000000 + "\n"
    finally:
        window.close()


def test_a_runner_restores_the_mode_of_the_terminal(make: Make) -> None:
    attempt = make("exit 0", terminal=True)
    window = Window(attempt, 24, 80)
    before = termios.tcgetattr(window.slave)[3]
    try:
        attempt.result()
        wait_for(lambda: attempt.status().claim == "dead", "the runner has ended")
        assert termios.tcgetattr(window.slave)[3] | termios.ICANON == before | termios.ICANON
        assert termios.tcgetattr(window.slave)[3] & termios.ICANON
    finally:
        window.close()


def test_ctrl_c_ends_a_command_in_screen_and_ctrl_s_does_not_suspend_it(screened: Make) -> None:
    attempt = screened("n=0; while :; do n=$((n+1)); echo $n; sleep 0.02; done")
    attempt.until_logged("\n3\n")
    screen(attempt, "stuff", "^S")
    count = len(attempt.output())
    wait_for(lambda: len(attempt.output()) > count + 20, "output after Ctrl-S")
    screen(attempt, "stuff", "^C")
    result = attempt.result()
    assert (result.cause, result.signal or result.exit_code) in ((None, signal.SIGINT), (None, 130))


def test_the_exit_code_and_the_log_are_kept_if_screen_is_killed(screened: Make, tmp_path: Path) -> None:
    attempt = screened(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo last; exit 6")
    attempt.until_logged("up")
    session = attempt.status().session
    assert session is not None
    server = int(session.partition(".")[0])
    assert server not in attempt.pids(), "a sweep must not end the session"
    assert attempt.status().window_open is True
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: attempt.status().window_open is False, "the end of the window")
    (tmp_path / "go").touch()
    assert attempt.result().exit_code == 6
    assert attempt.body() == "up\nlast\n"
    assert attempt.status().window_open is None


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_screen_session_can_be_attached_and_resized_and_detached(screened: Make, tmp_path: Path) -> None:
    go = tmp_path / "go"
    attempt = screened(RESIZED.format(go=go) + "; exit 4")
    session = attempt.status().session
    assert session is not None
    attempt.until_logged("size 24 80")
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    attach = ["screen", "-x", session]
    subprocess.run([*tmux, "new-session", "-d", "-x", "101", "-y", "31", *attach], check=True)
    try:
        attempt.until_logged(" 101")
        subprocess.run([*tmux, "resize-window", "-x", "91", "-y", "21"], check=True)
        attempt.until_logged(" 91")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    go.touch()
    result = attempt.result()
    assert (result.cause, result.exit_code) == (None, 4)
