"""The fixture `world` provides a project folder with trainers and a .venv, as users have it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.hf.trainer import ENVIRONMENT, SCRIPTS, environment


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    if not (ENVIRONMENT / ".installed").exists():
        pytest.fail(f"{ENVIRONMENT} does not exist; run: make test-hf")
    for script in SCRIPTS:
        shutil.copy(script, tmp_path)
    (tmp_path / ".venv").symlink_to(ENVIRONMENT)
    made = World(tmp_path)
    made.env |= environment()
    yield made
    made.close()
