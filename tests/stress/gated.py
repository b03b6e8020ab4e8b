"""Jobs that run until a test opens their gate, and helpers that run schedulers with such jobs."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.stress.harness import Stage, scheduler
from tests.stress.part import Findings, Order
from tests.stress.trace import GATED_JOB, judge, outcomes_of
from tests.waiting import wait_for

_CODES = (0, 0, 3, 7, 42)


class GatedJobs:
    """The jobs of one round. codes: the exit code of each job, by number. Their trace is in `folder`."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.codes: dict[int, int] = {}
        self.trace = folder / "trace"
        self._script, self._gate, self._dice = folder / "gated.sh", folder / "gate", dice
        self._script.write_text(GATED_JOB)

    def lines(self, count: int, *, gated: bool = True) -> list[str]:
        """Returns `count` new lines for the jobs file.

        gated: the jobs run until `open_gate` is called; otherwise they end at once.
        """
        numbers = range(len(self.codes), len(self.codes) + count)
        self.codes |= {number: self._dice.choice(_CODES) for number in numbers}
        gate = self._gate if gated else self._script
        return [
            f"[share=0.5] sh {self._script} {self.trace} {number} {gate} {self.codes[number]}"
            for number in numbers
        ]

    def open_gate(self) -> None:
        """Opens the gate, so that all gated jobs end."""
        self._gate.touch()

    def _count(self, what: str) -> int:
        return self.trace.read_text().count(f" {what} ") if self.trace.exists() else 0

    def started(self) -> int:
        """Returns how many starts are in the trace."""
        return self._count("start")

    def until_started(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until the trace has `count` starts."""
        wait_for(lambda: self._count("start") >= count, f"{count} jobs started", timeout_s)

    def has_ended(self) -> bool:
        """Returns whether every job has written its end into the trace."""
        return self._count("end") >= len(self.codes)

    def judge(self, stage: Stage, order: Order, found: Findings, *, interrupted: bool = False) -> None:
        """Checks that each job started once, got no signal, and has its true outcome in the store.

        interrupted: runners were killed or lost, so the outcome "interrupted" may be right. For the negative
        control, only the trace is checked.
        """
        outcomes: dict[int, int | str | None] = {**self.codes}
        if not order.is_control:
            outcomes = outcomes_of(stage.status())
        judge(self.trace, self.codes, outcomes, killed=interrupted).report_to(found)


def stage_in(folder: Path, order: Order, *options: str, gpus: int = 4) -> Stage:
    """Makes a folder with an empty jobs file, in which a scheduler or the negative control can run."""
    folder.mkdir(exist_ok=True)
    (folder / "jobs.txt").touch()
    if order.is_control:
        return Stage(folder, command=[sys.executable, "-m", "tests.stress.simple_scheduler", "start"])
    return Stage(folder, command=scheduler(folder, *options, gpus=gpus))


def each_folder(order: Order, dice: random.Random, rounds: int) -> Iterator[tuple[Stage, GatedJobs]]:
    """Yields the stage and the jobs of one new folder after another. Removes each folder after its round."""
    for number in range(rounds):
        folder = order.folder / str(number)
        folder.mkdir()
        yield stage_in(folder, order), GatedJobs(folder, dice)
        # A job of the negative control may still be writing its result into the folder.
        shutil.rmtree(folder, ignore_errors=order.is_control)


@contextlib.contextmanager
def killed_at_exit(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kills these schedulers at the end of the block."""
    try:
        yield
    finally:
        for process in processes:
            end_scheduler(process, signal.SIGKILL)


def end_scheduler(
    process: subprocess.Popen[bytes], number: int = signal.SIGTERM, timeout_s: float = 30.0
) -> int:
    """Signals a scheduler, waits for its end and returns its exit code."""
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(timeout_s)
