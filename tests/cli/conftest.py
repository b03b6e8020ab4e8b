from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.desk import Desk


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """A folder of its own to run commands in."""
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path, capsys)
    yield made
    made.close()
