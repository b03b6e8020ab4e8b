"""P2 and P3: folders with running jobs are copied or moved, and schedulers are started in the new place.

In a copy, a scheduler and every change must be refused until `--fresh` has forgotten the jobs. Nothing there
may signal or repeat a job of the original. A scheduler in a moved folder must continue with the folder's
jobs. The jobs write their traces outside both folders.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.stress.gated import GatedJobs, end_scheduler, killed_at_exit, stage_in
from tests.stress.harness import Stage
from tests.stress.part import Findings, Order

_RUNNING = 2


@dataclass(frozen=True)
class _Round:
    """One round: a folder with running jobs, to be copied or moved."""

    folder: Path
    order: Order
    dice: random.Random
    jobs: GatedJobs
    original: Stage
    found: Findings


def copies(order: Order) -> Findings:
    """Copies 40 of 60 folders and moves the others, while the scheduler is up or after it has ended."""
    found, dice, rounds = Findings(), order.rng("copies"), order.scaled(60)
    found.figures = {"folders": rounds, "copied": 0, "moved": 0}
    for number in range(rounds):
        folder = order.folder / str(number)
        folder.mkdir()
        jobs = GatedJobs(folder, dice)
        one = _Round(folder, order, dice, jobs, stage_in(folder / "original", order), found)
        one.original.append(jobs.lines(_RUNNING))
        process = one.original.start()
        with killed_at_exit(process):
            jobs.until_started(_RUNNING)
            if order.is_control:
                _control(one)
            elif number % 3 == 1:
                _move(one, process)
            else:
                _copy(one, process)
        shutil.rmtree(folder)
    return found


def _copied(one: _Round) -> Stage:
    """Copies the folder with `cp`, which exits with 1 if a file vanishes during the copy."""
    one.found.count("copied")
    way = one.dice.choice(["-a", "-r"])
    subprocess.run(["cp", way, one.original.folder, one.folder / "copy"], check=False)
    return stage_in(one.folder / "copy", one.order)


def _control(one: _Round) -> None:
    copy = _copied(one)
    with killed_at_exit(copy.start()):
        one.jobs.open_gate()
        one.original.drain(60)
    one.jobs.judge(one.original, one.order, one.found)


def _copy(one: _Round, process: subprocess.Popen[bytes]) -> None:
    before = one.dice.choice([None, signal.SIGTERM, signal.SIGKILL])
    if before is not None:
        end_scheduler(process, before)
    copy = _copied(one)
    _refused(one, copy)
    with killed_at_exit(process if before is None else one.original.start()):
        own = GatedJobs(copy.folder, one.dice)
        # The lines of the copied jobs file would run again.
        (copy.folder / "own.txt").write_text(f"{own.lines(1, gated=False)[0]}\n")
        copy.drain(60, "--fresh", "--yes", "--jobs-file", "own.txt")
        one.jobs.open_gate()
    one.original.drain(60)
    one.jobs.judge(one.original, one.order, one.found)
    if not own.trace.exists() or own.trace.read_text().count(" start ") != 1:
        one.found.fault("lost", "a line of the copy did not run once")


def _refused(one: _Round, copy: Stage) -> None:
    """Checks that the copy refuses a plain start and commands that change something."""
    if copy.start(ready=False).wait(60) != 1:
        one.found.fault("copy accepted", f"start in a copy: {copy.output_file.read_text()[-500:]}")
    words = one.dice.choice(
        [["cancel", "1", "--grace", "0"], ["stop", "--jobs", "--grace", "0"], ["retry", "1"], ["stop"]]
    )
    if copy.cli(*words).returncode != 1:
        one.found.fault("copy accepted", f"{words} in a copy")


def _move(one: _Round, process: subprocess.Popen[bytes]) -> None:
    """Moves the folder by one rename, or copies its files and removes it, as between two file systems.

    In the second case, the runners' results are lost with the old folder.
    """
    one.found.count("moved")
    dice, here = one.dice, one.folder / "moved"
    renamed = dice.random() < 0.6
    if not renamed or dice.random() < 0.5:
        end_scheduler(process, dice.choice([signal.SIGTERM, signal.SIGKILL]))
    if renamed:
        one.original.folder.rename(here)
    else:
        shutil.copytree(one.original.folder, here, symlinks=True)
        shutil.rmtree(one.original.folder)
    code = process.wait(60)
    if code not in (0, 1, -signal.SIGKILL):
        one.found.fault("wrong end", f"a scheduler whose folder was moved ended with {code}")
    moved = stage_in(here, one.order)
    moved.append(one.jobs.lines(1, gated=False))
    with killed_at_exit(moved.start()):
        one.jobs.until_started(_RUNNING + 1)
        one.jobs.open_gate()
    moved.drain(60)
    one.jobs.judge(moved, one.order, one.found, interrupted=not renamed)
