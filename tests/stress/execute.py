"""Runs one part in a folder of its own and returns its result."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.isolation import LOCK_DIR, STATE_HOME
from tests.runner.attempt import socket_folder
from tests.signals import default_signals
from tests.stress.part import Findings, Order
from tests.stress.parts import PARTS


@dataclass(frozen=True)
class PartRun:
    """A run of one part, or of its negative control, at a given size."""

    part: int
    factor: float
    is_control: bool
    seed: int


@dataclass
class PartResult:
    """The result of a run. good: there are no faults or, in a negative control, there are some."""

    promise: str
    name: str
    is_control: bool
    factor: float
    seed: int
    seconds: float
    good: bool
    skipped: str | None = None
    figures: dict[str, int | float | str] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = Findings(self.figures, self.faults, self.messages, self.skipped)
        mark = "ok  " if self.good else "FAIL"
        control = ", negative control" if self.is_control else ""
        lines = [f"{mark} {self.promise} {self.name}{control}: {found} in {self.seconds:.0f} s"]
        return "\n".join(lines + [f"       {text}" for text in self.messages if not self.good])


def run_part(job: PartRun) -> PartResult:
    """Runs the part in a temporary folder, with a socket folder of its own for Screen."""
    part = PARTS[job.part]
    began = time.monotonic()
    try:
        with (
            default_signals(),
            tempfile.TemporaryDirectory(prefix="stress-") as folder,
            # GPU claims are refused in /tmp.
            tempfile.TemporaryDirectory(prefix="stress-", dir="/var/tmp") as locks,
            socket_folder() as sockets,
        ):
            os.environ["SCREENDIR"] = str(sockets)
            os.environ[LOCK_DIR] = locks
            os.environ[STATE_HOME] = f"{folder}/state"
            found = part.run(Order(job.seed, job.factor, Path(folder), job.is_control))
    except Exception:  # noqa: BLE001 - a part that breaks must not hide the others
        found = Findings()
        found.fault("aborted", traceback.format_exc()[-3000:])
    seconds = time.monotonic() - began
    good = found.skipped is not None or (found.clean != job.is_control and "aborted" not in found.faults)
    return PartResult(
        part.promise, part.name, job.is_control, job.factor, job.seed, round(seconds, 1), good,
        found.skipped, found.figures, found.faults, found.messages,
    )  # fmt: skip
