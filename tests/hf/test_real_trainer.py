"""Runs real trainers under a real scheduler, through the command line, as users do: `make test-hf`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.e2e.world import World
from tests.hf.trainer import environment
from tests.waiting import wait_for

#: 0.16 s for each step, of 8 samples.
TRAIN = ("train.py", "--output_dir", "outputs", "--report_to", "none", "--sample_ms", "20")
#: 0.28 s for each step. Without a bar, the seconds that Python needs to import its libraries count as work,
#: so the run must be much longer than these.
WITHOUT_BAR = ("--disable_tqdm", "True", "--sample_ms", "35")
#: 0.32 s for each step.
LIGHTNING = ("lit.py", "--output_dir", "outputs", "--sample_ms", "40")
#: Seconds that one run may take on a busy machine.
RUN_S = 240.0


class Saved(NamedTuple):
    """A checkpoint in the folder `outputs`: its step, and its path as commands print it."""

    step: int
    path: str


def trainer_checkpoints(world: World) -> list[Saved]:
    """Returns the complete checkpoints of the Hugging Face Trainer, by step."""
    found = world.folder.glob("outputs/checkpoint-*/trainer_state.json")
    return sorted(
        Saved(int(state.parent.name.rpartition("-")[2]), f"outputs/{state.parent.name}") for state in found
    )


def lightning_checkpoints(world: World) -> list[Saved]:
    """Returns the checkpoints of PyTorch Lightning, by step."""
    found = world.folder.glob("outputs/*.ckpt")
    steps = ((re.search(r"step=(\d+)", path.name), path) for path in found)
    return sorted(Saved(int(step[1]), f"outputs/{path.name}") for step, path in steps if step is not None)


def log_of(world: World, job: int, attempt: int) -> str:
    """Returns the log of one attempt, with a line for each frame of a bar."""
    log = world.run_ok("logs", str(job), "--attempt", str(attempt), "--raw")
    return log.replace("\r", "\n")


def attempts_of(world: World, job: int) -> list[dict[str, Any]]:
    """Returns the attempts of a job, as `show --json` lists them."""
    attempts: list[dict[str, Any]] = json.loads(world.run_ok("show", str(job), "--json"))["attempts"]
    return attempts


def steps_in_log(log: str, total: int) -> list[int]:
    """Returns the steps that the bar of the run shows, in their order."""
    return [int(step) for step in re.findall(rf"\b(\d+)/{total} \[", log)]


def submit(world: World, command: Sequence[str], *options: str) -> None:
    """Queues a job in the project folder."""
    world.run_ok("submit", *options, *command)


def wait_for_step(world: World, job: int, step: int, total: int, attempt: int = 1) -> None:
    """Waits until the bar of a job shows a step."""

    def reached() -> bool:
        steps = steps_in_log(log_of(world, job, attempt), total)
        return bool(steps) and steps[-1] >= step

    world.wait_until(lambda jobs: job in jobs and jobs[job]["state"] == "running", f"job {job} running")
    wait_for(reached, f"step {step} of job {job}", RUN_S, every_s=0.2)


def wait_completed(world: World, *jobs: int) -> dict[int, dict[str, Any]]:
    """Waits until jobs have finished; they must have completed."""
    finished = world.wait_finished(*jobs, timeout_s=RUN_S)
    assert {finished[job]["outcome"] for job in jobs} == {"completed"}
    return finished


class Estimate(NamedTuple):
    """The estimate of `eta` at one moment. at: wall seconds; remaining_s: None if there is none."""

    at: float
    percent: float
    remaining_s: float | None


def estimates_until_half_way(world: World, job: int) -> list[Estimate]:
    """Asks for the estimate again and again; returns that after the first step and that at half-way."""
    seen: list[Estimate] = []

    def is_half_way() -> bool:
        done = world.cli("eta", str(job), "--json")
        if done.returncode != 0:
            return False
        shown = json.loads(done.stdout)
        found = shown["jobs"][0]["progress"]
        if found["percent"]:
            seen.append(Estimate(shown["now"], found["percent"], found["eta_s"]))
        return bool(seen) and seen[-1].percent >= 50

    wait_for(is_half_way, f"half of job {job}", RUN_S, every_s=0.2)
    return [seen[0], seen[-1]]


def left_at_same_pace_s(half: Estimate, since: float, percent: float = 0.0) -> float:
    """Returns the time left if the rest goes at the pace of the run since a moment with this percentage."""
    return (half.at - since) * (100 - half.percent) / (half.percent - percent)


@pytest.mark.parametrize(
    "words",
    [
        ("--max_steps", "240", "--save_steps", "50"),
        (*WITHOUT_BAR, "--num_train_epochs", "5", "--samples", "400", "--logging_steps", "5"),
        (*WITHOUT_BAR, "--max_steps", "240", "--save_steps", "10"),
        (*WITHOUT_BAR, "--max_steps", "240", "--report_progress", "True"),
    ],
    ids=["bar", "dict lines", "checkpoints", "progress file"],
)
def test_eta_at_half_way_is_within_20_percent(world: World, words: Sequence[str]) -> None:
    """The ETA is right if the pace stays the same; on a busy machine, it lies between both paces."""
    world.start("--simulate", "1")
    submit(world, [*TRAIN, *words])
    first, half = estimates_until_half_way(world, 1)
    finished = wait_completed(world, 1)[1]
    left_s = finished["finished_at"] - half.at
    # A bar shows the time of its work; without one, the preparation counts too.
    paced_s = left_at_same_pace_s(half, finished["started_at"])
    if "--disable_tqdm" not in words:
        paced_s = left_at_same_pace_s(half, first.at, first.percent)
    print(f"at {half.percent:.0f}%: ETA {half.remaining_s} s; same pace {paced_s:.1f} s; took {left_s:.1f} s")
    assert half.remaining_s is not None
    assert 0.8 * min(paced_s, left_s) <= half.remaining_s <= 1.2 * max(paced_s, left_s)
    assert 50 <= half.percent < 70


@pytest.mark.parametrize("saves", [False, True], ids=["killed", "saves on SIGTERM"])
def test_preempt_finds_the_checkpoint_from_which_resume_continues(world: World, saves: bool) -> None:
    world.start("--simulate", "1")
    submit(
        world,
        [*TRAIN, "--max_steps", "100", "--save_steps", "30", "--logging_steps", "5"]
        + (["--save_on_sigterm", "True"] if saves else []),
        "--name",
        "exp02",
    )
    wait_for_step(world, 1, 65, 100)
    preempted = world.run_ok("preempt", "1")
    newest = trainer_checkpoints(world)[-1]
    assert f"latest checkpoint: {newest.path} (step {newest.step}, " in preempted
    if saves:
        assert 65 <= newest.step < 100
    else:
        assert newest.step in (60, 90)
        assert "lost)" in preempted
    assert world.jobs()[1]["state"] == "held"
    resumed = world.run_ok("resume", "--job", "exp02")
    assert newest.path in resumed
    print(preempted, resumed, sep="")
    wait_completed(world, 1)
    assert_continued(world, 1, newest.step, 100)


def assert_continued(world: World, job: int, checkpoint: int, total: int) -> None:
    """Checks that the second attempt of a job started after the step of a checkpoint and did all the rest."""
    steps = [step for step in steps_in_log(log_of(world, job, 2), total) if step]
    print(
        f"attempt 2 started with step {steps[0]}, after checkpoint {checkpoint}, and ended with {steps[-1]}"
    )
    assert steps[0] == checkpoint + 1
    assert steps[-1] == total
    state = json.loads(
        (world.folder / trainer_checkpoints(world)[-1].path / "trainer_state.json").read_text()
    )
    logged = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    # Losses logged before the checkpoint come from its trainer_state.json.
    assert logged == list(range(5, total + 1, 5))


@pytest.mark.parametrize(
    "flag", ["resume-flag=--resume_from_checkpoint ", ""], ids=["with resume-flag", "without"]
)
def test_a_victim_continues_by_itself_if_it_has_a_resume_flag(world: World, flag: str) -> None:
    train = " ".join(TRAIN)
    world.append(
        f"[venv=.venv priority=LOW {flag}name=long] python {train} --max_steps 100 --save_steps 20"
        " --logging_steps 5 --overwrite_output_dir True"
    )
    world.start("--simulate", "1")
    wait_for_step(world, 1, 50, 100)
    urgent = train.replace("outputs", "urgent")
    world.append(f"[venv=.venv preempt priority=CRITICAL name=urgent] python {urgent} --max_steps 10")
    finished = wait_completed(world, 1, 2)
    first, second = attempts_of(world, 1)
    assert first["outcome"] == "preempted"
    assert second["started_at"] >= finished[2]["finished_at"]
    if flag:
        resumed_at = int(second["resumed_from"]["step"])
        assert resumed_at in (40, 60)
        assert_continued(world, 1, resumed_at, 100)
    else:
        assert next(step for step in steps_in_log(log_of(world, 1, 2), 100) if step) == 1


def test_preempts_lightning_with_sigusr1_and_resumes_it(world: World) -> None:
    world.append(
        f"[venv=.venv preempt-signal=USR1] python {' '.join(LIGHTNING)} --max_epochs 2 --samples 320"
        " --save_steps 10"
    )
    world.start("--simulate", "1")
    wait_for(lambda: lightning_checkpoints(world)[1:], "the second checkpoint", RUN_S, every_s=0.1)
    preempted = world.run_ok("preempt", "1")
    newest = lightning_checkpoints(world)[-1]
    assert newest.step > 20
    assert f"latest checkpoint: {newest.path} (step {newest.step}, " in preempted
    resumed = world.run_ok("resume", "--job", "1")
    print(preempted, resumed, sep="")
    wait_completed(world, 1)
    log = log_of(world, 1, 2)
    assert f"Restored all states from the checkpoint file at {world.folder}/{newest.path}" in log
    steps = [saved.step for saved in lightning_checkpoints(world)]
    assert steps[-1] == 80


def test_a_launcher_that_the_signal_kills_leaves_its_trainer_time_to_save(world: World) -> None:
    train = " ".join(TRAIN)
    world.append(
        f"[venv=.venv] accelerate launch --cpu --num_processes 1 {train} --use_cpu True --max_steps 100"
        " --save_steps 30 --logging_steps 5 --save_on_sigterm True && echo next"
    )
    world.start("--simulate", "1")
    wait_for_step(world, 1, 40, 100)
    preempted = world.run_ok("preempt", "1")
    newest = trainer_checkpoints(world)[-1]
    assert newest.step >= 40
    assert f"latest checkpoint: {newest.path} (step {newest.step}, " in preempted
    world.run_ok("resume", "--job", "1")
    print(preempted)
    wait_completed(world, 1)
    assert_continued(world, 1, newest.step, 100)


def test_an_adopted_trainer_has_an_eta_and_is_preempted_and_resumed(world: World) -> None:
    log = world.folder / "train.log"
    command = [*TRAIN, "--max_steps", "150", "--save_steps", "40", "--logging_steps", "5"]
    with open(log, "wb") as output:
        trainer = subprocess.Popen(
            [".venv/bin/python", "-u", *command], cwd=world.folder, env=environment(), stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        world.start("--simulate", "1")
        wait_for(lambda: steps_in_log(log.read_text().replace("\r", "\n"), 150)[9:], "step 9", RUN_S)
        adopted = world.run_ok("adopt", str(trainer.pid), "--name", "exp02-training", "--gpus", "0")
        assert adopted.splitlines()[0] == f"Adopted PID {trainer.pid} as job 1: exp02-training"
        first, half = estimates_until_half_way(world, 1)
        assert half.remaining_s == pytest.approx(left_at_same_pace_s(half, first.at, first.percent), rel=0.3)
        preempted = world.run_ok("preempt", "1")
    finally:
        trainer.kill()
        trainer.wait()
    newest = trainer_checkpoints(world)[-1]
    assert f"latest checkpoint: {newest.path} (step {newest.step}, " in preempted
    world.run_ok("resume", "--job", "exp02-training")
    print(adopted, preempted, sep="")
    wait_completed(world, 1)
    assert_continued(world, 1, newest.step, 150)
