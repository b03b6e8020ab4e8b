"""A scheduler whose output nobody reads ends as soon as one whose output is read."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.harness import environment
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
#: Seconds; the console alone promises two for its threads.
MAX_END_S = 20.0


def _program(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpu_scheduler", *words]


def _env() -> dict[str, str]:
    env = environment() | {"PYTHONPATH": str(ROOT)}
    env.pop("PYTHONUNBUFFERED", None)
    return env


@pytest.fixture(params=["pipe", "terminal"])
def unread(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yields the descriptor of an output that accepts nothing more: a full pipe, a terminal after Ctrl-S."""
    if request.param == "pipe":
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        try:
            while os.write(writes, b"x" * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(writes, True)
    else:
        reads, writes = pty.openpty()
        os.write(reads, b"\x13")
    yield writes
    os.close(writes)
    os.close(reads)


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "stop"])
def test_a_scheduler_whose_output_nobody_reads_ends(tmp_path: Path, unread: int, way: str) -> None:
    with subprocess.Popen(
        _program("start", "--simulate", "1"),
        cwd=tmp_path, env=_env(), stdin=subprocess.DEVNULL, stdout=unread, stderr=unread,
    ) as scheduler:  # fmt: skip
        try:
            log = tmp_path / "gpu_scheduler.log"
            wait_for(lambda: log.exists() and "scheduler up" in log.read_text(), "the scheduler is up")
            began = time.monotonic()
            if way == "stop":
                subprocess.run(_program("stop"), cwd=tmp_path, env=_env(), check=True, timeout=60,
                               capture_output=True)  # fmt: skip
            else:
                scheduler.send_signal(signal.Signals[way])
            scheduler.wait(MAX_END_S)
            assert time.monotonic() - began < MAX_END_S
            assert scheduler.returncode in (0, 130, 143)
        finally:
            scheduler.kill()
