"""One part carried out in a folder of its own, and what is kept of it."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.runner.attempt import socket_folder
from tests.signals import heard
from tests.torture.part import Found, Order
from tests.torture.parts import PARTS


@dataclass(frozen=True)
class Job:
    """One part, or its naive twin, at a size."""

    part: int
    factor: float
    naive: bool
    seed: int


@dataclass
class Done:
    """What came of it. good: ours is clean, or the naive twin is not."""

    promise: str
    name: str
    naive: bool
    factor: float
    seed: int
    seconds: float
    good: bool
    skipped: str | None = None
    figures: dict[str, int | float | str] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = Found(self.figures, self.faults, self.told, self.skipped)
        mark = "ok  " if self.good else "FAIL"
        naive = ", naive twin" if self.naive else ""
        lines = [f"{mark} {self.promise} {self.name}{naive}: {found} in {self.seconds:.0f} s"]
        return "\n".join(lines + [f"       {text}" for text in self.told if not self.good])


def carry_out(job: Job) -> Done:
    """Run it in a folder and with sessions of its own."""
    part = PARTS[job.part]
    began = time.monotonic()
    try:
        with heard(), tempfile.TemporaryDirectory(prefix="torture-") as folder, socket_folder() as sockets:
            os.environ["SCREENDIR"] = str(sockets)
            found = part.run(Order(job.seed, job.factor, Path(folder), job.naive))
    except Exception:  # noqa: BLE001 - one part that breaks must not hide the others
        found = Found()
        found.fault("broken off", traceback.format_exc()[-3000:])
    seconds = time.monotonic() - began
    good = found.skipped is not None or (found.clean != job.naive and "broken off" not in found.faults)
    return Done(
        part.promise, part.name, job.naive, job.factor, job.seed, round(seconds, 1), good,
        found.skipped, found.figures, found.faults, found.told,
    )  # fmt: skip
