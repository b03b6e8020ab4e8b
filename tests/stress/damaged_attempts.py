"""P8: files in the folders of running attempts are damaged, removed, or replaced with other kinds of files.

The scheduler must stay up and be able to restart, and every other job must end normally. The job whose folder
is damaged must not run twice, and must not be reported as completed unless it has completed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.stress.gated import GatedJobs, each_folder, end_scheduler, killed_at_exit
from tests.stress.harness import Stage, kill, runners_of
from tests.stress.part import Findings, Order
from tests.stress.trace import judge, number_of, outcomes_of
from tests.waiting import wait_for

_RUNNING = 3
_FILES = ("claim", "claim", "claim", "spec.json", "command.sh", "stop", "result")


def _removed(path: Path) -> None:
    """Puts nothing in place of the file."""


def _nested(path: Path) -> None:
    path.write_text("[" * 200_000)


def _other_keys(path: Path) -> None:
    path.write_text('{"other": 1}')


def _wrong_types(path: Path) -> None:
    path.write_text('{"token": 1, "pid": "x", "start_ticks": [], "boot_id": null, "exit_code": {}}')


def _empty(path: Path) -> None:
    path.touch()


def _random(path: Path) -> None:
    path.write_bytes(os.urandom(300))


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


_DAMAGES: tuple[Callable[[Path], None], ...] = (
    _removed, _removed, _nested, _other_keys, _wrong_types, _empty, _random, _fifo, _folder, _link,
)  # fmt: skip


def damages(order: Order) -> Findings:
    """Damages the files of one of three running attempts, in each of 120 folders."""
    found, dice, rounds = Findings(), order.rng("damages"), order.scaled(120)
    found.figures = {"folders": rounds}
    for stage, jobs in each_folder(order, dice, rounds):
        _one(stage, jobs, order, dice, found)
    return found


def _one(stage: Stage, jobs: GatedJobs, order: Order, dice: random.Random, found: Findings) -> None:
    stage.append(jobs.lines(_RUNNING))
    process = stage.start()
    with killed_at_exit(process):
        jobs.until_started(_RUNNING)
        wait_for(lambda: len(runners_of(stage.folder)) == _RUNNING, "the claims of the jobs")
        # In most rounds the scheduler stays up. (The negative control ends when it reads the damaged file.)
        before = None if order.is_control else dice.choice([None, None, signal.SIGTERM, signal.SIGKILL])
        if before is not None:
            end_scheduler(process, before)
        pid, attempt = dice.choice(runners_of(stage.folder))
        label = f"{_damage(attempt, order, dice)}, {before or 'up'}"
        killed = not order.is_control and dice.random() < 0.3
        if killed:
            label += ", runner killed"
            kill(pid)
        if order.is_control:
            wait_for(lambda: process.poll() is not None, "the end of the scheduler", 5)
            found.fault("scheduler ended", f"{label}: {process.returncode}")
            jobs.open_gate()
            return
        if before is not None:
            process = stage.start()
        with killed_at_exit(process):
            stage.append(jobs.lines(1, gated=False))
            jobs.until_started(_RUNNING + 1)
            if process.poll() is not None:
                found.fault("scheduler ended", f"{label}: {stage.output_file.read_text()[-1500:]}")
            end_scheduler(process, dice.choice([signal.SIGTERM, signal.SIGKILL]))
            with killed_at_exit(again := stage.start()):
                jobs.open_gate()
                end_scheduler(again)
    stage.drain(60)
    _judge(stage, jobs, int(attempt.parent.name), label, found, killed=killed)


def _damage(attempt: Path, order: Order, dice: random.Random) -> str:
    name = "claim" if order.is_control else dice.choice(_FILES)
    damage = _other_keys if order.is_control else dice.choice(_DAMAGES)
    path = attempt / name
    path.unlink(missing_ok=True)
    damage(path)
    return f"{damage.__name__.strip('_').replace('_', ' ')} for {name}"


def _judge(stage: Stage, jobs: GatedJobs, damaged: int, label: str, found: Findings, *, killed: bool) -> None:
    """Compares the trace of the jobs with the recorded outcomes.

    killed: the runner of the damaged attempt was killed, so SIGTERM may have ended its job.
    """
    status = stage.status()
    outcomes = outcomes_of(status)
    [number] = [number_of(job["command"]) for job in status["jobs"] if job["id"] == damaged]
    found.count("jobs interrupted" if outcomes[number] == "interrupted" else "ends recorded correctly")
    for one, is_damaged in ((number, True), *((n, False) for n in jobs.codes if n != number)):
        verdict = judge(jobs.trace, {one: jobs.codes[one]}, outcomes, is_damaged)
        verdict.signalled = [n for n in verdict.signalled if n == one and not (is_damaged and killed)]
        if not verdict.clean:
            kind = "wrong job" if one == number else "wrong other job"
            found.fault(kind, f"{label}: job {one}: {verdict}, signalled {verdict.signalled}, {outcomes}")
