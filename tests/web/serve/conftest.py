"""The fixture `box` provides the folder of a queue that `serve` serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.serve.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    made.create_token()
    yield made
    made.close()
