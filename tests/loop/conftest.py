"""Closes the rigs of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loop.rig import OPENED


@pytest.fixture(autouse=True)
def rigs_closed() -> Iterator[None]:
    """Closes the rigs that the test makes, but not those of the fixtures of its module."""
    before = len(OPENED)
    yield
    for rig in OPENED[before:]:
        rig.close()
    del OPENED[before:]
