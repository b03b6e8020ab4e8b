"""The torture at the size of the suite; the naive twins are seen to fail.

Replay a run with TORTURE_SEED=…; `make torture` runs the full size.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.runner.attempt import socket_folder
from tests.torture.part import Order
from tests.torture.parts import PARTS, Part

SEED = int(os.environ.get("TORTURE_SEED") or random.SystemRandom().randrange(10**6))


#: Twins that take long; they are seen to fail at full size only.
SLOW_TWINS = ("power cut, ext4", "scheduler and Screen killed under running jobs", "ten schedulers at once")


def suite(*, naive: bool) -> list[object]:
    """The parts that run here."""
    parts = [part for part in PARTS if part.suite is not None and (part.naive is not None or not naive)]
    if naive:
        parts = [part for part in parts if part.name not in SLOW_TWINS]
    return [pytest.param(part, id=str(part)) for part in parts]


@pytest.mark.timeout(170)
@pytest.mark.parametrize("part", suite(naive=False))
def test_a_part_of_the_torture(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert part.suite is not None
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        found = part.run(Order(SEED, part.suite, tmp_path))
    if found.skipped is not None:
        pytest.skip(found.skipped)
    assert found.clean, f"seed {SEED}: {found}: {found.told}"


@pytest.mark.timeout(170)
@pytest.mark.parametrize("part", suite(naive=True))
def test_its_naive_twin_fails(part: Part, tmp_path: Path) -> None:
    assert part.naive is not None
    found = part.run(Order(7, part.naive, tmp_path, naive=True))
    if found.skipped is not None:
        pytest.skip(found.skipped)
    assert not found.clean, str(found)
