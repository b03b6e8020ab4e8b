"""P3: `stop` is called at random moments while a scheduler is starting.

A scheduler that already had its lock must have released it when `stop` returns, and must exit soon. The next
scheduler must stay up, and running jobs must not be affected.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.stress.gated import GatedJobs, end_scheduler, killed_at_exit, stage_in
from tests.stress.harness import Stage, pause
from tests.stress.part import Findings, Order
from tests.waiting import wait_for

_STARTS_PER_RECORD = 10
#: Seconds for which the next scheduler is watched, in case that an earlier stop ends it.
_WATCHED_S = 0.5
#: Seconds that the process of a scheduler without its lock may take to exit, on a loaded machine too.
_EXIT_S = 10.0


def stops(order: Order) -> Findings:
    """Stops each of 300 schedulers immediately, up to 0.5 s later, or up to 0.2 s after it got its lock."""
    found, dice, starts = Findings(), order.rng("stops"), order.scaled(300)
    found.figures = {"starts": starts, "stopped before the lock": 0, "stopped before the scheduler was up": 0}
    for first in range(0, starts, _STARTS_PER_RECORD):
        folder = order.folder / str(first)
        folder.mkdir()
        stage, jobs = stage_in(folder, order), GatedJobs(folder, dice)
        stage.append(jobs.lines(2))
        for number in range(first, min(first + _STARTS_PER_RECORD, starts)):
            fresh = number == first and dice.random() < 0.5
            _stop(stage, ["--fresh", "--yes"] if fresh and not order.is_control else [], order, dice, found)
        process = stage.start()
        with killed_at_exit(process):
            jobs.until_started(2)
            pause(_WATCHED_S)
            if process.poll() is not None:
                found.fault("ended", "an earlier stop ended a later scheduler")
            jobs.open_gate()
        stage.drain(60)
        jobs.judge(stage, order, found)
        shutil.rmtree(folder)
    return found


def _stop(stage: Stage, options: list[str], order: Order, dice: random.Random, found: Findings) -> None:
    at = stage.output_file.stat().st_size if stage.output_file.exists() else 0
    process = stage.start(*options, ready=False)
    with killed_at_exit(process):
        if order.is_control or dice.random() < 0.7:
            wait_for(lambda: _has_lock(process.pid), "its lock", every_s=0.001)
            moment = dice.uniform(0.0, 0.05 if order.is_control else 0.2)
        else:
            moment = dice.uniform(0.0, 0.5)
        pause(moment)
        locked = _has_lock(process.pid)
        if not locked:
            found.count("stopped before the lock")
        elif b"scheduler up" not in stage.output_file.read_bytes()[at:]:
            found.count("stopped before the scheduler was up")
        reply = _request_stop(stage, order)
        is_ignored = locked and _has_lock(process.pid)
        if is_ignored:
            found.fault("stop ignored", f"stopped after {moment:.3f} s: {reply}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S if locked and not is_ignored else _WATCHED_S)
        if process.poll() is None:
            if locked and not is_ignored:
                found.fault("no exit", f"stopped after {moment:.3f} s: {reply}")
            end_scheduler(process)
        elif process.returncode != 0:
            output = stage.output_file.read_bytes()[at:].decode(errors="replace")
            if process.returncode == 1 and f"(pid {os.getpid()}); end it with `stop`" in output:
                # While no scheduler is up, `stop` briefly holds the lock to update the state file.
                found.count("refused while stop held the lock")
                return
            found.fault("wrong end", f"{process.returncode} after {moment:.3f} s: {output[-1500:]} ({reply})")


def _request_stop(stage: Stage, order: Order) -> str:
    if order.is_control:
        (stage.home.folder / "stop").touch()
        return ""
    # Run `stop` in this process, because starting an interpreter takes longer than the tested intervals.
    code, reply = stage.run_cli("stop")
    return f"{code}: {reply}"


def _has_lock(pid: int) -> bool:
    """Returns whether the process with this pid holds an exclusive lock, according to the kernel."""
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[4] == str(pid) for words in held)
