"""How a data directory is recognized as the same, moved or copied: the rule itself, and real folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu_scheduler.config import StartOptions
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.scheduler.restore import in_own_folder
from gpu_scheduler.store import location
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.location import (
    FolderRelation,
    ObservedFolder,
    RecordedFolder,
    UnreadableFolder,
    compare_folders,
)
from gpu_scheduler.store.store import Store

KNOWN = RecordedFolder("id", "/old/X.d", 7)
OLD = ObservedFolder("/old/X.d", 1, 7, "id")
NEW = ObservedFolder("/new/X.d", 1, 9, "id")


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        pytest.param(OLD, OLD, "same", id="untouched"),
        pytest.param(
            ObservedFolder("/old/X.d", 2, 7, "id"),
            None,
            "same",
            id="another device number, as after a reboot",
        ),
        pytest.param(
            ObservedFolder("/old/X.d", 1, 8, "id"), None, "same", id="another inode, as after a restore"
        ),
        pytest.param(
            ObservedFolder("/old/X.d", 1, 8, None), None, "same", id="restored without the file of the id"
        ),
        pytest.param(ObservedFolder("/new/X.d", 1, 7, "id"), None, "same", id="renamed"),
        pytest.param(
            ObservedFolder("/new/X.d", 1, 7, "id"),
            ObservedFolder("/new/X.d", 1, 7, "id"),
            "same",
            id="reached by another path, as through a bind mount",
        ),
        pytest.param(
            ObservedFolder("/new/X.d", 1, 7, "id"),
            ObservedFolder("/old/X.d", 1, 8, "id"),
            "same",
            id="the original, renamed, with a copy at its old path",
        ),
        pytest.param(
            ObservedFolder("/new/X.d", 1, 7, "id"),
            ObservedFolder("/old/X.d", 1, 8, "other"),
            "same",
            id="renamed, with another store at its old path",
        ),
        pytest.param(NEW, None, "moved", id="moved to another file system"),
        pytest.param(
            NEW,
            ObservedFolder("/old/X.d", 1, 8, "other"),
            "moved",
            id="moved, with another store at its old path",
        ),
        pytest.param(NEW, OLD, "copied", id="a copy"),
        pytest.param(
            NEW, ObservedFolder("/old/X.d", 1, 8, "id"), "copied", id="a copy of one restored since"
        ),
        pytest.param(
            NEW,
            ObservedFolder("/old/X.d", 1, 7, None),
            "copied",
            id="a copy of one without the file of the id",
        ),
        pytest.param(NEW, UnreadableFolder(), "copied", id="perhaps a copy: the old path is not accessible"),
        pytest.param(
            ObservedFolder("/new/X.d", 2, 7, "id"),
            OLD,
            "copied",
            id="a copy on another file system, by chance with the same inode",
        ),
    ],
)
def test_judges_same_moved_and_copied_folders(
    here: ObservedFolder, there: ObservedFolder | UnreadableFolder | None, verdict: FolderRelation
) -> None:
    assert compare_folders(KNOWN, here, there) == verdict


def test_a_store_without_a_recorded_folder_counts_as_not_moved() -> None:
    assert compare_folders(None, NEW, None) == "same"


def made(folder: Path) -> DataDir:
    """Creates a store that has recorded its folder."""
    folder.mkdir()
    data_dir = DataDir.of(str(folder / "s.json"))
    store = Store(data_dir, create=True)
    location.adopt_folder(store)
    store.close()
    return data_dir


def verdict_in(folder: Path) -> FolderRelation:
    store = Store(DataDir.of(str(folder / "s.json")))
    try:
        return location.location_verdict(store)
    finally:
        store.close()


def test_a_copy_is_refused_until_it_gets_its_own_id(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert (verdict_in(tmp_path / "a"), verdict_in(tmp_path / "b")) == ("same", "copied")
    store = Store(DataDir.of(str(tmp_path / "b" / "s.json")))
    with pytest.raises(SchedulerError, match=f"copy of {tmp_path}/a/s.d.*\n.*--as-copy.*--fresh"):
        location.refuse_copy(store)
    location.adopt_folder(store, new_id=True)
    location.refuse_copy(store)
    store.close()
    assert (verdict_in(tmp_path / "a"), verdict_in(tmp_path / "b")) == ("same", "same")
    ids = [(tmp_path / name / "s.d" / "id").read_text() for name in "ab"]
    assert ids[0] != ids[1]


def test_a_copy_whose_original_is_removed_counts_as_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = made(tmp_path / "a")
    before = (data_dir.folder / "id").read_text()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a" / "s.d")
    assert verdict_in(tmp_path / "b") == "moved"
    store = Store(DataDir.of(str(tmp_path / "b" / "s.json")))
    location.adopt_folder(store)
    store.close()
    assert f"moved here from {tmp_path}/a/s.d, which no longer exists" in caplog.text
    assert verdict_in(tmp_path / "b") == "same"
    assert (tmp_path / "b" / "s.d" / "id").read_text() == before


def test_a_renamed_or_linked_folder_is_the_same(tmp_path: Path) -> None:
    made(tmp_path / "a")
    (tmp_path / "link").symlink_to("a")
    assert verdict_in(tmp_path / "link") == "same"
    (tmp_path / "a").rename(tmp_path / "b")
    assert verdict_in(tmp_path / "b") == "same"


def test_recognizes_a_folder_restored_at_its_path(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "backup", tmp_path / "a")
    assert verdict_in(tmp_path / "a") == "same"


def test_recreates_a_missing_id_file(tmp_path: Path) -> None:
    data_dir = made(tmp_path / "a")
    before = (data_dir.folder / "id").read_text()
    (data_dir.folder / "id").unlink()
    store = Store(data_dir)
    location.adopt_folder(store)
    store.close()
    assert (data_dir.folder / "id").read_text() == before
    assert (data_dir.folder / "id").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_counts_as_copied_if_the_old_folder_is_inaccessible(tmp_path: Path) -> None:
    data_dir = made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for closed in (data_dir.folder, tmp_path / "a"):
        closed.chmod(0)
        try:
            assert verdict_in(tmp_path / "b") == "copied"
        finally:
            closed.chmod(0o700)


def test_refuses_a_copy_made_with_hard_links(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=os.link)
    store = Store(DataDir.of(str(tmp_path / "b" / "s.json")))
    for options in (StartOptions(as_copy=True), StartOptions(fresh=True)):
        with (
            pytest.raises(SchedulerError, match=r"hard link.*\n.*`cp -r`"),
            in_own_folder(store, options),
        ):
            pass
    store.close()
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store = Store(DataDir.of(str(tmp_path / "b" / "s.json")))
    location.refuse_hard_link(store)
    store.close()
