"""Tests of the jobs-file reader on real files: encodings, ways of saving, bash checks, leases, and speed."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.diff import InsertJob, ReadingDiff
from gpu_scheduler.core.jobsfile.reading import Reading
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.intake.jobs_file_text import JobsFile, is_open_for_writing, read_standard_input
from gpu_scheduler.intake.jobs_file_watcher import JobsFileReader, Poll, malformed_message


class ReaderDriver:
    """A jobs-file reader with its last reading, and with a clock that only the test advances."""

    def __init__(self, path: Path, known_gpus: frozenset[int] | None = frozenset(range(4))) -> None:
        self.path, self.known_gpus = path, known_gpus
        self.reader = JobsFileReader(path, "/w", "/home/u", known_gpus)
        self.reading: Reading = ()
        self.jobs: dict[int, str] = {}
        self.now = 100.0

    def facts(self) -> dict[int, Job]:
        return {i: Job(i, JobState.QUEUED) for i in self.jobs}

    def poll(self, later: float = 0.0) -> Poll:
        """Polls the file `later` seconds after the last poll."""
        self.now += later
        poll = self.reader.poll(self.reading, self.facts(), self.now)
        if poll.accepted is not None:
            result = ReadingDiff(self.reading, poll.accepted, self.facts(), {})
            new = {}
            for action in result.actions:
                if isinstance(action, InsertJob):
                    new[action.index] = len(self.jobs) + 1
                    self.jobs[len(self.jobs) + 1] = poll.accepted.lines[action.index].text
            self.reading = result.to_reading(new)
        return poll

    def texts(self) -> list[str]:
        """Returns the texts of the well-formed lines in the reading."""
        return [line.text for line in self.reading if not line.malformed]


def watch(tmp_path: Path, content: str | bytes) -> ReaderDriver:
    path = tmp_path / "jobs.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    watcher = ReaderDriver(path)
    watcher.poll()
    return watcher


def malformed(tmp_path: Path, content: str | bytes) -> dict[int, str]:
    """Returns the reason for each malformed line, by line number."""
    return {line.number: line.problem or "" for line in watch(tmp_path, content).poll().malformed}


@pytest.mark.parametrize("content", ["[allowed=3] a\n", "[allowed=3] a\r\n", "[allowed=3] a\nb\n"])
def test_job_is_kept_if_its_gpu_is_lost_and_its_line_ending_changes(tmp_path: Path, content: str) -> None:
    w = watch(tmp_path, "[allowed=3] a")
    w.poll(6.0)
    assert w.texts() == ["a"]
    w.reader = JobsFileReader(w.path, "/w", "/home/u", frozenset(range(2)))
    w.path.write_bytes(content.encode())
    for wait_s in (0.1, 3.0, 11.0):
        poll = w.poll(wait_s)
        assert (poll.malformed, poll.waits) == ((), {})
    assert w.texts()[0] == "a"
    assert w.reading[0].job_id == 1
    assert w.reading[0].raw == content.splitlines(keepends=True)[0]


def test_accepts_byte_order_marks_and_both_line_endings(tmp_path: Path) -> None:
    w = watch(tmp_path, b"\xef\xbb\xbfpriority,script_path\r\n\xef\xbb\xbf0,/a.py\r\n\r\npython b.py\n")
    assert w.texts() == ["0,/a.py", "python b.py"]


def test_only_line_feeds_separate_lines(tmp_path: Path) -> None:
    w = watch(tmp_path, "echo a\u2028b\nq\x0cr\x85s\n")
    assert w.texts() == ["echo a\u2028b", "q\x0cr\x85s"]


def test_invalid_utf8_is_reported_with_line_column_and_byte(tmp_path: Path) -> None:
    w = watch(tmp_path, b"ok\npython caf\xe9.py\nok2\n")
    (line,) = w.poll().malformed
    assert (line.number, line.problem) == (2, "column 11: byte 0xe9 is not UTF-8")
    message = malformed_message(w.path, line, with_accepted_form=True)
    assert message.startswith(f"{w.path}:2: `python caf")
    assert "save the file as UTF-8" in message
    assert w.texts() == ["ok", "ok2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("python a.py\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        (b"python a.py\n\0\npython b.py\n", "is binary: it contains NUL bytes"),
        (random.Random(18).randbytes(20_000_000), "is binary: it contains NUL bytes"),
        (b"\n" * 60 * 1024**2, "has 62,914,560 lines; a jobs file may have at most 250,000"),
        (b"a\n" * 250_001, "has 250,001 lines; a jobs file may have at most 250,000"),
        (b"\n" + b"x" * 64 * 1024**2, "is larger than 64 MiB"),
    ],
    ids=["UTF-16", "one NUL", "random bytes", "newlines", "too many jobs", "too large"],
)
@pytest.mark.timeout(20)
def test_no_job_is_removed_while_the_jobs_file_is_unusable(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    w = watch(tmp_path, "a\n")
    w.path.write_bytes(content)
    tracemalloc.start()
    try:
        poll = w.poll(60)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (poll.problem, poll.missing, poll.accepted, poll.malformed) == (problem, False, None, ())
    assert most < 3 * len(content) + 1024**2
    w.path.write_text("a\nb\n")
    assert w.poll(1).problem is None
    assert w.texts() == ["a", "b"]


@pytest.mark.parametrize("content", ["", "a\n" * 3, "\n" * 250_000])
def test_standard_input_is_read_like_a_jobs_file(content: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content.encode())
        file.seek(0)
        assert read_standard_input(file.fileno()) == content.encode()
        file.write(b"\0")
        file.seek(0)
        assert str(read_standard_input(file.fileno())) == "is binary: it contains NUL bytes"


def test_messages_escape_control_characters(tmp_path: Path) -> None:
    (line,) = watch(tmp_path, "0;\x1b[2J,a.py,x\n").poll().malformed
    assert "\x1b" not in malformed_message(tmp_path, line, with_accepted_form=True)


def test_follows_a_jobs_file_that_appears_and_disappears(tmp_path: Path) -> None:
    w = ReaderDriver(tmp_path / "jobs.txt")
    poll = w.poll()
    assert poll.missing
    assert poll.problem == "does not exist"
    w.path.write_text("a\nb\n")
    assert w.poll().problem is None
    w.path.unlink()
    for _ in range(3):
        poll = w.poll(20)
        assert poll.missing
        assert (poll.accepted, poll.waits) == (None, {})
    w.path.write_text("a\n")
    assert set(w.poll().waits) == {2}
    assert w.poll(9.9).accepted is None
    assert w.poll(0.2).accepted is not None


def test_removal_delay_restarts_when_the_file_reappears(tmp_path: Path) -> None:
    w = watch(tmp_path, "a\nb\n")
    w.path.write_text("a\n")
    w.poll()
    w.path.rename(tmp_path / "away")
    w.poll(9)
    (tmp_path / "away").rename(w.path)
    w.poll(9)
    assert w.poll(9).accepted is None
    assert w.poll(1.1).accepted is not None


#: The texts of the problems. The caller puts the file's name before them.
PROBLEMS = {
    "directory": ["is not a regular file"],
    "fifo": ["is not a regular file"],
    "loop": ["cannot be read: Too many levels of symbolic links"],
}


@pytest.mark.parametrize("kind", ["directory", "fifo", "loop"])
def test_no_job_is_removed_while_the_path_is_not_a_regular_file(tmp_path: Path, kind: str) -> None:
    w = watch(tmp_path, "a\n")
    w.path.unlink()
    if kind == "directory":
        w.path.mkdir()
    elif kind == "fifo":
        os.mkfifo(w.path)
    else:
        w.path.symlink_to(w.path)
    poll = w.poll(60)
    assert not poll.missing
    assert poll.problem in PROBLEMS[kind]
    assert (poll.accepted, poll.waits) == (None, {})


@pytest.mark.parametrize("style", ["in place", "rename", "emptied and rewritten"])
def test_reads_the_same_lines_whichever_way_the_file_is_saved(tmp_path: Path, style: str) -> None:
    w = watch(tmp_path, "a\nb\nc\n")
    if style == "rename":
        (tmp_path / "new").write_text("a\nc\nd\n")
        (tmp_path / "new").rename(w.path)
    elif style == "in place":
        w.path.write_text("a\nc\nd\n")
    else:
        w.path.write_text("")
        assert set(w.poll().waits) == {1, 2, 3}
        w.path.write_text("a\nc\nd\n")
    assert set(w.poll(0.1).waits) == {2}
    w.poll(2)
    assert list(w.jobs.values()) == ["a", "b", "c", "d"]
    w.poll(8)
    assert w.texts() == ["a", "c", "d"]


def test_does_not_read_an_unchanged_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    os.utime(path, (1, 1))
    file = JobsFile(path)
    monkeypatch.setattr(time, "time_ns", lambda: os.stat(path).st_ctime_ns + 10_000_000_000)
    first = file.read()
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened again"))
    assert file.read() is first


def test_detects_a_change_that_keeps_the_size_and_the_timestamp(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    os.utime(path, ns=(5, 5))
    file = JobsFile(path)
    assert file.read() == b"a\n"
    path.write_text("b\n")
    os.utime(path, ns=(5, 5))
    assert file.read() == b"b\n"


def test_detects_that_a_process_has_the_file_open_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    assert not is_open_for_writing(path)
    with path.open("a"):
        assert is_open_for_writing(path)
    assert not is_open_for_writing(path)
    assert not is_open_for_writing(tmp_path / "none")
    with path.open():
        assert not is_open_for_writing(path)


def test_reader_survives_when_other_processes_break_its_lease(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gpu_scheduler.intake.jobs_file_watcher import is_open_for_writing\n"
        "seen = [is_open_for_writing(Path(sys.argv[1])) for _ in range(4000)]\n"
        "print(len(seen))\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    while asking.poll() is None:
        with path.open("a"):
            pass
    assert asking.stdout is not None
    with asking.stdout as answer:
        assert answer.read() == "4000\n"
    assert asking.returncode == 0


def test_removals_wait_until_the_writer_closes_the_file(tmp_path: Path) -> None:
    w = watch(tmp_path, "a\nb\n")
    with w.path.open("w"):
        w.poll()
        poll = w.poll(15)
        assert poll.accepted is None
        assert poll.recheck_at == w.now + 1
        assert set(poll.waits) == {1, 2}
    w.path.write_text("a\nb\nc\n")
    assert w.poll().waits == {}
    w.poll(30)
    assert w.jobs == {1: "a", 2: "b", 3: "c"}


def test_commands_that_bash_rejects_do_not_affect_other_lines(tmp_path: Path) -> None:
    content = (
        "python a.py > o && echo done\necho it's\npython b.py | tee x\n( x ))\nx; }; { y\necho $(date)\n"
    )
    w = watch(tmp_path, content)
    reasons = {line.number: line.problem or "" for line in w.poll().malformed}
    assert set(reasons) == {2, 4, 5}
    assert all(reason.startswith("bash rejects the command: ") for reason in reasons.values())
    assert len(w.jobs) == 3


def test_checking_with_bash_does_not_run_the_commands(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    watch(tmp_path, f"touch {mark}; true\n}}; touch {mark}; {{\n`touch {mark}`\n$(touch {mark})\n")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("lines", "mistakes"),
    [
        (["for i in 1 2; do", "  python a.py $i", "done", "b"], {1, 2, 3}),
        (["if true; then", "a", "", "# c", "fi", "b"], {1, 2, 5}),
        (["python a.py \\", "  --x 1 \\", "  --y 2", "b"], {1, 2, 3}),
        (["a &&", "c", "b"], {1, 2}),
        (
            ["for i in \\\\", "do", "  python a.py $i", "done", "b"],
            {1, 2, 3, 4},
        ),  # it does not continue the line
        (["cat <<EOF", "c", "EOF", "b"], {1, 2, 3}),
        (["echo 'x", "b"], {1}),
        (["echo don't", "b", "echo it's"], {1, 3}),
        (["for i in 1 2; do", "0,/a.py,e", "b"], {1}),
        (["a &", "b"], {1}),
        (["[ -f x ] && a", "b"], {1}),
    ],
)
def test_lines_that_continue_an_unfinished_command_are_malformed_too(
    tmp_path: Path, lines: list[str], mistakes: set[int]
) -> None:
    w = watch(tmp_path, "\n".join(lines) + "\n")
    assert {line.number for line in w.poll().malformed} == mistakes
    assert "b" in w.texts()


def test_known_line_stays_valid_when_its_gpu_is_gone(tmp_path: Path) -> None:
    w = watch(tmp_path, "[allowed=3] a && b\n0,/a.py,,x,3\n")
    assert len(w.jobs) == 2
    restarted = ReaderDriver(w.path, frozenset({0}))
    restarted.reading, restarted.jobs = w.reading, w.jobs
    poll = restarted.poll(60)
    assert (poll.malformed, poll.waits, poll.accepted) == ((), {}, None)
    with w.path.open("a") as file:
        file.write("0,/b.py,,x,3\n")
    (line,) = restarted.poll().malformed
    assert "there is no GPU 3" in (line.problem or "")


def test_restart_reports_no_changes_if_the_file_is_unchanged(tmp_path: Path) -> None:
    w = watch(tmp_path, "a\nbad,b.py,c\n0,a.py\n")
    again = ReaderDriver(w.path)
    again.reading, again.jobs = w.reading, dict(w.jobs)
    for later in (0, 2, 5, 30):
        poll = again.poll(later)
        assert (poll.accepted, poll.recheck_at, poll.waits) == (None, None, {})
        assert len(poll.malformed) == 1


BASE = [f"python train.py --seed {i} 'a b'" if i % 2 else f"0,/t.py,env,--seed {i} x,0-3" for i in range(8)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 7),
    cut=st.integers(0, 30),
    put=st.text(alphabet="a0,\"'[]#\\&;|(\t\x01\r\ufeff\u2028é", max_size=4) | st.binary(max_size=3),
)
def test_changing_one_line_at_random_does_not_affect_other_lines(
    tmp_path: Path, at: int, cut: int, put: str | bytes
) -> None:
    lines = [line.encode() for line in BASE]
    # Leave out bytes that would make the whole file binary (NUL, a UTF-16 byte order mark).
    added = put.encode() if isinstance(put, str) else re.sub(rb"[\n\0\xfe\xff]", b"", put)
    lines[at] = lines[at][:cut] + added + lines[at][cut:]
    w = watch(tmp_path, b"\n".join(lines) + b"\n")
    texts = {line.number: line.text for line in w.reading if not line.malformed}
    # By design, if bash needs more input to complete a line, the next line belongs to that line.
    continued = {
        line.number for line in w.reading if (line.problem or "").startswith("this line belongs to line")
    }
    assert continued <= {at + 2}
    for number, line in enumerate(BASE, 1):
        if number != at + 1 and number not in continued:
            assert texts[number] == line


def test_reads_twenty_thousand_lines(tmp_path: Path) -> None:
    half = 10_000
    content = "".join(
        f"0,/p/train.py,env,--lr {i} --name run{i},0-3\n[gpus=2] python train.py --seed {i} 'x y' > log{i}\n"
        for i in range(half)
    )
    path = tmp_path / "jobs.txt"
    path.write_text(content)
    watcher = ReaderDriver(path)
    poll = watcher.reader.poll((), {}, 0.0)
    assert poll.accepted is not None
    assert len(poll.accepted.lines) == 2 * half
    result = ReadingDiff((), poll.accepted, {}, {})
    reading = result.to_reading({i: i + 1 for i in range(2 * half)})
    jobs = {i + 1: Job(i + 1, JobState.QUEUED) for i in range(2 * half)}
    path.write_text(content + "python one_more.py\n")
    poll = watcher.reader.poll(reading, jobs, 1.0)
    assert poll.accepted is not None
    assert poll.accepted.lines[-1].text == "python one_more.py"
