"""Tests of the judge of claims: traces made by hand, with and without faults."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.stress.claim_judge import Promise, Trace, broken_promises, held_twice
from tests.stress.held_locks import has_locks, held_mib

TOTAL = 1000
ALL = frozenset({0, 1})
PART, WHOLE = Promise(1, 600, ALL), Promise(1, None, ALL)
SHARE = Promise(1, 600, ALL, is_share=True)


def trace_of(folder: Path, *lines: str) -> Trace:
    (folder / "trace").write_text("".join(f"{line}\n" for line in lines))
    trace = Trace(folder / "trace")
    trace.read()
    return trace


def lines_of(number: int, begin: float, end: float | None, gpu: int = 0, held: str = "0:600") -> list[str]:
    lines = [f"{number} start 71 {gpu} {held} {begin}"]
    return [*lines, f"{number} end 0 {gpu} {held} {end}"] if end is not None else lines


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(lines_of(1, 1, 2), lines_of(2, 2, 3), id="one after the other"),
        pytest.param(lines_of(1, 1, 3), lines_of(2, 2, 4, gpu=1), id="on different GPUs"),
    ],
)
def test_uses_that_never_share_memory_pass(tmp_path: Path, first: list[str], second: list[str]) -> None:
    assert held_twice(trace_of(tmp_path, *first, *second), {1: PART, 2: PART}, {}, TOTAL) == []


@pytest.mark.parametrize("later", [PART, WHOLE, Promise(1, 401, ALL)])
@pytest.mark.parametrize("end", [3, None])
@pytest.mark.parametrize("held", ["0:600", "-"])
def test_memory_that_two_commands_use_at_once_is_a_fault(
    tmp_path: Path, later: Promise, end: float | None, held: str
) -> None:
    trace = trace_of(tmp_path, *lines_of(1, 1, end, held=held), *lines_of(2, 2, 4, held=held))
    assert len(held_twice(trace, {1: PART, 2: later}, {}, TOTAL)) == 1


def test_amounts_that_fit_side_by_side_pass_but_not_beside_a_whole_gpu(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *lines_of(1, 1, 4), *lines_of(2, 2, 3))
    assert held_twice(trace, {1: PART, 2: Promise(1, 400, ALL)}, {}, TOTAL) == []
    assert len(held_twice(trace, {1: WHOLE, 2: Promise(1, 1, ALL)}, {}, TOTAL)) == 1


def test_killed_holder_has_nothing_from_the_kill_on(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *lines_of(1, 1, None), *lines_of(2, 2, 3))
    assert held_twice(trace, {1: PART, 2: PART}, {1: 1.5}, TOTAL) == []
    assert len(held_twice(trace, {1: PART, 2: PART}, {1: 2.5}, TOTAL)) == 1


def test_share_counts_as_the_memory_that_its_runner_locked(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *lines_of(1, 1, 4), *lines_of(2, 2, 3, held="0:400"))
    assert held_twice(trace, {1: PART, 2: SHARE}, {}, TOTAL) == []
    full = trace_of(tmp_path, *lines_of(1, 1, 4), *lines_of(2, 2, 3))
    assert len(held_twice(full, {1: PART, 2: SHARE}, {}, TOTAL)) == 1


@pytest.mark.parametrize(
    ("promise", "gpus", "held", "faults"),
    [
        (PART, "0", "0:600", 0),
        (PART, "0", "0:599", 1),
        (PART, "0", "0:1000", 1),
        (WHOLE, "1", "1:1000", 0),
        (WHOLE, "1", "1:999", 1),
        (SHARE, "0", "0:1", 0),
        (SHARE, "0", "-", 0),
        (SHARE, "0", "0:601", 1),
        (SHARE, "0", "1:1", 1),
        (PART, "0", "1:600", 1),
        (PART, "0", "0:600,1:600", 1),
        (PART, "0", "-", 1),
        (Promise(2, 600, ALL), "0,1", "0:600,1:600", 0),
        (Promise(2, 600, ALL), "0,1", "0:600", 1),
        (Promise(2, 600, ALL), "0", "0:600", 1),
        (Promise(1, 600, frozenset({1})), "0", "0:600", 1),
    ],
)
def test_locks_and_gpus_must_be_those_promised(
    tmp_path: Path, promise: Promise, gpus: str, held: str, faults: int
) -> None:
    trace = trace_of(tmp_path, f"1 start 71 {gpus} {held} 1")
    assert len(broken_promises(trace, {1: promise}, [], TOTAL)) == faults


def test_locks_that_are_gone_at_the_end_are_a_fault_unless_the_holder_was_killed(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "1 start 71 0 0:600 1", "1 end 0 0 - 2")
    assert len(broken_promises(trace, {1: PART}, [], TOTAL)) == 1
    assert broken_promises(trace, {1: PART}, [1], TOTAL) == []


def test_trace_is_read_as_it_grows_and_without_a_line_that_is_not_complete(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *lines_of(1, 1, None))
    assert [one.number for one in trace.open()] == [1]
    with (tmp_path / "trace").open("a") as file:
        file.write("1 end 7 0 0:600 2")
        file.flush()
        assert trace.read() == 0
        file.write(".5\n")
    assert trace.read() == 1
    assert trace.open() == []
    assert [(one.end, one.code) for one in trace.all()] == [(2.5, 7)]


def test_locks_of_a_process_are_read_from_the_kernel(tmp_path: Path) -> None:
    """SIM-2 is locked beyond its memory."""
    ranges_of = {"SIM-0": [(10, 5), (100, 50)], "SIM-1": [(0, 0)], "SIM-2": [(TOTAL, 1)]}
    for name in [*ranges_of, "SIM-3"]:
        (tmp_path / name).touch()
    child = os.fork()
    if child == 0:
        os.open(tmp_path / "SIM-3", os.O_RDWR)
        for name, ranges in ranges_of.items():
            fd = os.open(tmp_path / name, os.O_RDWR)
            for start, length in ranges:
                fcntl.lockf(fd, fcntl.LOCK_EX, length, start)
        os.kill(os.getpid(), 19)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        assert held_mib(child, str(tmp_path), TOTAL) == {"SIM-0": 55, "SIM-1": TOTAL, "SIM-2": 0}
        assert held_mib(child, str(tmp_path.parent), TOTAL) == {}
        assert has_locks(child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not has_locks(child)
    assert held_mib(child, str(tmp_path), TOTAL) == {}
