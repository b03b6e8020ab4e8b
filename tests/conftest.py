"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.signals import heard


@pytest.fixture(scope="session", autouse=True)
def _children_hear_signals() -> Iterator[None]:
    with heard():
        yield
