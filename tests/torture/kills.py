"""P1 and P2: jobs are submitted in every way while the scheduler is killed at random moments, then drained.

Every acknowledged job must have run once, to the end that the record tells. Now and then a second runner is
started on purpose in the folder of an attempt.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

from gpu_scheduler.executors.direct import DirectExecutor
from tests.isolation import HAS_CONDA, SYSTEM_CONDA
from tests.torture.harness import Stage, environment, newest_attempts, pause, program_for, scheduler
from tests.torture.part import Found, Order
from tests.torture.submit import SCRIPT
from tests.torture.trace import JOB, judge, number_of, said_of
from tests.waiting import wait_for

Variant = Literal["direct", "screen", "naive"]

#: Of the jobs; `add` is a process of its own for each, and takes its time.
_WAYS = {"file": 0.65, "add": 0.1, "insert": 0.25}
#: What the job's `python` is here: the torture's CSV lines run a shell script, not to wait for interpreters.
_PYTHON = '#!/bin/sh\nshift\nexec /bin/sh "$@"\n'


def direct(order: Order) -> Found:
    """500 kills and 2,500 jobs without a terminal."""
    return kills(order, "naive" if order.naive else "direct", order.of(500), order.of(2500))


def screen(order: Order) -> Found:
    """500 kills and 2,500 jobs in Screen."""
    return kills(order, "screen", order.of(500), order.of(2500))


def kills(order: Order, variant: Variant, times: int, count: int) -> Found:
    """So many kills of a scheduler with so many jobs."""
    if SYSTEM_CONDA is not None:
        return Found(skipped=HAS_CONDA)  # and not the `python` that this part gives its jobs
    found, dice = Found(), order.dice(variant)
    stage = stage_for(order.folder, variant, program_for(order))
    codes = {n: dice.choice([0, 0, 0, 1, 3, 7, 42, 255]) for n in range(count)}
    jobs = [_job(stage, n, code, variant, dice) for n, code in codes.items()]
    again = DirectExecutor()
    first = stage.start()  # its record is there from now on
    first.kill()
    first.wait()
    with _Submitter(stage, variant) as submitter:
        per_round = -(-count // times)
        for number in range(times):
            submitter.submit(jobs[number * per_round : (number + 1) * per_round])
            victim = stage.start(ready=dice.random() < 0.75)
            pause(dice.uniform(0.005, 0.25))
            if variant != "naive" and dice.random() < 0.5:
                _launch_again(stage, again, dice, found)
            victim.kill()
            victim.wait()
        submitter.submit(jobs[times * per_round :])
        submitter.close(found)
    code = stage.drain(120 + count)
    lined = [codes[int(str(job["n"]))] for job in jobs if job["way"] != "insert"]
    _judge(stage, variant, codes, found, code, least=max(lined, default=0))
    wait_for(lambda: none_left(again), "second runners gone")
    found.figures = {"kills": times, "jobs": count, **found.figures}
    return found


def none_left(executor: DirectExecutor) -> bool:
    """Whether every runner that it started has ended."""
    executor.reap()
    return executor.running == 0


def stage_for(folder: Path, variant: Variant, program: str = "gpu_scheduler") -> Stage:
    """A folder with all that the jobs of the torture need, and its scheduler."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    (folder / "trace.sh").write_text(JOB)
    (folder / SCRIPT).write_text(JOB)
    (folder / "jobs.txt").touch()
    (folder / "llm_config.json").write_text('{"models": {}, "default_requirement": 0.5}')
    env = environment()
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    command = scheduler(folder, *["--screen"] * (variant == "screen"), program=program)
    if variant == "naive":
        command = [sys.executable, "-m", "tests.torture.naive", "jobs.txt", "naive.json", "8"]
    return Stage(folder, command=command, env=env)


def _job(stage: Stage, number: int, code: int, variant: Variant, dice: random.Random) -> dict[str, object]:
    args = f"{stage.trace} {number} {dice.uniform(0, 0.06):.3f} {code}"
    way = dice.choices(list(_WAYS), list(_WAYS.values()))[0]
    line = f"sh {stage.folder}/trace.sh {args}"
    return {"n": number, "way": "file" if variant == "naive" else way, "line": line, "args": args}


class _Submitter:
    """A process that submits while schedulers come and go; it is never killed."""

    def __init__(self, stage: Stage, variant: Variant) -> None:
        self._stage, self._naive = stage, variant == "naive"
        self._acks = stage.folder / "acks"
        self._sent = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Submitter:
        if self._naive:
            return self
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.submit", str(self._acks)],
            cwd=self._stage.folder, env=self._stage.env, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def submit(self, jobs: list[dict[str, object]]) -> None:
        """Hand over jobs; they are submitted one after the other, meanwhile."""
        if self._process is None:
            self._stage.append([str(job["line"]) for job in jobs])
            return
        assert self._process.stdin is not None
        self._sent += len(jobs)
        self._process.stdin.write("".join(json.dumps(job) + "\n" for job in jobs))
        self._process.stdin.flush()

    def close(self, found: Found) -> None:
        """Wait until all are acknowledged; a refusal is a fault."""
        if self._process is None:
            return
        _, said = self._process.communicate()
        for line in said.splitlines():
            found.fault("refused", line)
        acks = [line.split() for line in self._acks.read_text().splitlines()]
        for way in _WAYS:
            found.figures[f"by {way}"] = sum(1 for ack in acks if ack[1] == way)
        if len(acks) != self._sent:
            found.fault("refused", f"{self._sent} were submitted, {len(acks)} acknowledged")


def _launch_again(stage: Stage, executor: DirectExecutor, dice: random.Random, found: Found) -> None:
    """Start one more runner for one of the newest attempts, whatever became of it."""
    newest = newest_attempts(stage.home, 20)
    if newest:
        executor.launch(dice.choice(newest))
        found.count("launched again")


def _judge(
    stage: Stage, variant: Variant, codes: dict[int, int], found: Found, code: int, least: int
) -> None:
    """least: the largest code of the jobs of the file. What a scheduler that was killed had recorded of jobs
    that came without a line is not the drain's to tell."""
    if variant == "naive":
        state = json.loads((stage.folder / "naive.json").read_text())
        said = {number_of(line): job["code"] for line, job in state.items()}
    else:
        said = said_of(stage.status())
        if not least <= code <= max(codes.values()):
            told = f"the drain exits {code}, which is not from {least} to {max(codes.values())}"
            found.fault("wrong codes", told)
    judge(stage.trace, codes, said, killed=False).tell(found)
