"""The `logs` and `attach` commands."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.cli.logs import LogFilter, LogPrinter
from gpu_scheduler.core.model.states import Outcome
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
ENV = {name: value for name, value in os.environ.items() if name != "STY"} | {"PYTHONPATH": str(ROOT)}


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _end_started_processes() -> Iterator[None]:
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


def start(*argv: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", *map(str, argv)],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _started.append(process)
    return process


def read_until(stream: IO[bytes] | None, wanted: bytes) -> bytes:
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    read = bytearray()

    def look() -> bool:
        read.extend(stream.read() or b"")
        return wanted in read

    wait_for(look, f"{wanted!r} in the output")
    os.set_blocking(stream.fileno(), True)
    return bytes(read)


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        (b"a\nb\nc\n", None, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 5, b""),
        (b"x" * 200_000 + b"\n" + b"y" * 70_000 + b"\n", 1, b"y" * 70_000 + b"\n"),
        (b"\xff\x1b[31m\n", 1, b"\xff\x1b[31m\n"),
    ],
)
def test_logs_prints_the_last_lines_unchanged(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], content: bytes, lines: int | None, shown: bytes
) -> None:
    (tmp_path / "log").write_bytes(content)
    tail = LogPrinter(str(tmp_path / "log"))
    tail.print_last(lines)
    tail.print_new()
    assert capfdbinary.readouterr().out == shown
    with open(tmp_path / "log", "ab") as file:
        file.write(b"more\n")
    tail.print_new()
    (tmp_path / "log").write_bytes(b"new\n")
    tail.print_new()
    tail.close()
    assert capfdbinary.readouterr().out == b"more\nnew\n"


LONG_BAR = b"".join(
    b"\r\x1b[32m %d%%\x1b[0m \xe2\x96\x88 %d/9999" % (step // 100, step) for step in range(9999)
)


@pytest.mark.parametrize("content", [
    b"a\n" + LONG_BAR,
    b"a\n" + LONG_BAR + b"\n",
    LONG_BAR + b"\nb",
    b"a\n" + b"x" * 200_000 + LONG_BAR,
    b"x" * 200_000 + b"\n" + LONG_BAR + b"\n",
    LONG_BAR + b"\x1b[A\n" + LONG_BAR + b"\n",
    LONG_BAR + b"\r" + b" " * 40 + b"\r",
])  # fmt: skip
def test_the_last_lines_of_a_long_bar_are_its_newest_frames(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], content: bytes
) -> None:
    (tmp_path / "log").write_bytes(content)
    assert len(LONG_BAR) > 200_000
    for draws in (False, True):
        whole, last = (LogPrinter(str(tmp_path / "log"), LogFilter(draw_bars=draws)) for _ in range(2))
        whole.print_last(None)
        whole.finish()
        expected = capfdbinary.readouterr().out
        last.print_last(2)
        last.finish()
        printed = capfdbinary.readouterr().out
        whole.close()
        last.close()
        if draws:
            assert len(printed) < content.count(b"x") + 300_000
            assert printed[-40:] == expected[-40:]
        else:
            assert printed == expected


def logged_attempts(desk: Desk, job: int, *outcomes: Outcome) -> None:
    """Records an ended attempt with a log for each outcome."""
    for number, outcome in enumerate(outcomes, 1):
        row = desk.attempt(job)
        log = desk.path / f"{number}.log"
        log.write_text(f"attempt {number}\n")
        desk.writer.record_log(row.id, str(log), None)
        desk.record(changes.end(row.id, outcome))


def test_logs_prints_the_latest_attempt(desk: Desk) -> None:
    job = desk.job()
    logged_attempts(desk, job, Outcome.NOT_STARTED, Outcome.COMPLETED)
    assert desk.run("logs", job) == (0, "attempt 2\n", "")
    assert desk.run("logs", job, "-f") == (0, "attempt 2\n", "")
    assert desk.run("logs", job, "-n", 0) == (0, "", "")


def test_logs_reports_a_missing_log(desk: Desk) -> None:
    job = desk.job()
    code, out, err = desk.run("logs", job)
    assert (code, out) == (1, "")
    assert err == f"gpu-scheduler: job {job} has no log: it is queued and was never started\n"
    row = desk.attempt(job)
    assert f"attempt 1 of job {job} has no log yet" in desk.run("logs", job)[2]
    desk.writer.record_log(row.id, "/nowhere/3.log", None)
    assert desk.run("logs", job)[::2] == (
        1, "gpu-scheduler: the log /nowhere/3.log cannot be read: No such file or directory\n"
    )  # fmt: skip
    assert "there is no job 77" in desk.run("logs", 77)[2]


def test_logs_prints_an_earlier_attempt(desk: Desk) -> None:
    job = desk.job()
    logged_attempts(desk, job, Outcome.NOT_STARTED, Outcome.NOT_STARTED)
    assert desk.run("logs", job, "--attempt", 1) == (0, "attempt 1\n", "")
    assert desk.run("logs", job, "--attempt", 1, "-f") == (0, "attempt 1\n", "")
    assert desk.run("logs", job, "--attempt", 2) == desk.run("logs", job)
    assert desk.run("logs", job, "--attempt", 3) == (
        1, "", f"gpu-scheduler: job {job} has no attempt 3; its attempts are 1, 2\n"
    )  # fmt: skip
    assert desk.run("logs", job, "--attempt", 0)[0] == 2


def test_logs_follow_prints_the_whole_log_and_ends_with_the_job(desk: Desk) -> None:
    job = desk.run_job("echo one; while [ ! -e go ]; do sleep 0.01; done; seq 5000; echo last")
    process = start("logs", job, "-f")
    read = read_until(process.stdout, b"one\n")
    (desk.path / "go").touch()
    out, err = process.communicate(timeout=60)
    read += out
    assert process.returncode == 0
    assert b"\n5000\nlast\n" in read
    assert read == (desk.path / f"job_{job}.log").read_bytes()
    assert b"no scheduler is running" in err


def test_logs_follow_continues_with_the_next_attempt(desk: Desk) -> None:
    job = desk.job()
    rows = []
    with desk.scheduler("deaf"):
        for number in (1, 2):
            row = desk.attempt(job)
            rows.append(row)
            log = desk.path / f"{number}.log"
            log.write_text(f"attempt {number}\n")
            desk.writer.record_log(row.id, str(log), None)
            if number == 1:
                process = start("logs", job, "-f")
                read = read_until(process.stdout, b"attempt 1\n")
                desk.record(changes.end(row.id, Outcome.NOT_STARTED))
        read += read_until(process.stdout, b"attempt 2\n")
        assert process.poll() is None
        desk.record(changes.end(rows[-1].id, Outcome.COMPLETED))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, read + out, err) == (0, b"attempt 1\nattempt 2\n", b"")


BAR = b"start\n\r  0%|    | 0/2\r 50%|##  | 1/2\r100%|####| 2/2\nend without a newline"


def on_terminal(*argv: object) -> bytes:
    """Returns the output of a command on a terminal that does not change the output."""
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "gpu_scheduler", *map(str, argv)]
    process = subprocess.Popen(words, env=ENV, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:
        pass  # the last process that had the terminal open has closed it
    os.close(ours)
    assert process.wait(60) == 0
    return shown


def test_logs_prints_every_frame_of_a_progress_bar_only_on_a_terminal(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    log = desk.path / "bar.log"
    log.write_bytes(BAR)
    desk.writer.record_log(row.id, str(log), None)
    assert desk.run("logs", job)[1].encode() == b"start\n100%|####| 2/2\nend without a newline"
    assert desk.run("logs", job, "-n", 2)[1].encode() == b"100%|####| 2/2\nend without a newline"
    done = start("logs", job, "--raw")
    assert done.communicate(timeout=60) == (BAR, b"")
    assert on_terminal("logs", job) == BAR


#: HOSTILE sets a title and the clipboard, clears the screen, queries the terminal and rings the bell. NESTED
#: draws a progress bar inside another one.
HOSTILE = (
    b"\x1b]0;owned\x07one\x1b]52;c;aGk=\x1b\\\n\x1b[31mtwo\x1b[2J\x1b[H\x1b[6n\x07\x1b[0m\n 1%\r 2%\x1b[K\n"
)
NESTED = b"\router 0%\n\rinner 0%\x1b[A\n\rinner 9%\x1b[A\n\r        \x1b[A\router 9%\nend\n"


def test_only_colours_and_progress_bars_reach_the_terminal(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    log = desk.path / "hostile.log"
    log.write_bytes(HOSTILE)
    desk.writer.record_log(row.id, str(log), None)
    text = b"one\n\x1b[31mtwo\x1b[0m\n"
    assert on_terminal("logs", job) == text + b" 1%\r 2%\x1b[K\n"
    assert desk.run("logs", job)[1].encode() == text + b" 2%\x1b[K\n"
    assert on_terminal("logs", job, "--raw") == HOSTILE
    log.write_bytes(NESTED)
    for shown in (on_terminal("logs", job), desk.run("logs", job)[1].encode()):
        assert shown == b"outer 0%\nouter 9%\nend\n"


def test_logs_follow_into_a_pipe_updates_a_progress_bar_at_most_once_a_second(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)
    log = desk.path / "bar.log"
    log.write_bytes(b"start\n")
    desk.writer.record_log(row.id, str(log), None)
    process, raw = start("logs", job, "-f"), start("logs", job, "-f", "--raw")
    began = time.monotonic()
    read = bytearray(read_until(process.stdout, b"start\n"))
    assert process.stdout is not None
    out = process.stdout
    with open(log, "ab", buffering=0) as file:
        frames = itertools.count()

        def draw() -> bool:
            for _ in range(5):
                file.write(b"\r %d%%" % next(frames))
            os.set_blocking(out.fileno(), False)
            read.extend(out.read() or b"")
            os.set_blocking(out.fileno(), True)
            return read.count(b"%") >= 2

        wait_for(draw, "two updates", every_s=0.02)
        file.write(b"\r100%\nlast")
    desk.record(changes.end(row.id, Outcome.COMPLETED))
    read += process.communicate(timeout=60)[0]
    assert read.endswith(b"\n100%\nlast")
    assert read.count(b"%") <= time.monotonic() - began + 2
    assert b"\r" not in read
    assert raw.communicate(timeout=60)[0] == log.read_bytes()


#: A program that holds a claim and keeps the terminal of a window open.
HOLDER = """\
import json, os, signal, sys
from gpu_scheduler.runner import folder as files
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.open(sys.argv[3], os.O_RDWR)
process = {"pid": os.getpid(), "start_ticks": files.start_ticks(), "boot_id": files.boot_id()}
identity = {**json.loads(sys.argv[2]), **process}
held = files.claim(files.open_folder(sys.argv[1]), identity)
print("held", flush=True)
signal.pause()
"""


class ClaimedAttempt:
    """A running job whose claim is held by a process with a window, as a real runner would hold it."""

    def __init__(self, desk: Desk, session: str | None) -> None:
        self.job = desk.job()
        row = desk.attempt(self.job)
        self.attempt_id = row.id
        path = desk.folder(row)
        path.mkdir(parents=True)
        self._window, slave = pty.openpty()
        identity = json.dumps({"token": row.token, "session": session, "log": None})
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, identity, os.ttyname(slave)],
            env=ENV, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"held\n"
        os.close(slave)
        desk.record(changes.run(self.attempt_id))

    def close_window(self) -> None:
        """Closes the window, as Ctrl-A k does in Screen."""
        os.close(self._window)
        self._window = -1

    def end(self) -> None:
        """Ends the runner."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        if self._window >= 0:
            self.close_window()


