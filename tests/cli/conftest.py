from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.command import build
from tests.cli.desk import Desk


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """Provides an empty folder in which to run commands. They find no conda in /opt or /usr/local."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "_INSTALLATIONS", ())
    made = Desk(tmp_path, capsys)
    yield made
    made.close()
