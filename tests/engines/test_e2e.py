"""Tests a queue whose jobs run here and on a real Slurm, as a user sees it on the command line."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.slurm_lab import PARTITION, SlurmLab
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)
#: Prints "up" and its GPUs, and runs until it is asked to end, which it notes with the name of the signal.
_SAVES = "trap 'echo saved; exit 0' TERM; echo up $CUDA_VISIBLE_DEVICES; sleep 100 & wait"


@pytest.fixture
def world(tmp_path: Path, slurm: SlurmLab) -> Iterator[World]:
    made = World(tmp_path, is_warm=False)
    made.env |= {**slurm.env, "GPU_SCHEDULER_TIME_SCALE": "20"}
    (tmp_path / "shared").mkdir(mode=0o700)
    yield made
    made.close()
    for name in squeue(slurm):
        subprocess.run(["scancel", f"--name={name}"], env=slurm.env, check=False)
    wait_for(lambda: not squeue(slurm), "Slurm is empty")


def squeue(slurm: SlurmLab) -> list[str]:
    """Returns the names of the jobs that have not ended."""
    done = subprocess.run(
        ["squeue", "-h", "-o", "%j"], env=slurm.env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def has_begun(world: World, name: str) -> bool:
    """Returns whether the newest attempt of a job has printed "up"."""
    return "up" in world.cli("logs", name).stdout


def start(world: World, *options: str) -> None:
    world.start("--slurm", PARTITION, "--slurm-dir", "shared", *options)


def test_one_jobs_file_for_this_machine_and_slurm(world: World) -> None:
    world.append(
        "[name=prep on=slurm gpus=1] echo prepared on $CUDA_VISIBLE_DEVICES",
        "[name=here after=prep] echo local",
        "[name=train on=slurm gpus=2 after=here gpu-type=a100] python3 -c 'import sys; print(sys.argv[1:])'"
        " --cuda 0",
        "[name=fails on=slurm fail-retries=1] exit 3",
        "[name=slow on=slurm timeout=1s] sleep 60",
        "[name=huge on=slurm gpus=9] true",
    )
    start(world)
    jobs = world.wait_finished(1, 2, 3, 4, 5)
    found = {job["name"]: (job["outcome"], job["exit_code"], job["attempts"]) for job in jobs.values()}
    assert found["prep"] == found["here"] == found["train"] == ("completed", 0, 1)
    assert found["fails"] == ("failed", 3, 2)
    assert found["slow"][0] == "timed_out"
    assert jobs[6]["infeasible"]
    assert "Requested node configuration" in jobs[6]["reason"]
    assert "prepared on 0" in world.run_ok("logs", "prep")
    assert "['--cuda', '0,1']" in world.run_ok("logs", "train")
    assert "Requested node configuration" in world.cli("why", "huge").stdout
    assert "is handed over to Slurm" in world.output()


def test_preempt_cancel_and_retry_on_slurm(world: World, slurm: SlurmLab) -> None:
    world.append(f"[name=one on=slurm gpus=1] {_SAVES}", f"[name=two on=slurm gpus=1] {_SAVES}")
    start(world)
    for name in ("one", "two"):
        wait_for(partial(has_begun, world, name), f"{name} runs")
    assert {job["engine"]["state"] for job in world.jobs().values()} == {"running"}
    world.run_ok("preempt", "one")
    world.run_ok("cancel", "two")
    world.wait_until(lambda jobs: jobs[1]["state"] == "held" and jobs[2]["state"] == "finished", "stopped")
    for name in ("one", "two"):
        assert "saved" in world.run_ok("logs", name)
    assert world.jobs()[2]["outcome"] == "cancelled"
    world.run_ok("retry", "one")
    wait_for(partial(has_begun, world, "one"), "runs again")
    world.run_ok("cancel", "one")
    world.wait_finished(1)
    wait_for(lambda: not squeue(slurm), "Slurm is empty")


def test_jobs_that_wait_in_slurm_and_here(world: World, slurm: SlurmLab) -> None:
    world.append(*(f"[on=slurm gpus=2 name=fills/{n}] {_SAVES}" for n in range(3)))
    start(world, "--slurm-limit", "2")
    world.wait_until(lambda jobs: [j["state"] for j in jobs.values()] == ["running"] * 3, "three run")
    world.append(*("[on=slurm gpus=2] true" for _ in range(4)))
    world.wait_until(
        lambda jobs: [j["state"] for j in jobs.values()].count("starting") == 2 and len(jobs) == 7,
        "two wait there",
    )
    jobs = world.jobs()
    waits = [job for job in jobs.values() if job["state"] == "starting"]
    wait_for(lambda: "waits in Slurm (job " in world.cli("why", str(waits[0]["id"])).stdout, "Slurm's reason")
    last = [job for job in jobs.values() if job["state"] == "queued"]
    assert [job["reason"] for job in last] == ["2 jobs wait in Slurm already (--slurm-limit)"] * 2
    world.run_ok("cancel", str(waits[0]["id"]))
    world.wait_finished(waits[0]["id"])
    assert world.jobs()[waits[0]["id"]]["outcome"] == "cancelled"
    world.run_ok("cancel", "fills")
    world.wait_finished()
    outcomes = [job["outcome"] for job in world.jobs().values()]
    assert (outcomes.count("cancelled"), outcomes.count("completed")) == (4, 3)


def test_a_scheduler_that_is_killed_finds_its_jobs_on_slurm_again(world: World) -> None:
    world.append("[on=slurm] sleep 2; exit 4", "[on=slurm] sleep 1")
    start(world)
    world.wait_until(lambda jobs: [j["state"] for j in jobs.values()] == ["running"] * 2, "running")
    world.end_scheduler(signal.SIGKILL)
    start(world)
    jobs = world.wait_finished(1, 2)
    assert [(job["exit_code"], job["attempts"]) for job in jobs.values()] == [(4, 1), (0, 1)]


def test_slurm_that_is_away_holds_up_nothing_here(world: World, slurm: SlurmLab) -> None:
    slurm.kill_controller()
    try:
        world.append("[on=slurm name=far] true", "[name=near] true")
        start(world)
        world.wait_finished(2)
        world.wait_until(lambda jobs: "Slurm: " in (jobs[1]["reason"] or ""), "Slurm's problem")
    finally:
        slurm.start_controller()
    world.wait_finished(1)
    assert world.jobs()[1]["outcome"] == "completed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--slurm", PARTITION), "--slurm needs --slurm-dir"),
        (("--slurm", PARTITION, "--slurm-dir", "nowhere"), "nowhere: No such file or directory"),
        (("--slurm", PARTITION, "--slurm-dir", "file"), "file is not a folder"),
        (("--slurm", PARTITION, "--slurm-dir", "open"), "chmod go-w"),
        (("--slurm", "nonsense", "--slurm-dir", "shared"), "`sinfo -s` lists the partitions"),
        (("--slurm", PARTITION, "--slurm-dir", "shared", "--slurm-options", "x"), "is not an option"),
        (("--on", "slurm"), "work only with --slurm"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(
    world: World, options: tuple[str, ...], words: str
) -> None:
    (world.folder / "file").touch()
    (world.folder / "open").mkdir()
    os.chmod(world.folder / "open", 0o777)
    done = world.cli("start", "--simulate", "1", *options)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_without_slurm_a_job_for_it_waits_and_says_why(world: World) -> None:
    world.append("[on=slurm] true")
    world.start()
    world.wait_until(lambda jobs: jobs and "start it with --slurm" in (jobs[1]["reason"] or ""), "the reason")


@pytest.mark.parametrize("attribute", ["allowed=0", "exclusive", "preempt"])
def test_attributes_that_slurm_cannot_honour_are_errors(world: World, attribute: str) -> None:
    world.append(f"[on=slurm {attribute}] true")
    done = world.cli("lint")
    assert "on=slurm chooses the GPUs itself" in done.stdout


def test_a_job_on_slurm_survives_the_loss_of_the_store(world: World, slurm: SlurmLab) -> None:
    world.append(f"[on=slurm name=one] echo run >> {world.folder}/runs; sleep 4; exit 6")
    start(world)
    world.wait_until(lambda jobs: [j["state"] for j in jobs.values()] == ["running"], "running")
    wait_for((world.folder / "runs").exists, "the command runs")
    world.end_scheduler(signal.SIGKILL)
    data_dir = world.folder / "gpu_scheduler_state.d"
    for path in (*data_dir.glob("*.db*"), *data_dir.glob("*sqlite*")):
        path.unlink()
    fresh = world.cli(
        "start", "--simulate", "4", "--fresh", "--yes", "--slurm", PARTITION, "--slurm-dir", "shared"
    )
    assert fresh.returncode != 0, "the job still runs"
    start(world, "--restore")
    jobs = world.wait_finished(1)
    assert (jobs[1]["exit_code"], jobs[1]["attempts"]) == (6, 1)
    assert (world.folder / "runs").read_text() == "run\n"