@pytest.fixture
def claim(desk: Desk) -> Iterator[Callable[[str | None], ClaimedAttempt]]:
    made: list[ClaimedAttempt] = []

    def one(session: str | None) -> ClaimedAttempt:
        made.append(ClaimedAttempt(desk, session))
        return made[-1]

    yield one
    for held in made:
        held.end()


@pytest.fixture
def fake_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides a folder with a `screen` that prints its arguments. The folder is the only one in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "screen").write_text('#!/bin/sh\necho "called: $0 $*"\nexit 5\n')
    (folder / "screen").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def session(tmp_path: Path) -> Iterator[str]:
    """Provides the name of a session whose SCREEN process is alive."""
    program = tmp_path / "SCREEN" / "screen"
    program.parent.mkdir()
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    yield f"{process.pid}.gpujob_0_train_1"
    process.kill()
    process.wait()


def test_attach_executes_screen_with_the_full_session_name(
    claim: Callable[[str | None], ClaimedAttempt], fake_screen: Path, session: str
) -> None:
    job = claim(session).job
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "attach", str(job)],
        env={**ENV, "PATH": str(fake_screen)},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    said = b""
    while b"\n" not in said:
        said += os.read(ours, 4096)
    assert process.communicate(timeout=60)[1] == b""
    os.close(ours)
    assert process.returncode == 5
    assert said.decode().strip() == f"called: {fake_screen}/screen -x {session}"


