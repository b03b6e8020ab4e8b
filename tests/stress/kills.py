"""P1 and P2: jobs are submitted in every way while the scheduler is killed at random moments.

After a final drain, every acknowledged job must have run once and ended as the store says. From time to time,
this part deliberately starts a second runner in an attempt folder.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

from gpu_scheduler.attempts.executors import DirectExecutor
from gpu_scheduler.attempts.folder import AttemptRef
from tests.isolation import SYSTEM_CONDA, SYSTEM_CONDA_REASON
from tests.stress.harness import Stage, environment, newest_attempts, pause, program_for, scheduler
from tests.stress.part import Findings, Order
from tests.stress.submit import SCRIPT
from tests.stress.trace import JOB, judge, number_of, outcomes_of
from tests.waiting import wait_for

Variant = Literal["direct", "screen", "control"]

#: The fraction of the jobs to submit in each way. `add` is slowest, because it starts a process for each job.
_WAYS = {"file": 0.65, "add": 0.1, "insert": 0.25}
#: Stands in for the `python` of CSV lines: it runs a shell script, which starts faster.
_PYTHON = '#!/bin/sh\nshift\nexec /bin/sh "$@"\n'


def direct(order: Order) -> Findings:
    """Kills the scheduler 500 times during 2,500 jobs without a terminal."""
    return kills(order, "control" if order.is_control else "direct", order.scaled(500), order.scaled(2500))


def screen(order: Order) -> Findings:
    """Kills the scheduler 500 times during 2,500 jobs in Screen."""
    return kills(order, "screen", order.scaled(500), order.scaled(2500))


def kills(order: Order, variant: Variant, times: int, count: int) -> Findings:
    """Kills a scheduler `times` times during `count` jobs."""
    if SYSTEM_CONDA is not None:
        return Findings(
            skipped=SYSTEM_CONDA_REASON
        )  # jobs would not run the `python` that this part provides
    found, dice = Findings(), order.rng(variant)
    stage = stage_for(order.folder, variant, program_for(order))
    codes = {n: dice.choice([0, 0, 0, 1, 3, 7, 42, 255]) for n in range(count)}
    jobs = [_job(stage, n, code, variant, dice) for n, code in codes.items()]
    again = DirectExecutor()
    first = stage.start()  # creates the data directory
    first.kill()
    first.wait()
    with _Submitter(stage, variant) as submitter:
        per_round = -(-count // times)
        for number in range(times):
            submitter.submit(jobs[number * per_round : (number + 1) * per_round])
            victim = stage.start(ready=dice.random() < 0.75)
            pause(dice.uniform(0.005, 0.25))
            if variant != "control" and dice.random() < 0.5:
                _launch_second_runner(stage, again, dice, found)
            victim.kill()
            victim.wait()
        submitter.submit(jobs[times * per_round :])
        submitter.close(found)
    code = stage.drain(120 + count)
    lined = [codes[int(str(job["n"]))] for job in jobs if job["way"] != "insert"]
    _judge(stage, variant, codes, found, code, least=max(lined, default=0))
    wait_for(lambda: none_left(again), "the ends of the second runners")
    found.figures = {"scheduler kills": times, "jobs": count, **found.figures}
    return found


def none_left(executor: DirectExecutor) -> bool:
    """Returns whether every runner that this executor started has ended."""
    executor.reap()
    return executor.running == 0


def stage_for(folder: Path, variant: Variant, program: str = "gpu_scheduler") -> Stage:
    """Makes a folder with everything that these jobs need, in which schedulers can run."""
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
    if variant == "control":
        command = [sys.executable, "-m", "tests.stress.control_scheduler", "jobs.txt", "control.json", "8"]
    return Stage(folder, command=command, env=env)


def _job(stage: Stage, number: int, code: int, variant: Variant, dice: random.Random) -> dict[str, object]:
    args = f"{stage.trace} {number} {dice.uniform(0, 0.06):.3f} {code}"
    way = dice.choices(list(_WAYS), list(_WAYS.values()))[0]
    line = f"sh {stage.folder}/trace.sh {args}"
    return {"n": number, "way": "file" if variant == "control" else way, "line": line, "args": args}


class _Submitter:
    """A process that submits jobs while schedulers start and are killed. It is never killed itself."""

    def __init__(self, stage: Stage, variant: Variant) -> None:
        self._stage, self._is_control = stage, variant == "control"
        self._acks = stage.folder / "acks"
        self._sent = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Submitter:
        if self._is_control:
            return self
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.submit", str(self._acks)],
            cwd=self._stage.folder, env=self._stage.env, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def submit(self, jobs: list[dict[str, object]]) -> None:
        """Passes jobs to the process, which submits them one after the other in the background."""
        if self._process is None:
            self._stage.append([str(job["line"]) for job in jobs])
            return
        assert self._process.stdin is not None
        self._sent += len(jobs)
        self._process.stdin.write("".join(json.dumps(job) + "\n" for job in jobs))
        self._process.stdin.flush()

    def close(self, found: Findings) -> None:
        """Waits until all jobs are acknowledged. Counts each refusal as a fault."""
        if self._process is None:
            return
        _, errors = self._process.communicate()
        for line in errors.splitlines():
            found.fault("refused", line)
        acks = [line.split() for line in self._acks.read_text().splitlines()]
        for way in _WAYS:
            found.figures[f"submitted by {way}"] = sum(1 for ack in acks if ack[1] == way)
        if len(acks) != self._sent:
            found.fault("refused", f"{self._sent} were submitted, {len(acks)} acknowledged")


def _launch_second_runner(
    stage: Stage, executor: DirectExecutor, dice: random.Random, found: Findings
) -> None:
    """Starts another runner for one of the newest attempts, whatever the state of the attempt."""
    newest = newest_attempts(stage.home, 20)
    if newest:
        executor.launch(AttemptRef(0, 0, "", dice.choice(newest)))
        found.count("second runners")


def _judge(
    stage: Stage, variant: Variant, codes: dict[int, int], found: Findings, code: int, least: int
) -> None:
    """Compares the trace with the recorded outcomes, and checks the exit code of the drain.

    least: the largest exit code among the jobs from the file, which is the lowest possible exit code of the
    drain. Other jobs count towards that exit code only if they ended during the drain.
    """
    if variant == "control":
        state = json.loads((stage.folder / "control.json").read_text())
        outcomes = {number_of(line): job["code"] for line, job in state.items()}
    else:
        outcomes = outcomes_of(stage.status())
        if not least <= code <= max(codes.values()):
            text = f"the drain exited with {code}, not with a code from {least} to {max(codes.values())}"
            found.fault("wrong codes", text)
    judge(stage.trace, codes, outcomes, killed=False).report_to(found)
