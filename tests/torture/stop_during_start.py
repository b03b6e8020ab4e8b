"""P3: `stop` is given at random moments while `start` comes up. A scheduler that had its record when it was
asked has ended when `stop` returns; the next start stays up, and running jobs go on.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.torture.gated import GatedJobs, end, ended, stage_in
from tests.torture.harness import Stage, pause
from tests.torture.part import Found, Order
from tests.waiting import wait_for

_STARTS_PER_RECORD = 10
#: Seconds that a scheduler may need to end after `stop` has returned.
_END_S = 0.5


def stops(order: Order) -> Found:
    """300 starts, each with a stop at once, up to 0.5 s later, or up to 0.2 s after it has its lock."""
    found, dice, starts = Found(), order.dice("stops"), order.of(300)
    found.figures = {"starts": starts, "asked before the lock": 0, "asked before it was up": 0}
    for first in range(0, starts, _STARTS_PER_RECORD):
        folder = order.folder / str(first)
        folder.mkdir()
        stage, jobs = stage_in(folder, order), GatedJobs(folder, dice)
        stage.append(jobs.lines(2))
        for number in range(first, min(first + _STARTS_PER_RECORD, starts)):
            fresh = number == first and dice.random() < 0.5
            _stop(stage, ["--fresh", "--yes"] if fresh and not order.naive else [], order, dice, found)
        process = stage.start()
        with ended(process):
            jobs.until_started(2)
            pause(_END_S)
            if process.poll() is not None:
                found.fault("ended", "an earlier stop ended a later scheduler")
            jobs.open()
        stage.drain(60)
        jobs.judge(stage, order, found)
        shutil.rmtree(folder)
    return found


def _stop(stage: Stage, options: list[str], order: Order, dice: random.Random, found: Found) -> None:
    at = stage.out.stat().st_size if stage.out.exists() else 0
    process = stage.start(*options, ready=False)
    with ended(process):
        if order.naive or dice.random() < 0.7:
            wait_for(lambda: _has_lock(process.pid), "its lock", every_s=0.001)
            moment = dice.uniform(0.0, 0.05 if order.naive else 0.2)
        else:
            moment = dice.uniform(0.0, 0.5)
        pause(moment)
        locked = _has_lock(process.pid)
        if not locked:
            found.count("asked before the lock")
        elif b"scheduler up" not in stage.out.read_bytes()[at:]:
            found.count("asked before it was up")
        said = _ask(stage, order)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        if process.poll() is None:
            if locked:
                found.fault("swallowed", f"asked after {moment:.3f} s: {said}")
            end(process)
        elif process.returncode != 0:
            told = stage.out.read_bytes()[at:].decode(errors="replace")
            if process.returncode == 1 and f"already (pid {os.getpid()})" in told:
                # With none up yet `stop` holds the lock for a moment, to bring the state file up to date.
                found.count("refused meanwhile")
                return
            found.fault("wrong end", f"{process.returncode} after {moment:.3f} s: {told[-1500:]} ({said})")


def _ask(stage: Stage, order: Order) -> str:
    if order.naive:
        (stage.home.folder / "stop").touch()
        return ""
    # In this process: an interpreter takes longer to come up than the moments that matter.
    code, said = stage.ask("stop")
    return f"{code}: {said}"


def _has_lock(pid: int) -> bool:
    """Whether this process holds a lock that keeps others out, by what the kernel says."""
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[4] == str(pid) for words in held)