def test_attach_inside_another_screen_explains_the_detach_keys(
    claim: Callable[[str | None], ClaimedAttempt], fake_screen: Path, session: str
) -> None:
    job = claim(session).job
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "attach", str(job)],
        env={**ENV, "PATH": str(fake_screen), "STY": "77.work"},
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while b"Press Enter" not in said:
        said += os.read(ours, 4096)
    assert b"called:" not in said
    assert b"already in a Screen session: 77.work\r\n" in said
    assert b"Ctrl-A a d detaches the job's session and Ctrl-A d detaches yours" in said
    os.write(ours, b"\n")
    while b"called:" not in said:
        said += os.read(ours, 4096)
    assert process.communicate(timeout=60)[1] == b""
    os.close(ours)
    assert f"-x {session}" in said.decode()


def test_attach_and_status_report_a_closed_window(
    desk: Desk, claim: Callable[[str | None], ClaimedAttempt], session: str
) -> None:
    held = claim(session)
    job = held.job
    assert f"session {session}\n" in desk.run("status", "-v")[1]
    held.close_window()
    assert desk.run("attach", job) == (
        1,
        "",
        f"gpu-scheduler: the Screen window of job {job} was closed; the job continues\n"
        f"`logs {job} -f` follows its output\n",
    )
    assert "echo hello  window closed\n" in desk.run("status")[1]
    text = desk.run("status", "-v")[1]
    assert f"window closed; `logs {job} -f` follows its output\n" in text
    assert session not in text
    [shown] = json.loads(desk.run("status", "--json")[1])["jobs"]
    assert (shown["state"], shown["session"], shown["window_closed"]) == ("running", None, True)
    desk.record(changes.set_attempt(held.attempt_id, window_closed=True))
    assert f"`logs {job} -f` follows it" in desk.run("why", job)[1]
    assert "the window was closed, but the job continues" in desk.run("screens")[1]
    told = f"job {job} continues although its Screen window was closed; `logs {job} -f` follows its output\n"
    assert told in desk.run("events")[1]


