"""Jobs that run until a gate is opened, and the schedulers that the parts about records run them with."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.torture.harness import Stage, scheduler
from tests.torture.part import Found, Order
from tests.torture.trace import GATED_JOB, judge, said_of
from tests.waiting import wait_for

_CODES = (0, 0, 3, 7, 42)


class GatedJobs:
    """The jobs of one round, by number, with the exit code of each. `folder`: where their trace lies."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.codes: dict[int, int] = {}
        self.trace = folder / "trace"
        self._script, self._gate, self._dice = folder / "gated.sh", folder / "gate", dice
        self._script.write_text(GATED_JOB)

    def lines(self, count: int, *, gated: bool = True) -> list[str]:
        """So many new lines of a jobs file. gated: the jobs run until `open`, else they end at once."""
        numbers = range(len(self.codes), len(self.codes) + count)
        self.codes |= {number: self._dice.choice(_CODES) for number in numbers}
        gate = self._gate if gated else self._script
        return [
            f"[share=0.5] sh {self._script} {self.trace} {number} {gate} {self.codes[number]}"
            for number in numbers
        ]

    def open(self) -> None:
        """Let all of them end."""
        self._gate.touch()

    def _count(self, what: str) -> int:
        return self.trace.read_text().count(f" {what} ") if self.trace.exists() else 0

    def started(self) -> int:
        """How many starts there were."""
        return self._count("start")

    def until_started(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many have started."""
        wait_for(lambda: self._count("start") >= count, f"{count} jobs started", timeout_s)

    def has_ended(self) -> bool:
        """Whether every job has written its end."""
        return self._count("end") >= len(self.codes)

    def judge(self, stage: Stage, order: Order, found: Found, *, interrupted: bool = False) -> None:
        """Each job started once, got no signal, and its end is on the record of this stage.

        interrupted: their runners were killed or lost, so that "interrupted" may be right. The negative
        control is judged by the trace alone.
        """
        said: dict[int, int | str | None] = {**self.codes}
        if not order.naive:
            said = said_of(stage.status())
        judge(self.trace, self.codes, said, killed=interrupted).tell(found)


def stage_in(folder: Path, order: Order, *options: str, gpus: int = 4) -> Stage:
    """A folder with an empty jobs file and its scheduler, or the negative control."""
    folder.mkdir(exist_ok=True)
    (folder / "jobs.txt").touch()
    if order.naive:
        return Stage(folder, command=[sys.executable, "-m", "tests.torture.simple_scheduler", "start"])
    return Stage(folder, command=scheduler(folder, *options, gpus=gpus))


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leaves none of these schedulers behind."""
    try:
        yield
    finally:
        for process in processes:
            end(process, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
    """Signal a scheduler and wait for its end; its exit code."""
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(timeout_s)
