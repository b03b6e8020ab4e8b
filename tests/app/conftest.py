from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.command import build
from gpu_scheduler.show.location import Location
from tests.cli.desk import Desk


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """Provides a folder for a store. Fails the test if a use case reads the command line or prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pytest", "--no-such-option"])
    monkeypatch.setattr(build, "_INSTALLATIONS", ())
    made = Desk(tmp_path, capfd)
    yield made
    made.close()
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def location(desk: Desk) -> Location:
    """Provides the location of the store in `desk`. The store has two GPUs."""
    assert desk.store
    return Location(str(desk.data_dir.state_file), runs_rounds=True)
