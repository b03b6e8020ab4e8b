"""P2: more schedulers start when the lock, database or data directory of a running one is lost or replaced.

No line may run twice, and two schedulers must never be up on one data directory.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.stress.gated import GatedJobs, each_folder, end_scheduler, killed_at_exit
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_RUNNING = 2
#: What a scheduler (or the negative control) prints when it is up.
_UP = re.compile(rb"scheduler up,|^ready$", re.MULTILINE)
#: Number of schedulers that a test starts at once.
_RIVALS = 3


def deletions(order: Order) -> Findings:
    """Damages the lock of 30 running schedulers, and removes the database or data directory of 30 others."""
    found, dice, rounds = Findings(), order.rng("deletions"), order.scaled(60)
    found.figures = {"stores": rounds}
    for number, (stage, jobs) in enumerate(each_folder(order, dice, rounds)):
        stage.append(jobs.lines(_RUNNING))
        process = stage.start()
        with killed_at_exit(process):
            jobs.until_started(_RUNNING)
            if number % 2 == 0:
                _lose_lock(stage, process, jobs, dice, found)
            else:
                _lose_store(stage, process, jobs, dice, found)
            jobs.open_gate()
        stage.drain(60)
        jobs.judge(stage, order, found)
    return found


def _lose_lock(
    stage: Stage, process: subprocess.Popen[bytes], jobs: GatedJobs, dice: random.Random, found: Findings
) -> None:
    """Damages the lock and checks that the first scheduler stays the only one and keeps working."""
    damage = dice.choice(_LOCK_DAMAGES)
    found.count(damage.__name__.strip("_").replace("_", " "))
    damage(stage.home.lock)
    with _rivals(stage) as rivals:
        wait_for(
            lambda: all(rival.poll() is not None for rival in rivals) or _second_is_up(stage),
            "the ends of the rivals",
            60,
        )
        stage.append(jobs.lines(2, gated=False))
        jobs.until_started(_RUNNING + 2)
        _count_up([process, *rivals], found)
    if process.poll() is not None:
        found.fault("ended", f"the first scheduler ended with {process.returncode}")


def _second_is_up(stage: Stage) -> bool:
    """Returns whether a second scheduler reported that it is up."""
    return len(_UP.findall(stage.output_file.read_bytes())) > 1


def _lock_deleted(lock: Path) -> None:
    lock.unlink()


def _lock_replaced(lock: Path) -> None:
    lock.with_name("spare").touch()
    lock.with_name("spare").replace(lock)


def _lock_copied(lock: Path) -> None:
    """Replaces the lock file with a copy, as restoring a backup does."""
    shutil.copy(lock, lock.with_name("spare"))
    lock.unlink()
    lock.with_name("spare").rename(lock)


_LOCK_DAMAGES: tuple[Callable[[Path], None], ...] = (_lock_deleted, _lock_replaced, _lock_copied)


def _lose_store(
    stage: Stage, process: subprocess.Popen[bytes], jobs: GatedJobs, dice: random.Random, found: Findings
) -> None:
    """Removes or replaces the store and checks that the scheduler ends with 1 without starting another job.

    Then puts the store back and checks that exactly one of several new schedulers takes over.
    """
    home = stage.home
    path = dice.choice([home.database, home.folder])
    aside = stage.folder / "aside"
    path.rename(aside)
    kind = dice.choice(["moved away", "replaced"])
    found.count(f"{'database' if path == home.database else 'folder'} {kind}")
    if kind == "replaced":
        (shutil.copytree if aside.is_dir() else shutil.copyfile)(aside, path)
    stage.append(jobs.lines(2, gated=False))
    code = process.wait(60)
    if code != 1:
        found.fault("wrong end", f"a scheduler whose {path.name} was {kind} ended with {code}")
    if jobs.started() != _RUNNING:
        found.fault("started without a store", jobs.trace.read_text())
    if kind == "moved away" and path == home.database:
        _refused(stage, jobs, found)
    if kind == "replaced":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    aside.rename(path)
    with _rivals(stage) as rivals:
        jobs.until_started(_RUNNING + 2)
        wait_for(lambda: sum(rival.poll() is None for rival in rivals) <= 1, "one scheduler is left", 60)
        _count_up(rivals, found)


def _refused(stage: Stage, jobs: GatedJobs, found: Findings) -> None:
    """Checks that no scheduler starts on a data directory that has attempts but no database."""
    with _rivals(stage) as rivals:
        codes = [rival.wait(60) for rival in rivals]
    if codes != [1] * _RIVALS or jobs.started() != _RUNNING:
        found.fault("mistaken for a new store", f"{codes}: {stage.output_file.read_text()[-1000:]}")
    if stage.home.database.exists():
        found.fault("mistaken for a new store", "there is a new database")
        stage.home.database.unlink()


def _count_up(processes: list[subprocess.Popen[bytes]], found: Findings) -> None:
    up = [process.pid for process in processes if process.poll() is None]
    if len(up) != 1:
        found.fault("several schedulers" if up else "no scheduler", f"{len(up)} are up: {up}")


@contextlib.contextmanager
def _rivals(stage: Stage) -> Iterator[list[subprocess.Popen[bytes]]]:
    rivals = [stage.start(ready=False) for _ in range(_RIVALS)]
    with killed_at_exit(*rivals):
        yield rivals
        for rival in rivals:
            end_scheduler(rival)
