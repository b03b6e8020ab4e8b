"""Which locks count as claims of other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.runner.locks import MAX_LOCKS, Lock
from gpu_scheduler.system.gpu_claims import ForeignClaims, LockReading, read_locks_of
from tests.runner.lock_process import lock_processes


@pytest.fixture
def child() -> Iterator[int]:
    """Provides the pid of a child process, which descends from this process."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process.pid


def pids(found: ForeignClaims) -> dict[str, list[int]]:
    return {uuid: [claim.pid for claim in claims] for uuid, claims in found.claims.items()}


def locks(*pids: int) -> tuple[Lock, ...]:
    return tuple(Lock(at, at + 1, pid) for at, pid in enumerate(pids))


def test_the_locks_of_runners_are_no_foreign_claims(child: int) -> None:
    reading = LockReading({"A": locks(7, 8), "B": locks(7, child), "C": locks(child)})
    assert pids(reading.foreign_claims({}, {7, 8})) == {"B": [child], "C": [child]}


def whole(pid: int) -> tuple[Lock, ...]:
    return (Lock(0, None, pid),)


def test_whole_gpus_that_processes_claim_from_which_the_scheduler_descends_are_no_foreign_claims(
    child: int,
) -> None:
    own, parent = os.getpid(), os.getppid()
    reading = LockReading({"A": whole(parent), "B": whole(own), "C": whole(child)})
    assert pids(reading.foreign_claims({}, ())) == {"C": [child]}
    assert pids(reading.foreign_claims({}, (), scheduler=child)) == {}
    assert pids(reading.foreign_claims({}, (), scheduler=parent)) == {"B": [own], "C": [child]}


def test_the_lock_of_such_a_process_on_part_of_a_gpu_is_a_foreign_claim() -> None:
    own, parent = os.getpid(), os.getppid()
    reading = LockReading({"A": locks(parent, own), "B": (Lock(50, None, parent),), "C": (Lock(0, 99, own),)})
    assert pids(reading.foreign_claims({}, {7})) == {"A": [parent, own], "B": [parent], "C": [own]}


def test_a_runner_on_a_gpu_with_very_many_locks_does_not_hide_the_claims_of_others(tmp_path: Path) -> None:
    with lock_processes(tmp_path, 2) as (runner, stranger):
        runner.ask("lock_only", "A", [(3 * n, 3 * n + 1) for n in range(MAX_LOCKS)])
        stranger.ask("lock_only", "A", [(3 * n + 1, 3 * n + 2) for n in range(MAX_LOCKS)])
        for pid in (runner.pid, stranger.pid):
            found = read_locks_of(tmp_path, ["A"]).foreign_claims({}, {pid})
            [claim] = found.claims["A"]
            assert (claim.mib, claim.pid in (runner.pid, stranger.pid)) == (None, True)


def test_the_lock_of_a_process_in_another_container_is_a_foreign_claim() -> None:
    reading = LockReading({"A": (Lock(0, None, 0),)}, {"B": "unreadable"})
    found = reading.foreign_claims({}, {7})
    assert pids(found) == {"A": [0]}
    assert found.problems == {"B": "unreadable"}
