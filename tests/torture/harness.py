"""One torture: a scheduler is killed at random moments while jobs are appended, then drained and judged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.torture.trace import JOB, Verdict, judge
from tests.waiting import wait_for

Variant = Literal["direct", "screen", "naive"]


@dataclass(frozen=True)
class Plan:
    """One torture. runner_kills: also SIGKILL runners at random."""

    variant: Variant
    jobs: int
    kills: int
    seed: int
    runner_kills: int = 0


def torture(plan: Plan, folder: Path) -> Verdict:
    """Carry it out in an empty folder; the verdict is made from the jobs' own traces."""
    dice = random.Random(plan.seed)
    trace, script, jobs_file = folder / "trace", folder / "trace.sh", folder / "jobs.txt"
    script.write_text(JOB)
    codes = {n: dice.choice([0, 0, 0, 1, 3, 7, 42, 255]) for n in range(plan.jobs)}
    lines = [f"sh {script} {trace} {n} {dice.uniform(0, 0.06):.3f} {code}" for n, code in codes.items()]
    if plan.variant != "naive":
        lines = [f"[share=0.5] {line}" for line in lines]
    jobs_file.write_text("")
    per_round = -(-plan.jobs // max(1, plan.kills))
    runner_kills = sorted(dice.sample(range(plan.kills), min(plan.runner_kills, plan.kills)))
    for number in range(plan.kills):
        with jobs_file.open("a") as file:
            file.writelines(f"{line}\n" for line in lines[number * per_round : (number + 1) * per_round])
        victim = _start(plan, folder, ready=dice.random() < 0.75)
        time.sleep(dice.uniform(0.005, 0.25))  # the random moment itself, not a synchronisation
        if number in runner_kills:
            _kill_a_runner(folder, dice)
        victim.kill()
        victim.wait()
    with jobs_file.open("a") as file:
        file.writelines(f"{line}\n" for line in lines[plan.kills * per_round :])
    code = _drain(plan, folder)
    verdict = judge(trace, codes, _recorded(plan, folder), killed=plan.runner_kills > 0)
    if plan.variant != "naive" and not plan.runner_kills and code != max(codes.values()):
        verdict.wrong.append(f"the drain exits {code}, the largest code of a job is {max(codes.values())}")
    return verdict


def scheduler(folder: Path, *options: str, screen: bool = False) -> list[str]:
    """The command line of a scheduler in this folder, on four simulated GPUs."""
    mode = ["--screen"] if screen else []
    return [
        sys.executable, "-m", "gpu_scheduler", "start", "--simulate", "4", "--log-dir", str(folder / "logs"),
        *mode, *options,
    ]  # fmt: skip


def _command(plan: Plan, folder: Path, *options: str) -> list[str]:
    if plan.variant == "naive":
        return [sys.executable, "-m", "tests.torture.naive", "jobs.txt", "naive.json", "8", *options]
    return scheduler(folder, *options, screen=plan.variant == "screen")


def environment() -> dict[str, str]:
    """The environment of a scheduler under test: the checkout importable from any folder."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root}


def _start(plan: Plan, folder: Path, ready: bool) -> subprocess.Popen[bytes]:
    """A scheduler; ready: once it says that it is up, so that not all kills hit its start."""
    out = (folder / "scheduler.out").open("ab")
    at = out.tell()
    process = subprocess.Popen(
        _command(plan, folder),
        cwd=folder,
        env=environment(),
        stdout=out,
        stderr=out,
        stdin=subprocess.DEVNULL,
    )
    out.close()
    text = folder / "scheduler.out"

    if not ready:
        return process

    def is_up() -> bool:
        assert process.poll() is None, f"the scheduler ended: {text.read_text()[-2000:]}"
        said = text.read_bytes()[at:]
        return b"scheduler up" in said or b"ready" in said

    wait_for(is_up, "scheduler up", every_s=0.002)
    return process


def _drain(plan: Plan, folder: Path) -> int:
    with (folder / "scheduler.out").open("ab") as out:
        return subprocess.run(
            _command(plan, folder, "--drain"),
            cwd=folder, env=environment(), stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            timeout=60 + plan.jobs, check=False,
        ).returncode  # fmt: skip


def _recorded(plan: Plan, folder: Path) -> dict[int, int | str | None]:
    if plan.variant == "naive":
        state = json.loads((folder / "naive.json").read_text())
        return {int(line.split()[-3]): job["code"] for line, job in state.items()}
    found: dict[int, int | str | None] = {}
    for job in status(folder)["jobs"]:
        ended = job["outcome"] in ("completed", "failed") and job["exit_code"] is not None
        word = "interrupted" if job["state"] == "held" else job["outcome"] or job["state"]
        found[int(job["command"].split()[-3])] = job["exit_code"] if ended else word
    return found


def status(folder: Path) -> dict[str, Any]:
    """`status --json --all`, read."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "status", "--json", "--all"],
        cwd=folder, env=environment(), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def runner_pids(folder: Path, data: str = "gpu_scheduler_state.d") -> list[int]:
    """The pids of the live runners of this folder's jobs."""
    pids = []
    for claim in (folder / data / "runs").glob("*/*/claim"):
        if not (claim.parent / "result").exists():
            try:
                pid = int(json.loads(claim.read_text())["pid"])
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (OSError, ValueError, KeyError):
                continue
            if str(claim.parent).encode() in command:
                pids.append(pid)
    return pids


def _kill_a_runner(folder: Path, dice: random.Random) -> None:
    pids = runner_pids(folder)
    if pids:
        try:
            os.kill(dice.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            pass
