"""Replacing llm_config.json completely or not at all, and never overwriting a concurrent change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.intake.llm_config import LlmConfigText

OLD, NEW, OTHER = '{"models": {"a": 1.0}}', '{"models": {"a": 0.5}}', '{"models": {"a": 0.2}}'


def _in_place(path: Path) -> None:
    """Edits the file in place, keeping its length."""
    status = path.stat()
    path.write_text(OTHER)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def _by_rename(path: Path) -> None:
    """Saves like an editor: replaces the file with another one that has the same times."""
    status = path.stat()
    spare = path.with_name("spare")
    spare.write_text(OTHER)
    os.utime(spare, ns=(status.st_atime_ns, status.st_mtime_ns))
    spare.rename(path)


def _removed(path: Path) -> None:
    path.unlink()


def _made(path: Path) -> None:
    path.write_text(OTHER)


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [(OLD, _in_place, OTHER), (OLD, _by_rename, OTHER), (OLD, _removed, None), (None, _made, OTHER)],
)
def test_keeps_a_concurrent_change_to_the_file(
    tmp_path: Path, before: str | None, edit: Callable[[Path], None], after: str | None
) -> None:
    path = tmp_path / "llm_config.json"
    if before is not None:
        path.write_text(before)
    read = LlmConfigText.read(str(path), must_exist=before is not None)
    edit(path)
    with pytest.raises(SchedulerError, match="was changed in the meantime, so nothing was written"):
        read.replace(NEW)
    assert [one.name for one in tmp_path.iterdir()] == ([] if after is None else [path.name])
    assert after is None or path.read_text() == after


@pytest.mark.parametrize("which", [1, 2])
def test_a_disk_error_leaves_no_temporary_file(
    tmp_path: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "llm_config.json"
    path.write_text(OLD)
    read = LlmConfigText.read(str(path), must_exist=True)
    synced: list[int] = []

    def fsync(fd: int) -> None:
        synced.append(fd)
        if len(synced) == which:  # first the new version is synced, then the backup of the previous one
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpu_scheduler.intake.llm_config.os.fsync", fsync)
    with pytest.raises(SchedulerError, match="cannot be replaced: No space left on device"):
        read.replace(NEW)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == OLD


def test_rejects_a_configuration_path_that_is_not_a_regular_file() -> None:
    with pytest.raises(UsageError, match="/dev/null is not a regular file"):
        LlmConfigText.read("/dev/null", must_exist=True)
