"""P1 and P2: databases are lost, emptied or damaged while jobs run, and then restored.

A plain start must be refused, or continue as before. A start with `--restore` must not run a line twice or
signal a process. Every line is in the jobs file, so in the end each job must have run once.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.stress.gated import GatedJobs, each_folder, end_scheduler, killed_at_exit
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_RUNNING = 2
_PAGE = 4096


def _database_missing(database: Path, dice: random.Random) -> None:
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()


def _only_journal_left(database: Path, dice: random.Random) -> None:
    database.unlink()


def _database_emptied(database: Path, dice: random.Random) -> None:
    _database_missing(database, dice)
    database.touch()


def _database_overwritten(database: Path, dice: random.Random) -> None:
    database.write_bytes(os.urandom(dice.randint(1, 100_000)))


def _page_overwritten(database: Path, dice: random.Random) -> None:
    with database.open("r+b") as file:
        file.seek(dice.randrange(database.stat().st_size // _PAGE) * _PAGE)
        file.write(os.urandom(_PAGE))


def _database_truncated(database: Path, dice: random.Random) -> None:
    os.truncate(database, database.stat().st_size // 2)


def _journal_lost(database: Path, dice: random.Random) -> None:
    for path in database.parent.glob(f"{database.name}-*"):
        path.unlink()


_LOSSES: tuple[Callable[[Path, random.Random], None], ...] = (
    _database_missing, _only_journal_left, _database_emptied, _database_overwritten, _page_overwritten,
    _page_overwritten, _database_truncated, _journal_lost,
)  # fmt: skip


def losses(order: Order) -> Findings:
    """Damages or removes 80 databases, half of which have a backup."""
    found, dice, rounds = Findings(), order.rng("losses"), order.scaled(80)
    found.figures = {"stores": rounds}
    for number, (stage, jobs) in enumerate(each_folder(order, dice, rounds)):
        loss = _database_missing if order.is_control else _LOSSES[number % len(_LOSSES)]
        _one(stage, jobs, loss, order, dice, found)
    return found


def _one(
    stage: Stage,
    jobs: GatedJobs,
    loss: Callable[[Path, random.Random], None],
    order: Order,
    dice: random.Random,
    found: Findings,
) -> None:
    stage.append([*jobs.lines(1, gated=False), *jobs.lines(_RUNNING)])
    with killed_at_exit(process := stage.start()):
        jobs.until_started(1 + _RUNNING)
        if not order.is_control and dice.random() < 0.5:
            wait_for(lambda: any(stage.home.backups.glob("*")), "a backup", 60)
            found.count("with a backup")
            stage.append([*jobs.lines(1, gated=False), *jobs.lines(1)])
            jobs.until_started(1 + _RUNNING + 2)
        end_scheduler(
            process, signal.SIGKILL if order.is_control else dice.choice([signal.SIGTERM, signal.SIGKILL])
        )
    loss(stage.home.database, dice)
    found.count(loss.__name__.strip("_").replace("_", " "))
    stage.append(jobs.lines(1, gated=False))
    if order.is_control:
        with killed_at_exit(stage.start()):
            jobs.until_started(len(jobs.codes) + 1)
            jobs.open_gate()
    else:
        _restore(stage, jobs, loss.__name__, found)
        stage.drain(60)
    jobs.judge(stage, order, found, interrupted=True)


def _restore(stage: Stage, jobs: GatedJobs, label: str, found: Findings) -> None:
    at = stage.output_file.stat().st_size
    process = stage.start(ready=False)

    def output() -> str:
        return stage.output_file.read_bytes()[at:].decode(errors="replace")

    with killed_at_exit(process):
        wait_for(lambda: process.poll() is not None or "scheduler up" in output(), "a start", 60)
        if process.poll() is None:
            found.count("starts that continued")
        else:
            found.count("starts refused")
            if process.returncode != 1 or "Traceback" in output():
                found.fault("wrong end", f"{label}: {process.returncode}: {output()[-1500:]}")
            process = stage.start("--restore")
        with killed_at_exit(process):
            jobs.until_started(len(jobs.codes))
            jobs.open_gate()
            end_scheduler(process)
