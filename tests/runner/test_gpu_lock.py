"""Claims on the memory of GPUs, with real files, locks and processes."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.runner import locks
from gpu_scheduler.runner.folder import SHORTAGE
from gpu_scheduler.runner.locks import (
    MANY_LOCKS_END,
    MAX_LOCKS,
    Lock,
    LockFileError,
    Refusal,
    Wanted,
    claim_gpus,
    free_ranges,
    open_to_read,
    release,
    try_lock,
)
from gpu_scheduler.show.gpu_text import holder_text
from gpu_scheduler.system.gpu_claims import read_locks_of
from tests.runner.lock_process import LockProcess, lock_processes, locks_on

GPU = "GPU-a"
TOTAL = 1000
RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LockProcess]:
    """Starts another process that takes locks in the test's folder."""
    with lock_processes(tmp_path, 1) as (process,):
        yield process


@pytest.fixture
def third(tmp_path: Path) -> Iterator[LockProcess]:
    """Starts a third process."""
    with lock_processes(tmp_path, 1) as (process,):
        yield process


def held_ranges(folder: Path) -> list[tuple[int, int | None, int]]:
    return [(lock.start, lock.end, lock.pid) for lock in locks_on(folder, GPU)]


def claim(folder: Path, mib: int | None, total_mib: int | None = TOTAL, name: str = GPU) -> Refusal | None:
    """Claims memory in this process and releases it at once; returns the refusal, if any."""
    answer = claim_gpus(str(folder), [Wanted(name, mib, total_mib)])
    if isinstance(answer, Refusal):
        return answer
    release(answer)
    return None


# The ranges of free and of locked memory.


@pytest.mark.parametrize(
    ("locks", "mine", "free"),
    [
        ([], [], [(0, 10)]),
        ([(0, None)], [], []),
        ([(0, 10)], [], []),
        ([(0, 9)], [], [(9, 10)]),
        ([(1, 10)], [], [(0, 1)]),
        ([(2, 4), (6, 7)], [], [(0, 2), (4, 6), (7, 10)]),
        ([(2, 4)], [(4, 6)], [(0, 2), (6, 10)]),
        ([(2, 4)], [(7, 8), (0, 1)], [(1, 2), (4, 7), (8, 10)]),
        ([(4, None)], [], [(0, 4)]),
        ([(12, 20)], [], [(0, 10)]),
        ([(8, 20)], [], [(0, 8)]),
        ([(10, None)], [], [(0, 10)]),
    ],
)
def test_the_free_ranges_lie_between_the_locks(
    locks: list[tuple[int, int | None]], mine: list[tuple[int, int]], free: list[tuple[int, int]]
) -> None:
    assert free_ranges([Lock(start, end, 7) for start, end in locks], 10, mine) == free


@given(
    st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(1, 20)), max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8),
    st.integers(1, 50),
)
def test_the_free_ranges_contain_exactly_the_mib_that_nobody_has_locked(
    locks: list[tuple[int, int | None]], mine: list[tuple[int, int]], total: int
) -> None:
    given_locks = [Lock(start, None if size is None else start + size, 7) for start, size in locks]
    own = [(start, start + size) for start, size in mine]
    taken = {
        byte
        for start, end in [*((lock.start, lock.end) for lock in given_locks), *own]
        for byte in range(start, total if end is None else end)
    }
    free = free_ranges(given_locks, total, own)
    assert [byte for start, end in free for byte in range(start, end)] == [
        byte for byte in range(total) if byte not in taken
    ]
    assert all(start < end for start, end in free)
    assert all(end < start for (_, end), (start, _) in pairwise(free))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RANGES, RANGES, st.booleans())
def test_reading_finds_every_lock_of_every_other_process(
    tmp_path: Path,
    other: LockProcess,
    third: LockProcess,
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    to_infinity: bool,
) -> None:
    theirs = {byte for start, size in first for byte in range(start, start + size)}
    rest = {byte for start, size in second for byte in range(start, start + size)} - theirs
    other.ask("lock_only", GPU, [])
    third.ask("lock_only", GPU, [])
    other.ask("lock_only", GPU, [(byte, byte + 1) for byte in theirs] + ([(99, None)] if to_infinity else []))
    third.ask("lock_only", GPU, [(byte, byte + 1) for byte in rest])
    found = locks_on(tmp_path, GPU)
    assert found == sorted(found, key=lambda lock: lock.start)
    assert [lock.pid for lock in found if lock.end is None] == [other.pid] * to_infinity
    for pid, bytes_of in ((other.pid, theirs), (third.pid, rest)):
        ours = [lock for lock in found if lock.pid == pid and lock.end is not None]
        read = [byte for lock in ours for byte in range(lock.start, lock.end or 0)]
        assert read == sorted(bytes_of)


