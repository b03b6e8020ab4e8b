"""Tests of how the load of foreign processes is recorded, and how jobs are placed beside these processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample, Snapshot
from gpu_scheduler.show.wait_text import wait_text
from gpu_scheduler.store.pending_groups import wait_reason_by_spec
from gpu_scheduler.store.requests import add_request
from tests.loop.rig import Rig

#: The pid of a foreign process. It is the process that runs the tests.
THEM = os.getpid()
WAIT = "echo $$ > pid.part; mv pid.part pid; sleep 60"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, gpus=1)


def sample(rig: Rig, card: float, processes: Sequence[GpuProcess] | None, used: int | None = None) -> None:
    """Takes a sample with this load of the GPU and these processes on it."""
    mib = sum(one.used_mib or 0 for one in processes or ()) if used is None else used
    listed = None if processes is None else tuple(processes)
    rig.watch.accept_sample(
        Snapshot(rig.clock.now().boot, (GpuSample("U0", 0, "card", 24576, mib, card, listed),))
    )


def loads(rig: Rig) -> list[float | None]:
    """Returns the recorded foreign loads of the first GPU."""
    return list(rig.store.gpus()[0].foreign_loads)


def half_job_runs(rig: Rig) -> tuple[int, int]:
    """Starts a job with half of the GPU, and returns its id and the pid of its GPU process."""
    first = rig.add_job(WAIT, share=500)
    rig.runner_pid(first)
    rig.tick_until(lambda: (rig.folder / "pid").exists(), "the pid of the job")
    return first, int((rig.folder / "pid").read_text())


def ends(rig: Rig, *jobs: int) -> None:
    for job in jobs:
        add_request(rig.store, "cancel", str(job), grace_s=0)
    for job in jobs:
        rig.tick_until_ended(job)


def why_it_waits(rig: Rig) -> str:
    rig.tick()
    [reason] = wait_reason_by_spec(rig.store).values()
    return "" if reason is None else wait_text(reason)


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "withheld"])
def test_a_second_job_starts_if_all_load_of_the_gpu_comes_from_the_first_job(
    rig: Rig, reported: bool
) -> None:
    first, pid = half_job_runs(rig)
    ours = GpuProcess(pid, 5000, load_percent=90.0 if reported else None)
    theirs = GpuProcess(THEM, 5, load_percent=0.0 if reported else None)
    for _ in range(3):
        sample(rig, 90.0, (ours, theirs))
        rig.tick()
    assert loads(rig)[-3:] == ([0.0] * 3 if reported else [None] * 3)
    second = rig.add_job("sleep 60", share=500)
    rig.tick()
    assert rig.job(second).state in ("starting", "running")
    ends(rig, first, second)


def test_a_busy_foreign_process_delays_a_second_job_until_the_mean_load_falls(rig: Rig) -> None:
    first, pid = half_job_runs(rig)
    ours = GpuProcess(pid, 5000, load_percent=10.0)
    for _ in range(3):
        sample(rig, 95.0, (ours, GpuProcess(THEM, 3000, load_percent=85.0)))
        rig.tick()
    second = rig.add_job("sleep 60", share=500)
    assert why_it_waits(rig).endswith(f"(GPU 0: foreign process {THEM}, load 85 %)")
    sample(rig, 10.0, (ours, GpuProcess(THEM, 3000, load_percent=0.0)))
    rig.tick()
    assert loads(rig) == [85.0, 85.0, 0.0]
    assert rig.job(second).state in ("starting", "running")
    ends(rig, first, second)


def test_load_caused_by_a_job_does_not_count_as_foreign_load_after_its_end(rig: Rig) -> None:
    """Without a list of processes, the load during a job is not attributed to foreign processes."""
    first = rig.add_job("sleep 60", share=500)
    rig.runner_pid(first)
    for _ in range(3):
        sample(rig, 95.0, None, used=5000)
        rig.tick()
    assert loads(rig) == [None] * 3
    ends(rig, first)
    sample(rig, 2.0, None, used=300)
    rig.tick()
    assert loads(rig)[-1] == 2.0
    second = rig.add_job("true", share=500)
    assert rig.tick_until_ended(second).outcome == "completed"
    for _ in range(3):
        sample(rig, 95.0, None, used=300)
        rig.tick()
    third = rig.add_job("true", share=500)
    assert why_it_waits(rig).endswith("(GPU 0: foreign load 95 %)")
    assert rig.job(third).state == "queued"


def test_each_sample_adds_a_foreign_load_and_a_new_scheduler_discards_earlier_ones(rig: Rig) -> None:
    sample(rig, 0.0, (GpuProcess(THEM, 3000, load_percent=85.0),))
    for _ in range(3):
        rig.tick()
    assert loads(rig)[-2:] == [0.0, 85.0] or loads(rig) == [85.0]
    assert rig.watch.snapshot is not None
    rig.loop.recorder.record_gpus(rig.watch.snapshot.gpus, None, rig.clock.now())
    assert loads(rig)[-1] == 85.0
    rig.loop.recorder.record_gpus(rig.watch.snapshot.gpus, ["U0"], rig.clock.now())
    assert loads(rig) == []
