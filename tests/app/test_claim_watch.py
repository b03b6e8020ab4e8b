"""Waiting for a change of the claims on GPUs, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.control import claim_gpus as claim_watch
from gpu_scheduler.control.claim_gpus import ClaimWatch
from tests.claim_holder import claim_holder

TIMEOUT_S = 60.0
#: Claims GPU-a, and releases the claim when it reads a line, without ending.
RELEASE = """
import sys
from gpu_scheduler.runner.locks import Wanted, claim_gpus, release
held = claim_gpus(sys.argv[1], [Wanted("GPU-a", None, 100)])
assert isinstance(held, list)
print("held", flush=True)
sys.stdin.readline()
release(held)
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder() -> Path:
    """An empty lock folder."""
    path = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    path.mkdir()
    return path


@contextmanager
def releasing_holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that holds a claim and releases it when it reads a line."""
    words = [sys.executable, "-c", RELEASE, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_the_end_of_a_holder_is_noticed_without_reading_the_locks_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_watch, "_READ_EVERY_S", 1000.0)
    watch = ClaimWatch(folder)
    with claim_holder(folder, "GPU-a") as process:
        assert [lock.pid for lock in watch.read(["GPU-a", "GPU-b"]).locks["GPU-a"]] == [process.pid]
        process.kill()
        assert watch.wait(TIMEOUT_S)
    assert watch.read(["GPU-a"]).locks == {}


def test_a_claim_that_ends_before_its_process_is_noticed(folder: Path) -> None:
    watch = ClaimWatch(folder)
    with releasing_holder(folder) as process:
        assert watch.read(["GPU-a"]).locks
        say(process)
        assert watch.wait(TIMEOUT_S)
        assert watch.read(["GPU-a"]).locks == {}


def test_a_new_claim_is_noticed(folder: Path) -> None:
    watch = ClaimWatch(folder)
    assert watch.read(["GPU-a"]).locks == {}
    with claim_holder(folder, "GPU-a"):
        assert watch.wait(TIMEOUT_S)


def test_without_a_change_the_wait_ends_after_its_time(folder: Path) -> None:
    watch = ClaimWatch(folder)
    with claim_holder(folder, "GPU-a"):
        watch.read(["GPU-a"])
        assert not watch.wait(0.05)
        assert not watch.wait(0.0)


def test_a_process_that_has_ended_wakes_the_watch_only_once(folder: Path) -> None:
    watch = ClaimWatch(folder)
    with claim_holder(folder, "GPU-a") as process:
        watch.read(["GPU-a"])
        process.kill()
        # As long as nobody collects the process, it is a zombie, and its descriptor stays readable.
        assert watch.wait(TIMEOUT_S)
        watch.read(["GPU-a"])
        assert not watch.wait(0.05)
