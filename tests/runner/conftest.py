"""Fixtures that make attempts (and end their processes after the test) and a folder for Screen's sockets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runner.attempt import PreparedAttempt, socket_folder

Make = Callable[..., PreparedAttempt]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Returns a function `make(script, **spec)`, which makes attempts in the test's folder."""
    made: list[PreparedAttempt] = []

    def one(script: str, home: Path = tmp_path, **spec: object) -> PreparedAttempt:
        made.append(PreparedAttempt(home, script, name=f"{len(made) + 1}-abc", **spec))
        return made[-1]

    yield one
    for attempt in made:
        attempt.clean()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes a socket folder with a path that is short enough for Screen."""
    if shutil.which("screen") is None:
        pytest.skip("GNU Screen is not installed")
    with socket_folder() as folder:
        monkeypatch.setenv("SCREENDIR", str(folder))
        yield folder
