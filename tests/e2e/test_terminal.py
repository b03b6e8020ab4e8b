"""Tests the output of `start` on a real terminal, in a pipe and in the main log."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.e2e.world import World

BAR = "python3 -c 'for n in range(101): print(end=chr(13) + str(n) + chr(37))'; echo; echo end"


def drained_on_terminal(world: World, **env: str) -> list[str]:
    """Runs a scheduler on a terminal of 80 columns until its jobs are done. Returns the terminal's lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "start", "--simulate", "1", "--log-dir", "logs", "--drain"],
        cwd=world.folder, env={**world.env, "TERM": "xterm", **env}, stdin=theirs, stdout=theirs,
        stderr=theirs,
    )  # fmt: skip
    world.process = process
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # Reading fails once the scheduler has ended.
    os.close(ours)
    assert process.wait(60) == 7
    return shown.decode("utf-8").replace("\r\n", "\n").splitlines()


def found(lines: list[str], pattern: str) -> str:
    [line] = [line for line in lines if re.fullmatch(pattern, line)]
    return line


@pytest.fixture
def jobs(world: World) -> World:
    """Provides two jobs: one draws a progress bar, and one fails."""
    world.append(f"[share=1 name=bar] {BAR}", "[share=1 name=bad] exit 7")
    world.env.pop("NO_COLOR", None)
    return world


def test_lines_on_a_terminal_are_short_and_coloured_but_lines_in_the_main_log_are_complete(
    jobs: World,
) -> None:
    lines = drained_on_terminal(jobs, PYTHONIOENCODING="utf-8")
    clock = r"\x1b\[2m\d\d:\d\d:\d\d\x1b\[0m  "
    found(lines, rf"{clock}· job 1 bar: queued: jobs.txt, line 1")
    found(lines, rf"{clock}\x1b\[36m▶ job 1 bar: \x1b\[0mstarts on gpu .*")
    found(lines, rf"{clock}\x1b\[32m✓ job 1 bar: \x1b\[0mfinished \[OK\] .*")
    found(lines, rf"{clock}\x1b\[31m✗ job 2 bad: \x1b\[0mfinished \[FAILED\] .* exit code 7.*")
    assert [line for line in lines if line.startswith("[job 1] ")][-2:] == ["[job 1] 100%", "[job 1] end"]
    assert sum("%" in line for line in lines if line.startswith("[job 1] ")) <= 2
    assert not any("---" in line or "INFO" in line or re.search(r"\d{4}-\d\d-\d\d", line) for line in lines)
    main_log = (jobs.folder / "gpu_scheduler.log").read_text()
    assert re.search(
        r"^\d{4}-\d\d-\d\d [\d:]+,\d{3} WARNING job 2 finished \[FAILED\]", main_log, re.MULTILINE
    )
    assert "\x1b" not in main_log
    assert "jobs.txt, line 2: job 2: exit 7\n" in main_log


def test_terminal_output_obeys_no_color_and_an_ascii_encoding(jobs: World) -> None:
    lines = drained_on_terminal(jobs, PYTHONIOENCODING="ascii", NO_COLOR="1")
    found(lines, r"\d\d:\d\d:\d\d  \+ job 1 bar: finished \[OK\] .*")
    found(lines, r"\d\d:\d\d:\d\d  x job 2 bad: finished \[FAILED\] .*")
    assert not any("\x1b" in line or "\\u" in line for line in lines)


def test_output_to_a_pipe_has_complete_lines(jobs: World) -> None:
    done = jobs.cli("start", "--simulate", "1", "--log-dir", "logs", "--drain")
    assert done.returncode == 7
    assert re.search(
        r"^\d{4}-\d\d-\d\d [\d:]+,\d{3} INFO    job 1 finished \[OK\]", done.stdout, re.MULTILINE
    )
    assert "[job 1] --- completed" in done.stdout
    assert "\x1b" not in done.stdout
