"""Runs the stress tests at the small size of the test suite, and checks that the negative controls fail.

The environment variable STRESS_SEED repeats a run. `make stress` runs the full size.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.runner.attempt import socket_folder
from tests.stress.part import Order
from tests.stress.parts import PARTS, Part

SEED = int(os.environ.get("STRESS_SEED") or random.SystemRandom().randrange(10**6))


#: Slow negative controls, which run only at full size.
SLOW_CONTROLS = (
    "power cut, ext4",
    "scheduler and Screen killed while jobs run",
    "ten schedulers at once",
    "jobs that wait for each other",
    "GPUs shared with run",
    "preemptions that meet other events",
    "posts repeated after kills",
    "boxes on Redis, killed and cut off",
)


def suite(*, control: bool) -> list[object]:
    """Returns the parts, or the negative controls, that run in the test suite."""
    parts = [part for part in PARTS if part.suite is not None and (part.control is not None or not control)]
    if control:
        parts = [part for part in parts if part.name not in SLOW_CONTROLS]
    return [pytest.param(part, id=str(part)) for part in parts]


@pytest.mark.timeout(170)
@pytest.mark.parametrize("part", suite(control=False))
def test_each_part_of_the_stress_tests_finds_no_faults(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert part.suite is not None
    with socket_folder() as sockets:
        monkeypatch.setenv("SCREENDIR", str(sockets))
        found = part.run(Order(SEED, part.suite, tmp_path))
    if found.skipped is not None:
        pytest.skip(found.skipped)
    assert found.clean, f"seed {SEED}: {found}: {found.messages}"


@pytest.mark.timeout(170)
@pytest.mark.parametrize("part", suite(control=True))
def test_negative_control_of_each_part_has_faults(part: Part, tmp_path: Path) -> None:
    assert part.control is not None
    found = part.run(Order(7, part.control, tmp_path, is_control=True))
    if found.skipped is not None:
        pytest.skip(found.skipped)
    assert not found.clean, str(found)
