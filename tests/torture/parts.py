"""The parts of the torture: the promise that each one tries, its size in the suite, and its naive twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.torture import (
    claims,
    copied_records,
    damaged_attempts,
    deleted_records,
    endings,
    hidden_processes,
    kills,
    memory,
    mutations,
    pauses,
    planted_files,
    points,
    powercut,
    resource_limits,
    restored_records,
    running,
    saves,
    special_files,
    stop_during_start,
)  # fmt: skip
from tests.torture.part import Found, Order


@dataclass(frozen=True)
class Part:
    """suite: its factor in the test suite, None = the full size only; naive: the factor of its naive twin,
    which must fail, None = it has none of its own."""

    promise: str
    name: str
    run: Callable[[Order], Found]
    suite: float | None
    naive: float | None = None

    def __str__(self) -> str:
        return f"{self.promise} {self.name}"


#: The longest first, so that they end together.
PARTS = (
    Part("P9", "pauses edited by three writers", pauses.toggles, suite=0.006, naive=0.01),
    Part("P1 P2", "scheduler killed, direct", kills.direct, suite=0.02, naive=0.03),
    Part("P1 P2", "scheduler killed, Screen", kills.screen, suite=0.02),
    Part("P3", "scheduler and Screen killed under running jobs", running.untouched, suite=0.02, naive=0.03),
    Part("P4", "ends of every kind, direct", endings.direct, suite=None),
    Part("P2 P3", "record copied and moved", copied_records.copies, suite=None, naive=0.01),
    Part("P2", "lock, database or folder lost", deleted_records.deletions, suite=None, naive=0.01),
    Part("P6", "processes that hide", hidden_processes.hidden, suite=None, naive=0.02),
    Part("P10", "files that another user planted", planted_files.planted, suite=None, naive=0.02),
    Part("P8", "limits lowered and raised, direct", resource_limits.direct, suite=None, naive=0.02),
    Part("P8", "limits lowered and raised, Screen", resource_limits.screen, suite=None),
    Part("P8", "files of attempts damaged", damaged_attempts.damages, suite=None, naive=0.01),
    Part("P1 P2", "databases lost and restored", restored_records.losses, suite=None, naive=0.01),
    Part("P3", "stop while start comes up", stop_during_start.stops, suite=0.005, naive=0.003),
    Part("P8", "FIFOs, devices and endless files", special_files.special_files, suite=0.01, naive=0.01),
    Part("P4", "ends of every kind, a Screen that lies", endings.lying_screen, suite=0.02, naive=0.06),
    Part("P7", "lines spoilt", mutations.mutations, suite=0.01, naive=0.06),
    Part("P7", "saves in six styles, every step", saves.steps, suite=0.03, naive=0.01),
    Part("P7", "saves in six styles, live", saves.live, suite=None),
    Part("P1", "power cut, ext4", powercut.ext4, suite=0.05, naive=0.05),
    Part("P1", "power cut, XFS", powercut.xfs, suite=None),
    Part("P1", "power cut, btrfs", powercut.btrfs, suite=None),
    Part("P1 P2", "scheduler dead at each named step", points.points, suite=None),
    Part("P2", "ten schedulers at once", claims.instances, suite=0.05, naive=0.25),
    Part("P5", "memory promised twice", memory.booking, suite=0.015, naive=0.02),
    Part("P2", "claims raced", claims.races, suite=0.03, naive=0.1),
    Part("P2", "runners raced", claims.runners, suite=None, naive=0.03),
    Part("P3", "back with many jobs running", running.ready, suite=0.05),
)
