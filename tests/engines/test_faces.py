"""Tests what the commands say of jobs on a real Slurm, before, while and after they run."""

from __future__ import annotations

import json

import pytest

from tests.e2e.world import World
from tests.engines.test_e2e import world
from tests.slurm_lab import PARTITION

__all__ = ["world"]
pytestmark = pytest.mark.timeout(240)


def test_a_job_keeps_its_node_and_its_number_in_slurm(world: World) -> None:
    world.append("[on=slurm] sleep 2")
    world.start("--slurm", PARTITION, "--slurm-dir", "shared")
    world.wait_until(
        lambda jobs: bool(jobs) and jobs[1]["engine"] is not None and jobs[1]["engine"]["node"], "it runs"
    )
    job = world.wait_finished(1)[1]
    node, number = job["engine"]["node"], job["engine"]["native_id"]
    [attempt] = json.loads(world.run_ok("show", "1", "--json"))["attempts"]
    assert attempt["engine"] == job["engine"]
    assert attempt["engine"]["name"] == "slurm"
    where = f"on Slurm, node {node}, Slurm job {number}"
    assert where in world.run_ok("show", "1")
    assert where in world.run_ok("status", "--verbose")
    assert f"  {node}  " in world.run_ok("status")


def test_slurm_decides_when_its_jobs_start_and_they_take_no_gpu_here(world: World) -> None:
    world.append(
        *("[on=slurm gpus=2] sleep 100" for _ in range(3)), "[on=slurm gpus=2] true", "[gpus=1] sleep 100"
    )
    world.start("--slurm", PARTITION, "--slurm-dir", "shared", "--slurm-limit", "1")
    world.append("[on=slurm gpus=2] true", "[after=4] true")
    world.wait_until(lambda jobs: len(jobs) == 7 and "(job " in str(jobs[4]["reason"]), "one waits there")
    plan = {job["id"]: job for job in json.loads(world.run_ok("plan", "--json"))["jobs"]}
    assert [plan[4]["start_at"], plan[6]["start_at"], plan[7]["start_at"]] == [None] * 3
    assert plan[4]["no_forecast"].startswith("Slurm decides; waits in Slurm (job ")
    assert plan[6]["no_forecast"] == "Slurm decides; 1 job waits in Slurm already (--slurm-limit)"
    assert plan[5]["gpus"] == [0]


def test_status_says_that_jobs_run_on_an_engine_that_the_scheduler_does_not_use(world: World) -> None:
    world.append("[on=slurm] sleep 100")
    world.start("--slurm", PARTITION, "--slurm-dir", "shared")
    world.wait_until(lambda jobs: bool(jobs) and jobs[1]["state"] == "running", "it runs")
    world.end_scheduler()
    world.start()
    assert "1 job is on Slurm, but the scheduler was started without --slurm" in world.run_ok("status")
