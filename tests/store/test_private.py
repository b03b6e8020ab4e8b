"""The folder of a record is ours, closed to others and without links; what is not is refused or closed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from gpu_scheduler.doctor.files import record
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.database import peek
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import InstanceLock
from gpu_scheduler.store.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A record that a scheduler has left."""
    home = Home.of(str(tmp_path / "s.json"))
    Store(home, create=True).close()
    return home


def modes(folder: Path) -> set[str]:
    return {
        f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in (folder, *folder.rglob("*")) if path != folder
    }


def refusal(home: Home) -> str:
    """What every way in says, the same for `start`, the other commands and `doctor`."""
    with pytest.raises(SchedulerError) as start:
        Store(home, create=True)
    (found,) = [finding for finding in record(home) if finding.check == "database"]
    assert found.grade == "bad"
    assert str(start.value).startswith(found.says)
    return str(start.value)


def test_a_record_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        home = Home.of(str(tmp_path / "s.json"))
        assert home.create() == []
    finally:
        os.umask(old)
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    assert modes(home.folder) == {"700", "600"}


def test_refuses_a_link_in_the_place_of_the_folder(home: Home, tmp_path: Path) -> None:
    home.folder.rename(tmp_path / "real")
    home.folder.symlink_to("real")
    assert re.search(r"s\.d is a link, .*--data-dir", refusal(home))
    with pytest.raises(SchedulerError, match="is a link"):
        Store(home)
    with pytest.raises(OSError, match="is a link"):
        InstanceLock(home.lock)


def test_refuses_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    home = Home.of(str(tmp_path / "s.json"))
    home.folder.touch()
    assert "s.d is not a folder" in refusal(home)


def test_refuses_the_folder_of_another_user(home: Home, tmp_path: Path, stranger: int) -> None:
    tmp_path.chmod(0o1777)
    os.chown(home.folder, stranger, stranger)
    home.folder.chmod(0o777)
    assert f"s.d is the record of user {stranger}, not yours" in refusal(home)
    with pytest.raises(SchedulerError, match="not yours"):
        Store(home)
    with pytest.raises(PermissionError, match="belongs to another user"):
        InstanceLock(home.lock)
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o777
    assert peek(home.database, "SELECT 1") is None, "what is asked before the record is opened"


def test_root_goes_on_with_the_folder_of_the_owner_of_a_mounted_folder(
    home: Home, tmp_path: Path, stranger: int
) -> None:
    for path in (tmp_path, home.folder, home.database):
        os.chown(path, stranger, stranger)
    tmp_path.chmod(0o755)
    Store(home, create=True).close()
    tmp_path.chmod(0o777)
    assert "not yours" in refusal(home)


@pytest.mark.parametrize(
    "name", ["scheduler.db", "scheduler.db-wal", "runs", "doorbell", "lock", "id", "new"]
)
def test_refuses_a_link_in_the_folder(home: Home, tmp_path: Path, name: str) -> None:
    path, elsewhere = home.folder / name, tmp_path / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)
    there = elsewhere.exists()
    assert f"{path} is a link" in refusal(home)
    assert elsewhere.exists() == there, "nothing is made through it"


def test_refuses_what_another_user_has_put_into_a_folder_that_was_open(home: Home, stranger: int) -> None:
    planted = home.runs / "1" / "1-planted"
    planted.mkdir(parents=True)
    os.chown(planted, stranger, stranger)
    Store(home, create=True).close()  # in a folder that was always closed nobody has
    home.folder.chmod(0o777)
    with pytest.raises(
        SchedulerError, match=re.escape(f"{planted} belongs to another user (uid {stranger})")
    ):
        home.create()
    home.folder.chmod(0o700)
    os.chown(home.doorbell, stranger, stranger)
    assert f"{home.doorbell} belongs to another user" in refusal(home)


def test_closes_what_is_ours_and_open_to_others_and_says_so_once(home: Home) -> None:
    deep = home.runs / "1"
    deep.mkdir(mode=0o700)
    for path, mode in ((home.folder, 0o770), (home.database, 0o666), (deep, 0o777), (home.doorbell, 0o644)):
        path.chmod(mode)
    told = sorted(map(str, home.create()))
    assert [re.sub(r" and is closed.*", "", text) for text in told] == [
        f"{home.folder} could be written by others (mode 770)",
        f"{deep} could be written by others (mode 777)",
        f"{home.database} could be written by others (mode 666)",
    ]
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    assert modes(home.folder) == {"700", "600"}
    assert home.create() == []


def test_refuses_a_file_system_that_keeps_no_permissions(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda fd, mode: None)
    with pytest.raises(
        SchedulerError, match="keeps no permissions; name a folder on another one with --data-dir"
    ):
        home.create()


def test_a_folder_that_took_the_place_of_the_locked_one_is_not_it(home: Home, tmp_path: Path) -> None:
    lock = InstanceLock(home.lock)
    try:
        assert lock.acquire()
        home.folder.rename(tmp_path / "away")
        home.folder.symlink_to("away")
        assert not lock.is_of(home.folder)
        home.folder.unlink()
        home.folder.mkdir()
        assert not lock.is_of(home.folder)
        assert lock.keep(), "its file is looked for in the locked folder"
        assert list(home.folder.iterdir()) == []
    finally:
        lock.release()


def test_a_link_of_ours_to_a_record_names_how_to_go_on_with_that(home: Home, tmp_path: Path) -> None:
    home.create()
    home.database.touch()
    home.folder.rename(tmp_path / "a real one")
    home.folder.symlink_to("a real one")
    said = refusal(home)
    assert f"--data-dir '{tmp_path}/a real one' for every command" in said
    subprocess.run(said.split("`")[1], shell=True, check=True)  # as it is printed
    home.check_access()
    assert home.database.exists()
