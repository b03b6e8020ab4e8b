"""Tests of what `start` prints on the terminal."""

from __future__ import annotations

import errno
import io
import re
import sys
import time
from pathlib import Path
from threading import Event, current_thread

import pytest

from gpu_scheduler.daemon.log_output import Console, JobOutputReader
from tests.loop.rig import Rig
from tests.waiting import wait_for


def output(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Runs a job with this command directly, and returns what the console printed."""
    rig, console = Rig(tmp_path), Console()
    job = rig.add_job(command)
    rig.tick()
    attempt = rig.store.attempts(job)[0]
    console.follow_attempt(attempt)
    rig.tick_until_ended(job)
    console.finish_attempt(job, 1)
    wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    return capsys.readouterr().out


def test_prints_a_progress_bar_at_most_once_a_second_and_always_its_last_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    draw = "import time\nfor n in range(151): print(end=f'\\r{n:3}% of it', flush=True); time.sleep(0.01)"
    (tmp_path / "bar.py").write_text(f"{draw}\nprint('\\n# no header\\nend')\n")
    lines = output(tmp_path, capsys, f"python3 {tmp_path}/bar.py").splitlines()
    frames = [line for line in lines if "% of it" in line]
    assert 2 <= len(frames) <= time.monotonic() - began + 2
    assert all(re.fullmatch(r"\[job 1\] [ \d]{3}% of it", frame) for frame in frames)
    end = ["[job 1] 150% of it", "[job 1] # no header", "[job 1] end"]
    assert lines[len(frames) - 1 : len(frames) + 2] == end


def test_prints_all_output_of_an_ended_attempt_before_later_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig, console = Rig(tmp_path), Console()
    job = rig.add_job("head -c 3000000 /dev/zero | tr '\\0' x | fold -w 1000")
    rig.tick_until_ended(job)
    console.follow_attempt(rig.store.attempts(job)[0])
    console.finish_attempt(job, 1)
    console.put("drained")
    wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (3002, "drained")


def test_later_messages_wait_for_output_that_the_other_thread_has_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedReader(JobOutputReader):
        has_ended = property(lambda self: True, lambda self, value: None)

    has_read, is_late, main, put = Event(), Event(), current_thread(), Console.put

    def slow_put(console: Console, line: str) -> None:
        if current_thread() is not main:
            has_read.set()
            is_late.wait(0.3)
        put(console, line)

    monkeypatch.setattr("gpu_scheduler.daemon.log_output.JobOutputReader", EndedReader)
    monkeypatch.setattr(Console, "put", slow_put)
    rig, console = Rig(tmp_path), Console()
    job = rig.add_job("echo one")
    rig.tick_until_ended(job)
    console.follow_attempt(rig.store.attempts(job)[0])
    assert has_read.wait(60)
    console.finish_attempt(job, 1)
    console.put("drained")
    is_late.set()
    wait_for(lambda: not console._has_tails.is_set(), "the end of the log")
    console.close()
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("[job 1] one", "drained")


def test_prints_a_last_line_without_a_newline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[job 1] one\n[job 1] two\n" in output(tmp_path, capsys, "echo one; printf two")


def test_truncates_a_very_long_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(tmp_path, capsys, "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo after")
    first, second = out.splitlines()[:2]
    assert re.fullmatch(r"\[job 1\] x{4096}…", first)
    assert second == "[job 1] after"


def test_job_output_keeps_colours_but_no_other_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = r"\033]0;owned\007one\033[2J\n\033[31mtwo\033[6n\033]52;c;aGk=\nthree\007\n"
    out = output(tmp_path, capsys, f"printf '{hostile}'")
    assert out.startswith("[job 1] one\n[job 1] \x1b[31mtwo\x1b[0m\n[job 1] three\n")


def test_the_log_header_shows_the_command_escaped_and_on_one_line(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    job = rig.add_job("true \x1b]0;owned\x07 --api-key s3cret \x1b[2J\r# x")
    rig.tick()
    rig.tick_until_ended(job)
    log = Path(rig.store.attempts(job)[0].log or "").read_bytes()
    first, second = log.split(b"\n")[:2]
    shown = rb"true \x1b]0;owned\x07 --api-key (hidden) \x1b[2J\r# x"
    assert (first, second) == (b"# job 1, attempt 1: " + shown, b"# command: " + shown)


def test_prints_only_the_end_of_output_that_is_faster_than_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig, console = Rig(tmp_path), Console()
    job = rig.add_job("head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last")
    rig.tick_until_ended(job)
    console.follow_attempt(rig.store.attempts(job)[0])
    console.finish_attempt(job, 1)
    console.close()
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\[job 1\] … [23]\d,\d{3},\d{3} bytes omitted; `logs 1` shows them", lines[0])
    assert lines[1] == "[job 1] last"


def test_resumes_printing_once_a_full_disk_has_free_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    out = Full()
    monkeypatch.setattr(sys, "stdout", out)
    console = Console()
    console.put("lost")
    console.flush()
    out.is_full = False
    console.put("shown")
    console.close()
    assert out.getvalue() == "shown\n"