def test_a_file_with_very_many_locks_counts_as_locked_entirely(tmp_path: Path, other: LockProcess) -> None:
    other.ask("lock_only", GPU, [(2 * n, 2 * n + 1) for n in range(MAX_LOCKS)])
    assert len(locks_on(tmp_path, GPU)) == MAX_LOCKS
    assert claim(tmp_path, TOTAL - MAX_LOCKS) is None
    other.ask("lock_only", GPU, [(2 * n, 2 * n + 1) for n in range(MAX_LOCKS + 1)])
    assert held_ranges(tmp_path) == [(0, MANY_LOCKS_END, other.pid)]
    refusal = claim(tmp_path, 1)
    assert refusal is not None
    assert refusal.pid == other.pid
    reading = read_locks_of(tmp_path, [GPU])
    # Even if a scheduler's own runner holds them, there may be locks of other programs among them.
    for runners in ((), (other.pid,)):
        [found] = reading.foreign_claims({GPU: TOTAL}, runners).claims[GPU]
        assert (found.pid, found.mib) == (other.pid, None)
        assert holder_text(found).startswith(f"run, pid {other.pid}, user ")


# Claims of several processes.


def test_a_claim_on_a_whole_gpu_excludes_every_other_claim(tmp_path: Path, other: LockProcess) -> None:
    assert other.claim((GPU, None, None)) == "held"
    assert held_ranges(tmp_path) == [(0, None, other.pid)]
    for mib in (None, 1):
        refusal = claim(tmp_path, mib)
        assert refusal is not None
        assert (refusal.name, refusal.pid) == (GPU, other.pid)
    other.ask("release")
    assert claim(tmp_path, None) is None


def test_amounts_share_a_gpu_until_it_is_full(tmp_path: Path, other: LockProcess, third: LockProcess) -> None:
    assert other.claim((GPU, 600, TOTAL)) == "held"
    assert third.claim((GPU, 401, TOTAL)) == [GPU, other.pid]
    assert third.claim((GPU, 400, TOTAL)) == "held"
    assert held_ranges(tmp_path) == [(0, 600, other.pid), (600, 1000, third.pid)]
    assert claim(tmp_path, 1) is not None
    assert claim(tmp_path, None) is not None


def test_an_amount_fits_into_several_gaps(tmp_path: Path, other: LockProcess, third: LockProcess) -> None:
    other.ask("lock_only", GPU, [(100, 200), (300, 950)])
    assert third.claim((GPU, 251, TOTAL)) == [GPU, other.pid]
    assert held_ranges(tmp_path) == [(100, 200, other.pid), (300, 950, other.pid)]
    assert third.claim((GPU, 250, TOTAL)) == "held"
    assert [one[:2] for one in held_ranges(tmp_path) if one[2] == third.pid] == [
        (0, 100), (200, 300), (950, 1000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("taken", "held"), [((200, 220), [(0, 100), (220, 270)]), ((200, 960), None), ((200, None), None)]
)
def test_a_claim_keeps_what_it_has_if_another_process_takes_the_rest_at_the_same_moment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: LockProcess,
    third: LockProcess,
    taken: tuple[int, int | None],
    held: list[tuple[int, int]] | None,
) -> None:
    def lock(fd: int, start: int, end: int) -> bool:
        if start == 200:
            other.ask("lock_only", GPU, [(100, 200), taken])
        return try_lock(fd, start, end)

    monkeypatch.setattr(locks, "try_lock", lock)
    other.ask("lock_only", GPU, [(100, 200)])
    answer = claim_gpus(str(tmp_path), [Wanted(GPU, 150, TOTAL)])
    seen = [(start, end) for start, end, pid in third.ask("locks", GPU) if pid == os.getpid()]
    if held is None:
        assert isinstance(answer, Refusal)
        assert (answer.pid, seen) == (other.pid, [])
    else:
        assert isinstance(answer, list)
        assert seen == held
        release(answer)


@pytest.mark.parametrize(("mib", "total"), [(5, None), (11, 10)])
def test_an_amount_that_the_gpu_does_not_have_is_refused(tmp_path: Path, mib: int, total: int | None) -> None:
    refusal = claim(tmp_path, mib, total)
    assert refusal is not None
    assert refusal.pid == 0


def test_several_gpus_are_claimed_together_or_not_at_all(
    tmp_path: Path, other: LockProcess, third: LockProcess
) -> None:
    assert other.claim(("GPU-b", None, None)) == "held"
    assert third.claim(("GPU-c", None, None), ("GPU-b", 5, 10), ("GPU-a", None, None)) == ["GPU-b", other.pid]
    assert locks_on(tmp_path, "GPU-a") == []
    assert not (tmp_path / "GPU-c").exists()  # in the order of the names, so GPU-b was refused first
    (tmp_path / "GPU-b").unlink()
    (tmp_path / "GPU-b").mkdir()
    assert third.claim(("GPU-b", None, None), ("GPU-a", None, None))[0] == "LockFileError"
    assert locks_on(tmp_path, "GPU-a") == []


