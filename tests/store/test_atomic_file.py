"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gpu_scheduler.system.safe_file import create_file, replace_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("synced", [True, False])
def test_writing_a_file_replaces_an_existing_file_or_link(tmp_path: Path, synced: bool) -> None:
    path, target = tmp_path / "a", tmp_path / "target"
    target.write_text("kept")
    for made in (lambda: None, lambda: path.write_text("old"), lambda: path.symlink_to(target)):
        path.unlink(missing_ok=True)
        made()
        replace_file(path, b"new", synced=synced)
        assert path.read_bytes() == b"new"
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert (names(tmp_path), target.read_text()) == (["a", "target"], "kept")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new", synced=True)
    with pytest.raises(OSError, match="No space"):
        create_file(tmp_path / "b", b"new", synced=True)
    assert (names(tmp_path), path.read_text()) == (["a"], "old")


def test_reports_a_folder_in_place_of_the_target_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "a", b"new")
    assert names(tmp_path) == ["a"]


def test_a_new_file_replaces_no_existing_file(tmp_path: Path) -> None:
    create_file(tmp_path / "b", b"x")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "b", b"y")
    assert (tmp_path / "b").read_bytes() == b"x"
