from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.desk import Desk


@pytest.fixture(params=["store", "http"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Provides an empty queue and its clients, over each transport. The test starts the scheduler."""
    monkeypatch.chdir(tmp_path)
    made = Desk(request.param, tmp_path)
    yield made
    made.close()
