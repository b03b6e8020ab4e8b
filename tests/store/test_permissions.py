"""The data directory must belong to the user, be private and contain no links.

If it does not, it is refused or made private.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.health.doctor import store_findings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import query_read_only
from gpu_scheduler.store.scheduler_lock import InstanceLock
from gpu_scheduler.store.store import Store


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    """Provides the data directory of a scheduler that has ended."""
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    Store(data_dir, create=True).close()
    return data_dir


def modes(folder: Path) -> set[str]:
    return {
        f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in (folder, *folder.rglob("*")) if path != folder
    }


def refusal(data_dir: DataDir) -> str:
    """Returns the message with which both `start` and `doctor` refuse the data directory."""
    with pytest.raises(SchedulerError) as start:
        Store(data_dir, create=True)
    (found,) = [finding for finding in store_findings(data_dir) if finding.check == "database"]
    assert found.grade == "bad"
    assert str(start.value).startswith(found.message)
    return str(start.value)


def test_creates_a_private_data_directory_with_any_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        data_dir = DataDir.of(str(tmp_path / "s.json"))
        assert data_dir.create() == []
    finally:
        os.umask(old)
    assert stat.S_IMODE(data_dir.folder.stat().st_mode) == 0o700
    assert modes(data_dir.folder) == {"700", "600"}


def test_refuses_a_link_in_place_of_the_data_directory(data_dir: DataDir, tmp_path: Path) -> None:
    data_dir.folder.rename(tmp_path / "real")
    data_dir.folder.symlink_to("real")
    assert re.search(r"s\.d is a link, .*--data-dir", refusal(data_dir))
    with pytest.raises(SchedulerError, match="is a link"):
        Store(data_dir)
    with pytest.raises(OSError, match="is a link"):
        InstanceLock(data_dir.lock)


def test_refuses_a_file_in_place_of_the_data_directory(tmp_path: Path) -> None:
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    data_dir.folder.touch()
    assert "s.d is not a folder" in refusal(data_dir)


def test_refuses_the_data_directory_of_another_user(
    data_dir: DataDir, tmp_path: Path, other_uid: int
) -> None:
    tmp_path.chmod(0o1777)
    os.chown(data_dir.folder, other_uid, other_uid)
    data_dir.folder.chmod(0o777)
    assert f"s.d belongs to another user ({other_uid});" in refusal(data_dir)
    with pytest.raises(SchedulerError, match="belongs to another user"):
        Store(data_dir)
    with pytest.raises(PermissionError, match="belongs to another user"):
        InstanceLock(data_dir.lock)
    assert stat.S_IMODE(data_dir.folder.stat().st_mode) == 0o777
    assert query_read_only(data_dir.database, "SELECT 1") is None, "queries before the store is opened"


def test_root_accepts_a_data_directory_owned_by_the_owner_of_its_folder(
    data_dir: DataDir, tmp_path: Path, other_uid: int
) -> None:
    for path in (tmp_path, data_dir.folder, data_dir.database):
        os.chown(path, other_uid, other_uid)
    tmp_path.chmod(0o755)
    Store(data_dir, create=True).close()
    tmp_path.chmod(0o777)
    assert "belongs to another user" in refusal(data_dir)


@pytest.mark.parametrize(
    "name", ["scheduler.db", "scheduler.db-wal", "runs", "doorbell", "lock", "id", "new"]
)
def test_refuses_a_link_in_the_data_directory(data_dir: DataDir, tmp_path: Path, name: str) -> None:
    path, elsewhere = data_dir.folder / name, tmp_path / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)
    there = elsewhere.exists()
    assert f"{path} is a link" in refusal(data_dir)
    assert elsewhere.exists() == there, "nothing is created through it"


def test_readers_check_the_data_directory_itself_and_not_its_content(data_dir: DataDir) -> None:
    (data_dir.folder / "new").symlink_to("elsewhere")
    Store(data_dir).close()
    assert f"{data_dir.folder / 'new'} is a link" in refusal(data_dir)  # of `start` and `doctor`


def test_refuses_files_of_another_user_in_a_folder_that_was_not_private(
    data_dir: DataDir, other_uid: int
) -> None:
    planted = data_dir.runs / "1" / "1-planted"
    planted.mkdir(parents=True)
    os.chown(planted, other_uid, other_uid)
    Store(data_dir, create=True).close()  # a folder that was always private is not checked
    data_dir.folder.chmod(0o777)
    with pytest.raises(
        SchedulerError, match=re.escape(f"{planted} belongs to another user (uid {other_uid})")
    ):
        data_dir.create()
    data_dir.folder.chmod(0o700)
    os.chown(data_dir.doorbell, other_uid, other_uid)
    assert f"{data_dir.doorbell} belongs to another user" in refusal(data_dir)


def test_makes_files_private_and_reports_them_once(data_dir: DataDir) -> None:
    deep = data_dir.runs / "1"
    deep.mkdir(mode=0o700)
    modes_before = (
        (data_dir.folder, 0o770),
        (data_dir.database, 0o666),
        (deep, 0o777),
        (data_dir.doorbell, 0o644),
    )
    for path, mode in modes_before:
        path.chmod(mode)
    reports = sorted(map(str, data_dir.create()))
    assert [re.sub(r" and is now private.*", "", text) for text in reports] == [
        f"{data_dir.folder} was writable by other users (mode 770)",
        f"{deep} was writable by other users (mode 777)",
        f"{data_dir.database} was writable by other users (mode 666)",
    ]
    assert stat.S_IMODE(data_dir.folder.stat().st_mode) == 0o700
    assert modes(data_dir.folder) == {"700", "600"}
    assert data_dir.create() == []


def test_refuses_a_file_system_that_ignores_permissions(
    data_dir: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir.folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda fd, mode: None)
    with pytest.raises(
        SchedulerError,
        match="does not store permissions; name a folder on another file system with --data-dir",
    ):
        data_dir.create()


def test_does_not_accept_a_folder_that_replaced_the_locked_one(data_dir: DataDir, tmp_path: Path) -> None:
    lock = InstanceLock(data_dir.lock)
    try:
        assert lock.acquire()
        data_dir.folder.rename(tmp_path / "away")
        data_dir.folder.symlink_to("away")
        assert not lock.locks_folder(data_dir.folder)
        data_dir.folder.unlink()
        data_dir.folder.mkdir()
        assert not lock.locks_folder(data_dir.folder)
        assert lock.restore_lock_file(), "the lock file is looked up in the locked folder"
        assert list(data_dir.folder.iterdir()) == []
    finally:
        lock.release()


def test_the_error_for_a_link_to_the_users_own_store_names_a_remedy(
    data_dir: DataDir, tmp_path: Path
) -> None:
    data_dir.create()
    data_dir.database.touch()
    data_dir.folder.rename(tmp_path / "a real one")
    data_dir.folder.symlink_to("a real one")
    message = refusal(data_dir)
    assert f"add --data-dir '{tmp_path}/a real one' to every command" in message
    subprocess.run(message.split("`")[1], shell=True, check=True)  # exactly as printed
    data_dir.check_access()
    assert data_dir.database.exists()
