"""How a copy of a data directory is told from one that was moved, renamed or restored."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.daemon.restore import in_own_folder
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store


def made(folder: Path) -> DataDir:
    """Creates a store that has recorded its folder."""
    folder.mkdir()
    data_dir = DataDir.of(str(folder / "s.json"))
    store = Store(data_dir, create=True)
    moved_or_copied.adopt_folder(store)
    store.close()
    return data_dir


def opened(folder: Path) -> Store:
    return Store(DataDir.of(str(folder / "s.json")))


def is_copy(folder: Path) -> bool:
    with closing(opened(folder)) as store:
        return moved_or_copied.original_of_copy(store) is not None


def adopted(folder: Path, *, new_id: bool = False) -> str:
    """Records the folder of the store in it, as `start` does, and returns its id."""
    with closing(opened(folder)) as store:
        moved_or_copied.adopt_folder(store, new_id=new_id)
    return (folder / "s.d" / "id").read_text()


def test_a_copy_is_refused_until_it_gets_its_own_id(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert (is_copy(tmp_path / "a"), is_copy(tmp_path / "b")) == (False, True)
    with (
        closing(opened(tmp_path / "b")) as store,
        pytest.raises(SchedulerError, match=f"copy of {tmp_path}/a/s.d.*\n.*--fresh"),
    ):
        moved_or_copied.refuse_copy(store)
    assert adopted(tmp_path / "b", new_id=True) != adopted(tmp_path / "a")
    assert (is_copy(tmp_path / "a"), is_copy(tmp_path / "b")) == (False, False)


def test_a_copy_with_its_own_id_has_no_folder_of_the_original(tmp_path: Path) -> None:
    data_dir = made(tmp_path / "a")
    with closing(Store(data_dir)) as store, store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES (?, ?)", ("/jobs.txt", str(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    adopted(tmp_path / "b", new_id=True)
    for name, files in (("a", 1), ("b", 0)):
        with closing(opened(tmp_path / name)) as store:
            assert len(store.db.rows("SELECT * FROM jobs_file")) == files


def test_a_copy_whose_original_is_removed_counts_as_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = (made(tmp_path / "a").folder / "id").read_text()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a" / "s.d")
    assert not is_copy(tmp_path / "b")
    assert adopted(tmp_path / "b") == before
    assert f"moved here from {tmp_path}/a/s.d" in caplog.text
    made(tmp_path / "a2").folder.rename(tmp_path / "a" / "s.d")
    assert not is_copy(tmp_path / "b")


def test_a_renamed_or_linked_folder_is_the_same(tmp_path: Path) -> None:
    made(tmp_path / "a")
    (tmp_path / "link").symlink_to("a")
    assert not is_copy(tmp_path / "link")
    (tmp_path / "a").rename(tmp_path / "b")
    assert not is_copy(tmp_path / "b")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "a").symlink_to("b")
    assert not is_copy(tmp_path / "b")


def test_a_folder_is_moved_although_another_store_is_at_its_old_path(tmp_path: Path) -> None:
    made(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    made(tmp_path / "a")
    assert not is_copy(tmp_path / "b")


def test_only_the_folder_at_the_recorded_path_continues_after_a_copy_took_the_place_of_the_renamed_original(
    tmp_path: Path,
) -> None:
    made(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "a")
    assert (is_copy(tmp_path / "a"), is_copy(tmp_path / "b")) == (False, True)


@pytest.mark.parametrize("damage", ["removed", "a link", "too long"])
def test_a_folder_counts_as_copied_if_the_id_at_the_old_path_is_unusable(tmp_path: Path, damage: str) -> None:
    path = made(tmp_path / "a").folder / "id"
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path.unlink()
    if damage == "a link":
        path.symlink_to("nowhere")
    elif damage == "too long":
        path.write_text("x" * 1000)
    assert is_copy(tmp_path / "b")


def test_recognizes_a_folder_restored_at_its_path(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "backup", tmp_path / "a")
    assert not is_copy(tmp_path / "a")


def test_reads_a_location_with_the_inode_that_earlier_versions_recorded(tmp_path: Path) -> None:
    folder = made(tmp_path / "a").folder
    with closing(opened(tmp_path / "a")) as store:
        known = moved_or_copied.recorded_location(store)
        assert known is not None
        store.db.set_meta("folder", json.dumps({**known._asdict(), "inode": folder.stat().st_ino}))
        assert moved_or_copied.recorded_location(store) == known


def test_recreates_a_missing_id_file(tmp_path: Path) -> None:
    path = made(tmp_path / "a").folder / "id"
    before = path.read_text()
    path.unlink()
    assert adopted(tmp_path / "a") == before
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_counts_as_copied_if_the_old_folder_is_inaccessible(tmp_path: Path) -> None:
    data_dir = made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for closed in (data_dir.folder, tmp_path / "a"):
        closed.chmod(0)
        try:
            assert is_copy(tmp_path / "b")
        finally:
            closed.chmod(0o700)


def test_refuses_a_copy_made_with_hard_links(tmp_path: Path) -> None:
    made(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=os.link)
    for fresh, message in ((False, "is a copy of"), (True, r"hard link.*\n.*`cp -r`")):
        with (
            closing(opened(tmp_path / "b")) as store,
            pytest.raises(SchedulerError, match=message),
            in_own_folder(store, fresh=fresh),
        ):
            pass
    shutil.rmtree(tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with closing(opened(tmp_path / "b")) as store, in_own_folder(store, fresh=True):
        pass
    assert not is_copy(tmp_path / "b")
