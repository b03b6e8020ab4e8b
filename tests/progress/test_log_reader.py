"""Reading logs that grow."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpu_scheduler.attempts import job_progress as log_reader
from gpu_scheduler.attempts.job_progress import LogReader
from gpu_scheduler.core.explain.log_progress import progress_of_log
from gpu_scheduler.core.explain.progress import RunOptions


def step(reader: LogReader) -> float | None:
    progress = progress_of_log(reader.marks(), RunOptions())
    return None if progress is None else progress.current


def count_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which every reading adds its number of bytes."""
    read, pread = list[int](), os.pread

    def counting(fd: int, count: int, at: int) -> bytes:
        data = pread(fd, count, at)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    return read


def test_reads_only_what_has_been_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, reader, read = tmp_path / "log", LogReader(), count_bytes(monkeypatch)
    log.write_text("Step 1/300\n")
    assert reader.read(str(log))
    assert step(reader) == 1
    assert not reader.read(str(log))
    with log.open("a") as file:
        file.write("Step 2/3")
        file.flush()
        assert reader.read(str(log))
        file.write("00\n")
    assert reader.read(str(log))
    assert step(reader) == 2
    assert sum(read) == len("Step 1/300\nStep 2/300\n")


def test_a_huge_log_costs_only_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, reader, read = tmp_path / "log", LogReader(), count_bytes(monkeypatch)
    with log.open("wb") as file:
        file.truncate(10 * 1024**3)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"Step %d/3000 %s\n" % (n, b"." * 400) for n in range(1000)))
    assert reader.read(str(log))
    assert step(reader) == 999
    assert sum(read) <= 1024**2


def test_an_hour_of_a_bar_in_one_line_hides_no_heading(tmp_path: Path) -> None:
    log, reader = tmp_path / "log", LogReader()
    frame = "\r 80%|████████  | 240/300 [30:00<30:00,  1.67it/s]"
    log.write_text(f"Epoch 2/4\n{frame * 30_000}")
    assert reader.read(str(log))
    progress = progress_of_log(reader.marks(), RunOptions())
    assert progress is not None
    assert (progress.current, progress.total) == (1.8, 4)


def test_a_log_that_is_replaced_or_shortened_is_read_anew(tmp_path: Path) -> None:
    log, reader = tmp_path / "log", LogReader()
    log.write_text("Step 100/300\n" * 10)
    reader.read(str(log))
    log.write_text("Step 1/300\n")
    assert reader.read(str(log))
    assert step(reader) == 1
    other = tmp_path / "other"
    other.write_text("Step 2/300\n")
    other.rename(log)
    assert reader.read(str(log))
    assert step(reader) == 2
    log.unlink()
    assert reader.read(str(log))
    assert (step(reader), reader.modified_at) == (None, None)
    assert not reader.read(str(log))


def test_a_log_that_grows_by_more_than_a_reading_is_read_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_MAX_BYTES", 4096)
    log, reader = tmp_path / "log", LogReader()
    log.write_text("Step 1/300\n")
    reader.read(str(log))
    with log.open("a") as file:
        file.write("." * 100_000 + "\nStep 2/300\n")
    assert reader.read(str(log))
    assert step(reader) == 2


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("Step 1/300\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("fifo", "link", "", "missing"):
        reader = LogReader()
        assert not reader.read(str(tmp_path / name))
        assert step(reader) is None


def test_a_log_that_takes_too_long_shows_no_progress_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, reader, read, now = tmp_path / "log", LogReader(), count_bytes(monkeypatch), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log.write_text("Step 1/300\n")
    assert reader.read(str(log))
    assert step(reader) == 1
    slow = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(time, "thread_time", lambda: next(slow) * 0.1)  # each line takes 0.1 s
        log.write_text("Step 1/300\nStep 2/300\nStep 3/300\nStep 4/300\n")
        assert reader.read(str(log))
        assert (step(reader), next(slow) <= 4) == (None, True)
        bytes_read = sum(read)
        for seconds in (0.0, 30.0, 59.9):
            now[0] = seconds
            assert not reader.read(str(log))
    assert (step(reader), sum(read)) == (None, bytes_read)
    now[0] = 60.0
    assert reader.read(str(log))
    assert step(reader) == 4


def test_lines_that_take_as_long_as_the_budget_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, reader, slow = tmp_path / "log", LogReader(), iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(slow) * 0.1)
    log.write_text("Step 1/300\nStep 2/300\n")
    assert reader.read(str(log))
    assert step(reader) == 2
