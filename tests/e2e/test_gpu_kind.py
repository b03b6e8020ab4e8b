"""Tests `start` with real GPUs (a fake nvidia-smi) on a store with simulated GPUs, and the reverse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.world import World

FAKES = Path(__file__).parents[1] / "fakes"
REAL = ("--gpu-probe", "gputil")


def start(world: World, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `start --drain` on this world's jobs file."""
    world.env["PATH"] = f"{FAKES}{os.pathsep}{os.environ['PATH']}"
    return world.cli("start", "--drain", "--log-dir", "logs", *options)


def files(world: World) -> dict[str, bytes]:
    """Returns the content of every file in the folder, by path."""
    return {str(path): path.read_bytes() for path in sorted(world.folder.rglob("*")) if path.is_file()}


def test_start_refuses_a_store_of_the_other_kind_of_gpus_and_leaves_it_unchanged(world: World) -> None:
    world.append("echo ran >> told", "[vram=70G] echo big")
    simulated = start(world, "--simulate", "1:24G")
    assert simulated.returncode == 3
    notice = "only the GPUs are simulated: the commands really run, and their jobs count as completed"
    assert notice in simulated.stdout
    before = files(world)
    refused = start(world, *REAL, "--log-dir", "other_logs", "--jobs-file", "none.txt")
    assert refused.returncode == 2
    why, ways = refused.stderr.splitlines()
    assert "2 jobs recorded with simulated GPUs, but this start would use real GPUs" in why
    assert [way in ways for way in ("--fresh", "--state-file", "--keep-history")] == [True] * 3
    assert files(world) == before
    assert not (world.folder / "other_logs").exists()

    forgot = start(world, *REAL, "--fresh", "--yes")
    assert "job 4 waits, infeasible" in forgot.stdout
    assert (world.folder / "told").read_text() == "ran\nran\n"
    back = start(world, "--simulate", "1:80G")
    assert back.returncode == 2
    assert "2 jobs recorded with real GPUs, but this start would use simulated GPUs" in back.stderr


def test_jobs_queued_on_simulated_gpus_can_start_on_real_gpus_with_keep_history(world: World) -> None:
    world.append("while [ ! -e go ]; do sleep 0.02; done")
    world.start("--simulate", "2:80G")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    world.run_ok("pause", "1")
    world.append("[vram=60G] echo big")
    world.wait_until(lambda jobs: jobs.get(2, {}).get("reason"), "job 2 waits")
    world.end_scheduler()
    world.append("echo small")
    (world.folder / "go").touch()
    done = start(world, *REAL, "--keep-history")
    assert done.returncode == 3
    assert "removed the simulated GPUs from the store" in done.stdout
    jobs = world.jobs()
    assert [jobs[job]["outcome"] for job in (1, 2, 3)] == ["completed", None, "completed"]
    assert jobs[2]["reason"].startswith("infeasible: needs 60.0 GiB of a GPU")
    gpus = world.status()["gpus"]
    assert {(gpu["name"], gpu["state"]) for gpu in gpus} == {("Fake 24 GiB", "available")}
    assert world.cli("start", "--drain", "--simulate", "1").returncode == 2
