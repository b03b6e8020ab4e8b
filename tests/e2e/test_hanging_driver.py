"""Tests a driver that hangs while the scheduler runs.

Only the placement of jobs waits for it (docs/design.md, Placement).
"""

from __future__ import annotations

import os
from pathlib import Path

from gpu_scheduler.system.simulated_usage import start_ticks
from tests import warm
from tests.e2e.world import World
from tests.waiting import wait_for

FAKES = Path(__file__).resolve().parents[1] / "fakes"

_UNREADABLE = "the GPUs cannot be read: "


def start(world: World) -> Path:
    """Starts a scheduler on the one GPU of the fake `nvidia-smi`.

    Returns the folder that controls the fake.
    """
    driver = world.folder / "driver"
    driver.mkdir()
    world.env |= {"PATH": f"{FAKES}:{world.env['PATH']}", "FAKE_GPUS": str(driver), "FAKE_GPU_COUNT": "1"}
    with open(world.output_file, "ab") as out:
        words = ["start", "--gpu-probe", "gputil", "--log-dir", "logs", "--state-file", world.state]
        world.process = warm.Process(
            "tests.e2e.short_sampling", words, world.folder, world.env, out.fileno(), out.fileno()
        )
    wait_for(lambda: "scheduler up" in world.output(), "scheduler up")
    return driver


def test_a_hanging_driver_delays_only_the_placement_of_jobs(world: World) -> None:
    os.mkfifo(world.folder / "go")
    world.jobs_file.touch()
    driver = start(world)
    world.append("read line < go; exit 5")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    (driver / "hang").touch()
    wait_for((driver / "hanging").exists, "a query that hangs")
    first = int((driver / "hanging").read_text())

    def fault() -> str:
        return world.status()["gpus"][0]["fault"] or ""

    wait_for(lambda: fault().startswith(_UNREADABLE), "the GPU is reported as unreadable")
    world.append("exit 0", "exit 1")
    world.wait_until(lambda jobs: len(jobs) == 3, "the lines are read although the driver hangs")
    (world.folder / "go").write_text("\n")
    assert world.wait_finished(1)[1]["exit_code"] == 5
    world.run_ok("cancel", "3")
    jobs = world.wait_finished(3)
    assert (jobs[3]["outcome"], jobs[2]["state"]) == ("cancelled", "queued")
    assert jobs[2]["reason"].startswith(_UNREADABLE)
    wait_for(lambda: start_ticks(first) is None, "the end of the abandoned query")
    assert (driver / "hang").exists()

    (driver / "hang").unlink()
    assert world.wait_finished(2)[2]["outcome"] == "completed"
    assert world.status()["gpus"][0]["fault"] is None
    assert world.output().count(_UNREADABLE) == 1
    assert world.output().count("the GPUs respond again") == 1
    assert world.end_scheduler() == 0
