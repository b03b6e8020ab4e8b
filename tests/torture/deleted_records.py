"""P2: the lock, the database and the folder of a record are deleted and replaced under a running scheduler,
and further schedulers are started at once. No line runs twice, and no two schedulers are up on one record.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.gated import GatedJobs, end, ended, stage_in
from tests.torture.harness import Stage
from tests.torture.part import Found, Order
from tests.waiting import wait_for

_RUNNING = 2
#: The line of a scheduler that is up, and of the negative control.
_UP = re.compile(rb"scheduler up,|^ready$", re.MULTILINE)
#: Schedulers that are started at once.
_RIVALS = 3


def deletions(order: Order) -> Found:
    """60 records; half of the times the lock is lost, in the others the database or the folder."""
    found, dice, rounds = Found(), order.dice("deletions"), order.of(60)
    found.figures = {"records": rounds}
    for number in range(rounds):
        folder = order.folder / str(number)
        folder.mkdir()
        stage, jobs = stage_in(folder, order), GatedJobs(folder, dice)
        stage.append(jobs.lines(_RUNNING))
        process = stage.start()
        with ended(process):
            jobs.until_started(_RUNNING)
            if number % 2 == 0:
                _lose_lock(stage, process, jobs, dice, found)
            else:
                _lose_record(stage, process, jobs, dice, found)
            jobs.open()
        stage.drain(60)
        jobs.judge(stage, order, found)
        shutil.rmtree(folder)
    return found


def _lose_lock(
    stage: Stage, process: subprocess.Popen[bytes], jobs: GatedJobs, dice: random.Random, found: Found
) -> None:
    """The first scheduler stays the only one, and goes on."""
    damage = dice.choice(_LOCK_DAMAGES)
    found.count(damage.__name__.strip("_").replace("_", " "))
    damage(stage.home.lock)
    with _rivals(stage) as rivals:
        wait_for(lambda: all(rival.poll() is not None for rival in rivals) or _say_up(stage), "rivals", 60)
        stage.append(jobs.lines(2, gated=False))
        jobs.until_started(_RUNNING + 2)
        _count_up([process, *rivals], found)
    if process.poll() is not None:
        found.fault("ended", f"the first scheduler ended with {process.returncode}")


def _say_up(stage: Stage) -> bool:
    """Whether a second scheduler said that it is up."""
    return len(_UP.findall(stage.out.read_bytes())) > 1


def _delete(lock: Path) -> None:
    lock.unlink()


def _replace(lock: Path) -> None:
    lock.with_name("spare").touch()
    lock.with_name("spare").replace(lock)


def _copy_over(lock: Path) -> None:
    """As a restored backup."""
    shutil.copy(lock, lock.with_name("spare"))
    lock.unlink()
    lock.with_name("spare").rename(lock)


_LOCK_DAMAGES: tuple[Callable[[Path], None], ...] = (_delete, _replace, _copy_over)


def _lose_record(
    stage: Stage, process: subprocess.Popen[bytes], jobs: GatedJobs, dice: random.Random, found: Found
) -> None:
    """The scheduler ends with 1 and starts nothing more. Once the record is back, one of several goes on."""
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
        found.fault("started without a record", jobs.trace.read_text())
    if kind == "moved away" and path == home.database:
        _refused(stage, jobs, found)
    if kind == "replaced":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    aside.rename(path)
    with _rivals(stage) as rivals:
        jobs.until_started(_RUNNING + 2)
        wait_for(lambda: sum(rival.poll() is None for rival in rivals) <= 1, "one scheduler is left", 60)
        _count_up(rivals, found)


def _refused(stage: Stage, jobs: GatedJobs, found: Found) -> None:
    """Without its database the record, whose attempts are there, is no new one."""
    with _rivals(stage) as rivals:
        codes = [rival.wait(60) for rival in rivals]
    if codes != [1] * _RIVALS or jobs.started() != _RUNNING:
        found.fault("taken for a new record", f"{codes}: {stage.out.read_text()[-1000:]}")
    if stage.home.database.exists():
        found.fault("taken for a new record", "there is a new database")
        stage.home.database.unlink()


def _count_up(processes: list[subprocess.Popen[bytes]], found: Found) -> None:
    up = [process.pid for process in processes if process.poll() is None]
    if len(up) != 1:
        found.fault("several schedulers" if up else "no scheduler", f"{len(up)} are up: {up}")


@contextlib.contextmanager
def _rivals(stage: Stage) -> Iterator[list[subprocess.Popen[bytes]]]:
    rivals = [stage.start(ready=False) for _ in range(_RIVALS)]
    with ended(*rivals):
        yield rivals
        for rival in rivals:
            end(rival)