@pytest.mark.parametrize("seed", range(4))
def test_amounts_that_fill_a_gpu_exactly_are_all_granted_at_the_same_moment(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    with lock_processes(tmp_path, 10) as processes:
        holding: set[LockProcess] = set()
        for _ in range(8):
            # Those who hold memory leave gaps of all sizes for the others.
            free = TOTAL - sum(mib_held(tmp_path, one) for one in holding)
            waiting = [one for one in processes if one not in holding]
            cuts = [0, *sorted(dice.sample(range(1, free), len(waiting) - 1)), free]
            at = time.monotonic() + 0.02
            for one, (start, end) in zip(waiting, pairwise(cuts), strict=True):
                one.request_claim((GPU, end - start, TOTAL), at=at)
            assert [one.answer() for one in waiting] == ["held"] * len(waiting)
            locks = locks_on(tmp_path, GPU)
            assert [lock.start for lock in locks] == [0, *(lock.end for lock in locks[:-1])]
            assert locks[-1].end == TOTAL
            for one in (leaving := dice.sample(processes, dice.randint(2, 9))):
                one.ask("release")
            holding = set(processes) - set(leaving)


def mib_held(folder: Path, process: LockProcess) -> int:
    return sum((lock.end or 0) - lock.start for lock in locks_on(folder, GPU) if lock.pid == process.pid)


def test_one_of_twenty_processes_that_make_the_file_at_the_same_moment_gets_the_gpu(tmp_path: Path) -> None:
    with lock_processes(tmp_path, 20) as processes:
        for one in processes:
            one.ask("umask", 0o077)
        for number in range(5):
            at = time.monotonic() + 0.05
            for one in processes:
                one.request_claim((f"GPU-{number}", None, None), at=at)
            answers = [one.answer() for one in processes]
            assert answers.count("held") == 1
            holder = processes[answers.index("held")].pid
            assert all(answer in ("held", [f"GPU-{number}", holder]) for answer in answers)
            assert stat.S_IMODE((tmp_path / f"GPU-{number}").stat().st_mode) == 0o1666


def test_a_claim_that_collides_again_and_again_is_given_up_in_less_than_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda wait_s: now.append(now.pop() + wait_s))
    monkeypatch.setattr(locks, "try_lock", lambda *_: False)
    wanted = [Wanted(f"GPU-{n}", 5, 10) for n in range(8)]
    answer = claim_gpus(str(tmp_path), wanted)
    assert isinstance(answer, Refusal)
    assert (answer.name, answer.pid) == ("GPU-0", 0)
    assert 100.4 < now[0] < 101.0


# How long a claim lasts.


def test_the_kernel_frees_the_gpu_of_a_killed_process(tmp_path: Path, other: LockProcess) -> None:
    assert other.claim((GPU, None, None)) == "held"
    other.end()
    assert claim(tmp_path, None) is None


def test_an_inheritable_claim_lasts_until_the_executed_program_ends(
    tmp_path: Path, other: LockProcess
) -> None:
    assert other.claim((GPU, None, None), inheritable=True) == "held"
    other.ask("execute", "/bin/sh", "-c", "echo '\"executed\"'; read _")
    refusal = claim(tmp_path, None)
    assert refusal is not None
    assert refusal.pid == other.pid
    other.process.communicate("\n")
    assert claim(tmp_path, None) is None


def test_any_other_claim_ends_when_the_process_executes_a_program(tmp_path: Path, other: LockProcess) -> None:
    assert other.claim((GPU, None, None)) == "held"
    assert other.ask("execute", "/bin/sh", "-c", "echo '\"executed\"'; read _") == "executed"
    assert claim(tmp_path, None) is None


def test_a_process_that_opens_and_closes_the_file_loses_its_claim(tmp_path: Path, other: LockProcess) -> None:
    assert other.claim((GPU, None, None)) == "held"
    other.ask("read", GPU)
    assert claim(tmp_path, None) is None


def test_inheritable_claims_use_high_descriptors_if_there_are_any(tmp_path: Path, other: LockProcess) -> None:
    assert other.claim((GPU, None, None), inheritable=True) == "held"
    assert min(other.ask("descriptors")) >= 200
    other.ask("release")
    other.ask("limit_files", 64)
    assert other.claim((GPU, None, None), inheritable=True) == "held"
    assert max(other.ask("descriptors")) < 64
    assert held_ranges(tmp_path) == [(0, None, other.pid)]


