"""The claims that the locks on a GPU stand for, and the processes that hold them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import GpuClaim
from gpu_scheduler.runner.folder import START
from gpu_scheduler.runner.locks import Lock
from gpu_scheduler.system.gpu_claims import can_be_claimed, claims_of, inherited_descriptors, read_gpu_locks
from gpu_scheduler.system.procfs import Proc
from gpu_scheduler.system.safe_file import name_of_user

#: No process has this pid, because it is above the kernel's maximum.
A, B = 2**22 + 1, 2**22 + 2


@pytest.mark.parametrize(
    ("locks", "total_mib", "expected"),
    [
        ([], 100, []),
        ([Lock(0, None, A)], 100, [(None, A)]),
        ([Lock(0, None, A)], None, [(None, A)]),
        ([Lock(0, 40, A)], 100, [(40, A)]),
        ([Lock(10, 40, A)], None, [(30, A)]),
        ([Lock(0, 10, A), Lock(20, 50, A)], 100, [(40, A)]),
        ([Lock(0, 10, A), Lock(10, 30, B), Lock(30, 40, A)], 100, [(20, A), (20, B)]),
        ([Lock(0, 100, A)], 100, [(100, A)]),
        # Bytes behind the end of the GPU's memory do not count.
        ([Lock(90, 120, A)], 100, [(10, A)]),
        ([Lock(100, 101, A)], 100, [(0, A)]),
        ([Lock(0, 10, B), Lock(100, 101, A)], 100, [(10, B), (0, A)]),
        ([Lock(60, None, A)], 100, [(40, A)]),
        ([Lock(60, None, A)], None, [(None, A)]),
        ([Lock(0, 10, A), Lock(60, None, A)], None, [(None, A)]),
        # Processes in other pid namespaces cannot be told apart.
        ([Lock(0, 10, 0), Lock(10, 30, 0)], 100, [(30, 0)]),
    ],
)
def test_each_process_has_one_claim_with_the_sum_of_its_locks(
    locks: list[Lock], total_mib: int | None, expected: list[tuple[int | None, int]]
) -> None:
    assert [(claim.mib, claim.pid) for claim in claims_of(locks, total_mib)] == expected


def test_the_claims_of_our_own_runners_are_left_out() -> None:
    locks = [Lock(0, 10, A), Lock(10, 20, B), Lock(20, 30, A), Lock(30, 40, 0)]
    assert claims_of(locks, 100, without=(A,)) == (GpuClaim(10, B), GpuClaim(10, 0))
    assert claims_of(locks, 100, without=(A, 0)) == (GpuClaim(10, B), GpuClaim(10, 0))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=12), st.integers(1, 200))
def test_the_claims_add_up_to_the_locked_part_of_the_memory(
    pieces: list[tuple[int, int]], total_mib: int
) -> None:
    locks, at = [], 0
    for holder, length in pieces:
        locks.append(Lock(at, at + length, A + holder))
        at += length
    claims = claims_of(locks, total_mib)
    assert sum(claim.mib or 0 for claim in claims) == min(at, total_mib)
    assert len({claim.pid for claim in claims}) == len(claims)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_claim_names_the_user_of_its_process(holder: subprocess.Popen[bytes]) -> None:
    [claim] = claims_of([Lock(0, None, holder.pid)], 100)
    assert claim == GpuClaim(None, holder.pid, name_of_user(os.geteuid()), by_scheduler=False)


def test_a_process_that_has_ended_has_no_known_user() -> None:
    assert claims_of([Lock(0, 10, A)], 100) == (GpuClaim(10, A, "", by_scheduler=False),)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "-I", "-S", START, "/folder"], (True, None, "")),
        (["python -I -S " + START + " /my exp/x.d/runs/12/1-ab"], (True, 12, "/my exp")),
        (
            ["/a path/bin/python3", "-I", "-S", "/a path/gpu_scheduler/runner/start.py", "/f"],
            (True, None, ""),
        ),
        (["python", "-I", "-S", "/elsewhere/start.py", "/x.d/runs/12/1-ab"], (False, None, "")),
        (["python", START, "/folder"], (False, None, "")),
        (["less", START], (False, None, "")),
    ],
)
def test_a_runner_is_recognised_by_its_command_line(
    monkeypatch: pytest.MonkeyPatch, command: list[str], expected: tuple[bool, int | None, str]
) -> None:
    monkeypatch.setattr(Proc, "command_line", lambda proc, pid: command)
    [claim] = claims_of([Lock(0, 10, os.getpid())], 100)
    assert (claim.by_scheduler, claim.job, claim.folder) == expected


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [("GPU-1", True), ("SIM-0", True), ("", False), ("unknown-0", False), ("a/b", False)],
)
def test_only_a_gpu_with_a_known_uuid_can_be_claimed(tmp_path: Path, uuid: str, expected: bool) -> None:
    assert can_be_claimed(uuid) is expected
    assert read_gpu_locks(tmp_path, uuid) == ()
    assert list(tmp_path.iterdir()) == []


def test_an_inherited_lock_file_is_recognised_under_another_path(tmp_path: Path) -> None:
    # A bind mount also shows one file under two paths.
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with open(tmp_path / "one" / "GPU-1", "w") as file, open(tmp_path / "one" / "GPU-2", "w"):
        os.link(tmp_path / "one" / "GPU-1", tmp_path / "two" / "GPU-1")
        (tmp_path / "two" / "GPU-2").touch()
        assert inherited_descriptors(str(tmp_path / "two")) == {"GPU-1": file.fileno()}
        assert inherited_descriptors(str(tmp_path / "missing")) == {}
