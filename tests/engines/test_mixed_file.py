"""Tests one jobs file whose jobs run here and on a real Slurm: each way in which a job can end or go on."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from tests.e2e.world import World
from tests.engines.test_e2e import has_begun, start, world
from tests.slurm_lab import SlurmLab
from tests.waiting import wait_for

__all__ = ["world"]
pytestmark = pytest.mark.timeout(240)
_RUNS = "echo up; sleep 100 & wait"
#: Saves its step when it is asked to end; goes on from the step in the file that its option names.
_TRAINING = """\
import os, signal, sys, time
done = int(open(sys.argv[2]).read()) if sys.argv[1:2] == ["--load"] else 0
print("begins at", done, os.environ.get("GPU_SCHEDULER_CHECKPOINT"), flush=True)
def save(number, frame):
    os.makedirs("out", exist_ok=True)
    for step in ("2", "3"):  # only the newer one shows that the older one is complete
        with open(f"out/step_{step}.txt", "w") as file:
            file.write(step)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while done == 0:
    signal.pause()
print("ends after", done, flush=True)
"""


def test_one_file_with_jobs_of_both_sides(world: World, slurm: SlurmLab) -> None:
    (world.folder / "train.py").write_text(_TRAINING)
    world.append(
        "[name=prep] echo local",
        "[name=far on=slurm gpus=1 after=prep] echo far",
        "[name=back after=far] echo back",
        "[name=again fail-retries=1] exit 3",
        "[name=far-again on=slurm fail-retries=1] exit 4",
        "[name=slow timeout=1s] sleep 60",
        "[name=far-slow on=slurm timeout=1s] sleep 60",
        "[name=never after=far-again] echo never",
        f"[name=train on=slurm gpus=1 resume-flag=--load checkpoints='out/*.txt'] {sys.executable} train.py",
        "[name=after-train after=train] echo after",
    )
    start(world, "--slurm-limit", "1")
    wait_for(partial(has_begun, world, "train"), "the training runs")
    with subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "--state-file", world.state, "logs", "-f", "train"],
        cwd=world.folder, env=world.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as follower:  # fmt: skip
        try:
            world.run_ok("preempt", "train")
            world.wait_until(
                lambda jobs: any(j["name"] == "train" and j["state"] == "held" for j in jobs.values()), "held"
            )
            output, _ = follower.communicate(timeout=30)
        finally:
            follower.kill()
    assert "saved" in output, output
    assert "out/step_2.txt" in world.run_ok("resume", "--job", "train")
    jobs = world.wait_finished()
    found = {job["name"]: (job["outcome"], job["exit_code"], job["attempts"]) for job in jobs.values()}
    assert found == {
        "prep": ("completed", 0, 1), "far": ("completed", 0, 1), "back": ("completed", 0, 1),
        "again": ("failed", 3, 2), "far-again": ("failed", 4, 2),
        "slow": ("timed_out", None, 1), "far-slow": ("timed_out", None, 1),
        "never": ("skipped", None, 0), "train": ("completed", 0, 2), "after-train": ("completed", 0, 1),
    }  # fmt: skip
    log = world.run_ok("logs", "train")
    assert f"begins at 2 {world.folder}/out/step_2.txt" in log
    assert "ends after 2" in log


def test_cancel_in_each_state(world: World, slurm: SlurmLab) -> None:
    world.append(*(f"[on=slurm gpus=2 name=runs/{n}] {_RUNS}" for n in range(3)))
    start(world, "--slurm-limit", "1")
    for n in range(3):
        wait_for(partial(has_begun, world, f"runs/{n}"), "it runs")
    world.append("[on=slurm gpus=2 name=there] true", "[on=slurm gpus=2 name=here] true")
    world.append("[gpus=9 name=local] true")
    world.wait_until(
        lambda jobs: [jobs[n]["state"] for n in sorted(jobs)][3:] == ["starting", "queued", "queued"],
        "each state",
    )
    wait_for(lambda: "waits in Slurm (job " in world.cli("why", "there").stdout, "Slurm's reason")
    for name in ("local", "here", "there", "runs/0"):
        world.run_ok("cancel", name)
    jobs = world.wait_finished(1, 4, 5, 6)
    assert [jobs[n]["outcome"] for n in (1, 4, 5, 6)] == ["cancelled"] * 4
    assert [jobs[n]["attempts"] for n in (1, 5, 6)] == [1, 0, 0]
    assert {jobs[n]["state"] for n in (2, 3)} == {"running"}
    with subprocess.Popen(
        [sys.executable, "-m", "gpu_scheduler", "--state-file", world.state, "logs", "-f", "runs/1"],
        cwd=world.folder, env=world.env, stdout=subprocess.PIPE, text=True,
    ) as follower:  # fmt: skip
        try:
            world.run_ok("cancel", "runs")
            output, _ = follower.communicate(timeout=30)
        finally:
            follower.kill()
    assert "up\n" in output
    assert "cancelled" in output