def test_attach_on_an_unknown_type_of_terminal_names_the_remedy(
    claim: Callable[[str | None], ClaimedAttempt], fake_screen: Path, session: str
) -> None:
    """Screen itself would end with exit code 0."""
    tput = fake_screen / "tput"
    tput.write_text('#!/bin/sh\n[ "$TERM" = xterm ] || exit 3\n')
    tput.chmod(0o755)
    job = claim(session).job
    for term, code in (("xterm-new", 1), ("xterm", 5)):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", "attach", str(job)],
            env={**ENV, "PATH": str(fake_screen), "TERM": term}, stdin=theirs, stdout=theirs,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        assert done.returncode == code
        assert ("of the type 'xterm-new' (TERM); run `TERM=xterm " in done.stderr) == (code == 1)


def test_logs_of_several_jobs_are_printed_one_after_the_other(
    desk: Desk,
) -> None:
    jobs = [desk.job(), desk.job()]
    for job in jobs:
        logged_attempts(desk, job, Outcome.NOT_STARTED, Outcome.COMPLETED)
    both = "".join(f"==> job {job} <==\nattempt 2\n" for job in jobs)
    assert desk.run("logs", *jobs) == (0, both, "")


def test_attach_requires_a_terminal_a_session_and_screen(
    claim: Callable[[str | None], ClaimedAttempt], fake_screen: Path, session: str
) -> None:
    def attach(job: int) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_scheduler", "attach", str(job)],
            env={**ENV, "PATH": str(fake_screen)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    held = claim(session)
    with_session, without = held.job, claim(None).job
    code, said = attach(with_session)
    assert (code, "`attach` needs a terminal" in said) == (2, True)
    code, said = attach(without)
    assert (code, "--screen" in said, f"`logs {without} -f`" in said) == (1, True, True)
    (fake_screen / "screen").unlink()
    code, said = attach(with_session)
    assert (code, "sudo apt-get install screen" in said) == (1, True)
    held.end()
    code, said = attach(with_session)
    assert (code, "is no longer running" in said) == (1, True)


def test_attach_rejects_a_job_that_is_not_running(desk: Desk) -> None:
    job = desk.job()
    assert f"job {job} is not running but queued\n" in desk.run("attach", job)[2]
    row = desk.attempt(job)
    assert "is starting; try again" in desk.run("attach", job)[2]
    desk.record(changes.end(row.id, Outcome.FAILED, exit_code=1))
    code, out, err = desk.run("attach", job)
    assert (code, out) == (1, "")
    assert err == f"gpu-scheduler: job {job} is not running but finished; `logs {job}` shows its output\n"
    assert "there is no job 9" in desk.run("attach", 9)[2]


def test_logs_reads_the_log_path_from_the_claim_until_it_is_recorded(desk: Desk) -> None:
    job = desk.run_job("echo early; while [ ! -e go ]; do sleep 0.01; done")
    log = desk.path / f"job_{job}.log"
    wait_for(lambda: "early" in log.read_text(), "output")
    row = desk.store.attempts(job)[0]
    assert observe(desk.folder(row), row.token).log == str(log)
    desk.writer.record_log(row.id, None, None)
    assert desk.run("logs", job) == (0, log.read_text(), "")
