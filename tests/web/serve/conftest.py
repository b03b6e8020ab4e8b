"""The fixture `box` provides the folder of a queue that `serve` serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_queue.conftest import server as redis_server
from tests.web.serve.box import Box

__all__ = ["redis_server"]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    made.create_token()
    yield made
    made.close()
