"""Tests that a log keeps its first half and its end when it reaches its limit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.cli.logs import LogPrinter
from gpu_scheduler.runner.output import LogWriter
from tests.runner.attempt import wait_for
from tests.runner.conftest import Make

LIMIT = 8192
_GAP = re.compile(rb"\n--- +([0-9,]+) bytes of output were left out here \(start --log-limit\)\n")


def parts(log: bytes) -> tuple[bytes, int, bytes]:
    """Returns the beginning of a log, the number of bytes that its gap names, and its end."""
    begin, count, end = _GAP.split(log)
    return begin, int(count.replace(b",", b"")), end


def lines_of(numbers: Iterable[int], width: int) -> bytes:
    return b"".join(b"%0*d\n" % (width, number) for number in numbers)


@settings(max_examples=60)
@given(st.integers(2, 300), st.integers(1, 40), st.integers(1, 3000))
def test_a_log_over_its_limit_keeps_its_beginning_and_its_end(
    tmp_path_factory: pytest.TempPathFactory, width: int, rounds: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    path.touch()
    writer, written = LogWriter(str(path), LIMIT), b""
    for first in range(rounds):
        data = lines_of(range(first * step, first * step + max(1, step // width)), max(2, width))
        writer.write(data)
        written += data
    log = path.read_bytes()
    assert len(log) <= LIMIT
    if len(written) <= LIMIT:
        assert log == written
        return
    begin, count, end = parts(log)
    assert begin == written[: LIMIT // 2]
    assert written.endswith(end)
    assert end == b"" or written[: -len(end)].endswith(b"\n")
    assert len(begin) + count + len(end) == len(written)
    longest = max(map(len, written.splitlines(keepends=True)))
    assert len(end) >= LIMIT // 4 - longest


def test_a_running_job_keeps_to_its_limit(make: Make) -> None:
    attempt = make("seq 1000000; exit 3", log_limit=1 << 20).launch()
    assert attempt.result().exit_code == 3
    log = attempt.log.read_bytes()
    assert len(log) <= 1 << 20
    begin, count, end = parts(log)
    every = b"".join(b"%d\n" % number for number in range(1, 1_000_001))
    head = begin.index(b"1\n2\n3\n")
    tail = end.index(b"--- failed")
    assert begin[head:] == every[: len(begin) - head]
    assert every.endswith(end[:tail].rstrip(b"\n") + b"\n")
    assert len(begin) - head + count + tail == len(every)


def test_a_log_that_somebody_truncated_grows_to_its_limit_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.touch()
    writer = LogWriter(str(path), LIMIT)
    writer.write(b"old\n" * (LIMIT // 4))
    os.truncate(path, 0)
    writer.write(b"new\n" * 100)
    assert path.read_bytes() == b"new\n" * 100
    writer.write(b"more\n" * LIMIT)
    assert len(path.read_bytes()) < LIMIT
    assert _GAP.search(path.read_bytes())


def test_a_follower_goes_on_where_the_log_was_shortened(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "a.log"
    path.touch()
    writer, printer = LogWriter(str(path), LIMIT), LogPrinter(str(path))
    for number in range(2000):
        writer.write(b"line %d\n" % number)
        printer.print_new()
    printer.close()
    printed = [int(line.split()[1]) for line in capfdbinary.readouterr().out.splitlines()]
    assert printed == sorted(set(printed)), "no line is printed twice"
    assert len(printed) >= 1990
    assert printed[-1] == 1999


def test_a_follower_reads_a_truncated_log_from_its_beginning(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\nsecond\n")
    printer = LogPrinter(str(path))
    printer.print_new()
    path.write_bytes(b"new\n")
    printer.print_new()
    printer.close()
    assert capfdbinary.readouterr().out == b"first\nsecond\nnew\n"


def test_a_log_without_a_limit_keeps_everything(make: Make) -> None:
    attempt = make("seq 200000").launch()
    wait_for(lambda: attempt.result().exit_code == 0, "the end of the job")
    assert b"\n200000\n" in attempt.log.read_bytes()
    assert not _GAP.search(attempt.log.read_bytes())
