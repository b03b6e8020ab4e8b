"""Tests that a GPU is released only after the job's last process has ended, even if it hides its token."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.executors import ScreenExecutor
from gpu_scheduler.runner.process_scan import ticks_of
from tests.loop.rig import Rig
from tests.runner.attempt import socket_folder
from tests.waiting import wait_for

#: A command that ends some time after SIGTERM. Until it ends, its GPU must not be released.
SLOW = "trap '' HUP; trap 'sleep 0.3; exit' TERM; echo $$ > part; mv part pid; while :; do sleep 0.02; done"


@pytest.fixture(params=["direct", "screen"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    if request.param == "direct":
        yield Rig(tmp_path, gpus=1)
        return
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        yield Rig(tmp_path, gpus=1, executor=ScreenExecutor())


def test_releases_a_gpu_only_after_the_hidden_process_of_a_killed_runner_ends(rig: Rig) -> None:
    first = rig.add_job(f"trap '' HUP; exec env -i sh -c {shlex.quote(SLOW)}")
    second = rig.add_job("exit 0")
    runner = rig.runner_pid(first)
    file = rig.folder / "pid"
    wait_for(file.exists, "the pid of the hidden process")
    pid = int(file.read_text())
    os.kill(runner, 9)
    rig.tick_until(lambda: rig.job(first).state == "held", "the end of the first job")
    assert ticks_of(pid) is None
    assert rig.job(first).held_by == "interrupted"
    assert rig.tick_until_ended(second).outcome == "completed"


def test_a_gpu_stays_allocated_while_a_hidden_process_of_its_job_survives(rig: Rig) -> None:
    job = rig.add_job("trap '' HUP TERM; echo $$ > part; mv part pid; exec env -i sleep 300")
    second = rig.add_job("exit 0")
    runner = rig.runner_pid(job)
    file = rig.folder / "pid"
    wait_for(file.exists, "the pid of the hidden process")
    os.kill(runner, 9)
    rig.tick_until(
        lambda: rig.tick().attempts[0].observed.survivors == (int(file.read_text()),), "the surviving process"
    )
    assert rig.job(second).state == "queued"
    rig.tick_until_ended(job)
    assert rig.tick_until_ended(second).outcome == "completed"