def test_a_process_without_free_descriptors_claims_nothing(tmp_path: Path, other: LockProcess) -> None:
    (tmp_path / GPU).touch()
    other.ask("limit_files", 64)
    assert other.ask("open_until_none_is_left") > 0
    assert other.claim((GPU, None, None)) == ["OSError", errno.EMFILE, f"{tmp_path}/{GPU}"]
    assert locks_on(tmp_path, GPU) == []


# The lock files.


REMOVE = "its owner or root must remove it while no program uses this GPU"


def plant_hard_link_of_data(path: Path) -> None:
    path.write_text("data")
    os.link(path, f"{path}-2")


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda path: path.symlink_to("/dev/null"), f"is a symbolic link; {REMOVE}"),
        (
            lambda path: path.symlink_to(path.parent / "nothing"),
            f"is a symbolic link; {REMOVE}",
        ),
        (lambda path: path.mkdir(), f"is not a regular file; {REMOVE}"),
        (os.mkfifo, f"is not a regular file; {REMOVE}"),
        (plant_hard_link_of_data, f"has contents and several hard links; {REMOVE}"),
    ],
)
def test_a_planted_lock_file_is_refused(
    tmp_path: Path, plant: Callable[[Path], object], problem: str
) -> None:
    plant(tmp_path / GPU)
    for use in (lambda: claim(tmp_path, None), lambda: locks_on(tmp_path, GPU)):
        with pytest.raises(LockFileError) as raised:
            use()
        assert (raised.value.filename, raised.value.strerror) == (f"{tmp_path}/{GPU}", problem)
    assert not (tmp_path / "nothing").exists()


def test_a_gpu_that_nobody_has_claimed_has_no_lock_file(tmp_path: Path) -> None:
    assert open_to_read(str(tmp_path), GPU) is None
    assert not (tmp_path / GPU).exists()


def test_a_lock_file_with_another_hard_link_still_protects_the_gpu(
    tmp_path: Path, other: LockProcess, third: LockProcess
) -> None:
    (tmp_path / GPU).touch()
    os.link(tmp_path / GPU, tmp_path / "link of another user")
    assert other.claim((GPU, None, None)) == "held"
    assert third.claim((GPU, None, None)) == [GPU, other.pid]
    assert held_ranges(tmp_path) == [(0, None, other.pid)]


def test_a_lease_on_a_lock_file_is_a_fault_of_that_file_and_no_shortage(
    tmp_path: Path, other: LockProcess, third: LockProcess
) -> None:
    other.ask("lease", GPU)
    for use in (lambda: claim(tmp_path, None), lambda: locks_on(tmp_path, GPU)):
        with pytest.raises(LockFileError, match="is leased by another program; end that program") as raised:
            use()
        assert raised.value.errno not in SHORTAGE
        assert raised.value.filename == f"{tmp_path}/{GPU}"
    reading = read_locks_of(tmp_path, [GPU, "GPU-b"])
    assert list(reading.problems) == [GPU]
    assert third.claim(("GPU-b", None, None)) == "held"
    other.end()
    assert third.claim((GPU, None, None)) == "held"


@pytest.mark.parametrize(("links", "after"), [(1, 0o1644), (2, 0o644)])
def test_a_claim_sets_the_sticky_bit_of_a_lock_file_that_may_not_be_somebody_elses_data(
    tmp_path: Path, links: int, after: int
) -> None:
    # systemd-tmpfiles does not remove old files with the sticky bit.
    path = tmp_path / GPU
    path.touch()
    path.chmod(0o644)
    if links == 2:
        os.link(path, tmp_path / "empty file of another program")
    assert claim(tmp_path, None) is None
    assert stat.S_IMODE(path.stat().st_mode) == after


@pytest.mark.parametrize("times", [1, 9])
def test_a_claim_is_made_on_the_file_that_has_replaced_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: LockProcess, times: int
) -> None:
    replace_after_opening(tmp_path, monkeypatch, times)
    held = claim_gpus(str(tmp_path), [Wanted(GPU, None, None)])
    assert isinstance(held, list)
    assert third.claim((GPU, None, None)) == [GPU, os.getpid()]
    release(held)


def test_a_file_that_is_replaced_all_the_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_after_opening(tmp_path, monkeypatch, 99)
    with pytest.raises(LockFileError) as raised:
        claim(tmp_path, None)
    assert raised.value.errno == errno.ESTALE
    assert "is replaced again and again" in str(raised.value)


def replace_after_opening(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Replaces the lock file between its opening and its locking, this many times."""
    left = [times]

    def lock(fd: int, *range_: int) -> bool:
        if left[0]:
            left[0] -= 1
            (folder / GPU).unlink()
            (folder / GPU).touch()
        return try_lock(fd, *range_)

    monkeypatch.setattr(locks, "try_lock", lock)
