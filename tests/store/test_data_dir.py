"""The path and the owner of a data directory, and access to it from another host."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.health.doctor import store_findings
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.store import data_dir as homes
from gpu_scheduler.store import data_dir as hosts
from gpu_scheduler.store.data_dir import DataDir, Host, claim_host, read_host, this_host, write_host
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.store import Store

ELSEWHERE = Host("gpu-other", "0" * 32)
Kinds = Callable[..., None]


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kinds:
    """Provides a function that sets the file system types of folders. Also sets the user's state home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def put(**kinds: str) -> None:
        def kind_of(path: Path) -> str:
            return next((kind for name, kind in kinds.items() if tmp_path / name in path.parents), "ext4")

        monkeypatch.setattr(homes, "kind_of", kind_of)

    return put


def test_the_data_directory_is_beside_the_state_file_on_a_local_disk(tmp_path: Path, kinds: Kinds) -> None:
    kinds()
    data_dir = DataDir.of(str(tmp_path / "a" / "x.json"))
    assert (data_dir.folder, data_dir.is_fallback, data_dir.problem) == (tmp_path / "a" / "x.d", False, None)
    assert DataDir.of(str(tmp_path / "plain")).folder == tmp_path / "plain.d"


def test_the_data_directory_is_in_the_users_state_home_on_a_network_file_system(
    tmp_path: Path, kinds: Kinds
) -> None:
    kinds(net="nfs4")
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to("net")
    data_dir = DataDir.of(str(tmp_path / "net" / "x.json"))
    assert (data_dir.is_fallback, data_dir.problem) == (True, None)
    assert data_dir.folder.parent == tmp_path / "state" / "gpu_scheduler"
    assert DataDir.of(str(tmp_path / "net" / "." / "x.json")).folder == data_dir.folder
    assert DataDir.of(str(tmp_path / "net" / "y.json")).folder != data_dir.folder
    kinds(net="nfs4", link="nfs4")
    assert DataDir.of(str(tmp_path / "link" / "x.json")).folder == data_dir.folder


def test_the_state_home_without_xdg_state_home_is_local_state(
    tmp_path: Path, kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds(net="cifs")
    monkeypatch.setenv("HOME", str(tmp_path / "u"))
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        folder = DataDir.of(str(tmp_path / "net" / "x.json")).folder
        assert folder.parent == tmp_path / "u" / ".local" / "state" / "gpu_scheduler"


def test_refuses_a_start_without_any_local_disk(tmp_path: Path, kinds: Kinds) -> None:
    kinds(net="nfs4", state="fuse.sshfs")
    data_dir = DataDir.of(str(tmp_path / "net" / "x.json"))
    for create in (True, False):
        with pytest.raises(SchedulerError, match=r"\(nfs4\).*\(fuse\.sshfs\).*--data-dir /local/folder"):
            Store(data_dir, create=create)
    assert not (tmp_path / "state").exists()
    chosen = DataDir.of(str(tmp_path / "net" / "x.json"), str(tmp_path / "net" / "mine"))
    assert (chosen.folder, chosen.is_fallback, chosen.problem) == (tmp_path / "net" / "mine", False, None)
    Store(chosen, create=True).close()


def test_refuses_a_start_if_a_store_is_already_on_the_network(tmp_path: Path, kinds: Kinds) -> None:
    kinds()
    (tmp_path / "net").mkdir()
    state = str(tmp_path / "net" / "x.json")
    Store(DataDir.of(state), create=True).close()
    kinds(net="nfs")
    data_dir = DataDir.of(state)
    with pytest.raises(SchedulerError, match=rf"x\.d is on nfs.*move that folder to {data_dir.folder}"):
        data_dir.create()
    data_dir.folder.parent.mkdir(parents=True)
    os.rename(tmp_path / "net" / "x.d", data_dir.folder)
    Store(DataDir.of(state)).close()
    # If an old copy reappears beside the state file, nothing changes.
    shutil.copytree(data_dir.folder, tmp_path / "net" / "x.d")
    assert (DataDir.of(state).folder, DataDir.of(state).problem) == (data_dir.folder, None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Host("a", "1"), Host("b", "1"), True),
        (Host("a", "1"), Host("a", "2"), False),
        (Host("a", None), Host("a", "2"), True),
        (Host("a", None), Host("b", "2"), False),
        (Host("a"), Host("a"), True),
        (Host("a"), Host("b"), False),
    ],
)
def test_compares_hosts_by_machine_id_then_by_name(one: Host, other: Host, same: bool) -> None:
    assert one.is_same_machine(other) is other.is_same_machine(one) is same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"machine": "1"}',
        '{"name": 1}',
        '{"name": "a", "machine": 2}',
        '{"name": "a", "data_dir": 3}',
    ],
)
def test_an_invalid_host_file_does_not_name_a_host(tmp_path: Path, text: str) -> None:
    (tmp_path / "host").write_text(text)
    assert read_host(tmp_path / "host") is None


@pytest.fixture
def machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Gives this host a machine-id, which minimal installations and containers lack."""
    identity = "0123456789abcdef0123456789abcdef"
    (tmp_path / "machine-id").write_text(f"{identity}\n")
    monkeypatch.setattr(hosts, "_MACHINE_ID", (str(tmp_path / "machine-id"),))
    return identity


def test_a_start_makes_this_host_the_owner_whatever_its_name(tmp_path: Path, machine_id: str) -> None:
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    data_dir.create()
    assert data_dir.other_host() is None
    data_dir.take_ownership()
    assert read_host(data_dir.host_file) == this_host()
    write_host(data_dir.host_file, Host("an earlier name", this_host().machine))
    assert data_dir.other_host() is None
    data_dir.take_ownership()
    assert read_host(data_dir.host_file) == this_host()


@pytest.fixture
def elsewhere(tmp_path: Path) -> DataDir:
    """Provides another host's store, with one job and a write-ahead log that was not checkpointed."""
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    store = Store(data_dir, create=True)
    store.insert_job(JobSpec("command", "echo hello", "/", command="echo hello"), "cli")
    assert data_dir.database.with_name("scheduler.db-wal").stat().st_size > 0
    for name in ("scheduler.db", "scheduler.db-wal"):  # as if the other host still had them open
        data = (data_dir.folder / name).read_bytes()
        (data_dir.folder / f"kept-{name}").write_bytes(data)
    store.close()
    for name in ("scheduler.db", "scheduler.db-wal"):
        (data_dir.folder / f"kept-{name}").rename(data_dir.folder / name)
    write_host(data_dir.host_file, ELSEWHERE)
    return data_dir


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_store_of_another_host_cannot_be_opened_and_stays_unchanged(elsewhere: DataDir) -> None:
    before = contents(elsewhere.folder)
    with pytest.raises(SchedulerError, match="belongs to host gpu-other") as caught:
        Store(elsewhere)
    assert "start --take-over" in str(caught.value)
    assert contents(elsewhere.folder) == before


def test_this_host_takes_a_store_from_another_host_only_with_take_over(elsewhere: DataDir) -> None:
    for refused in (elsewhere.check_owner, elsewhere.take_ownership):
        with pytest.raises(SchedulerError, match="gpu-other"):
            refused(take_over=False)
    assert read_host(elsewhere.host_file) == ELSEWHERE
    elsewhere.take_ownership(take_over=True)
    store = Store(elsewhere)
    add_request(store, "cancel", "1")
    store.close()


@pytest.fixture
def shared(tmp_path: Path, kinds: Kinds) -> DataDir:
    """Provides the data directory for a state file on the network.

    The directory is on this host's local disk.
    """
    kinds(net="nfs4")
    (tmp_path / "net").mkdir()
    return DataDir.of(str(tmp_path / "net" / "x.json"))


def test_the_host_file_beside_a_network_state_file_names_the_owner_host(shared: DataDir) -> None:
    assert shared.host_file == shared.state_file.with_name("x.host")
    shared.create()
    shared.take_ownership()
    assert read_host(shared.host_file) == this_host(str(shared.folder))
    assert [path.name for path in shared.host_file.parent.iterdir()] == ["x.host"]
    store = Store(shared, create=True)
    StateFileWatcher(store).write(1000.0)
    store.close()
    assert json.loads(shared.state_file.read_text())["_scheduler"] == {"paused_gpus": []}
    # Another host with the same network folder has no store.
    write_host(shared.host_file, replace(ELSEWHERE, data_dir="/home/u/there"))
    message = r"belongs to host gpu-other \(data directory /home/u/there\)"
    with pytest.raises(SchedulerError, match=message):
        Store(shared)
    for refused in (shared.check_owner, shared.take_ownership):
        with pytest.raises(SchedulerError, match=message):
            refused(take_over=False)
    for text in ("{broken", '{"_scheduler": {}}'):  # whatever the state file contains
        shared.state_file.write_text(text)
        assert shared.other_host() is not None
    shared.take_ownership(take_over=True)
    assert shared.other_host() is None
    shared.take_ownership()


def test_refuses_a_start_with_an_invalid_host_file_until_take_over(shared: DataDir) -> None:
    shared.create()
    shared.host_file.write_text("")
    for refused in (shared.check_owner, shared.take_ownership):
        with pytest.raises(SchedulerError, match=r"x\.host does not name the host .*--take-over"):
            refused(take_over=False)
    shared.take_ownership(take_over=True)
    assert read_host(shared.host_file) == this_host(str(shared.folder))


def test_reports_a_host_file_that_cannot_be_read(shared: DataDir) -> None:
    shared.host_file.mkdir()
    with pytest.raises(SchedulerError, match=r"cannot read .*x\.host \(is not a regular file\)"):
        shared.check_owner(take_over=False)


@pytest.mark.parametrize("links", [True, False])
def test_only_one_of_two_hosts_that_start_at_once_becomes_the_owner(
    shared: DataDir, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def forbidden(*names: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    def come_first(path: Path, host: Host) -> None:
        # The other host does this after this host found no file and before it creates one.
        claim_host(path, ELSEWHERE)
        claim_host(path, host)

    if not links:
        monkeypatch.setattr(os, "link", forbidden)
    monkeypatch.setattr(homes, "claim_host", come_first)
    with pytest.raises(SchedulerError, match="gpu-other"):
        shared.take_ownership()
    assert read_host(shared.host_file) == ELSEWHERE
    assert [path.name for path in shared.host_file.parent.iterdir()] == ["x.host"]


def test_a_full_disk_leaves_no_partial_host_file(shared: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    for take_over in (False, True):
        with pytest.raises(OSError, match="full"):
            shared.take_ownership(take_over=take_over)
    assert list(shared.host_file.parent.iterdir()) == []


def test_removes_only_the_host_file_of_this_host(shared: DataDir, tmp_path: Path) -> None:
    shared.take_ownership()
    shared.drop_ownership()
    assert not shared.host_file.exists()
    write_host(shared.host_file, ELSEWHERE)
    shared.drop_ownership()
    assert read_host(shared.host_file) == ELSEWHERE
    beside = DataDir.of(str(tmp_path / "s.json"))
    beside.create()
    beside.take_ownership()
    beside.drop_ownership()
    assert read_host(beside.host_file) == this_host()


def test_the_host_file_does_not_contain_the_machine_id(tmp_path: Path, machine_id: str) -> None:
    data_dir = DataDir.of(str(tmp_path / "s.json"))
    data_dir.create()
    data_dir.take_ownership()
    machine = this_host().machine
    assert machine is not None
    assert machine in data_dir.host_file.read_text()
    assert machine_id not in data_dir.host_file.read_text()


@pytest.mark.parametrize(
    ("uid", "parts"),
    [
        (
            0,
            [
                "x.d belongs to root, because a `start` with sudo created it",
                "sudo chown -R 1234 ",
                "x.d ",
                "x.json ",
            ],
        ),
        (99999, ["x.d belongs to another user (99999);", "--state-file"]),
        (1234, ["x.d cannot be entered; run `chmod u+rwx "]),
    ],
)
def test_names_the_owner_of_an_inaccessible_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, parts: list[str]
) -> None:
    data_dir = DataDir.of(str(tmp_path / "x.json"))
    data_dir.check_access()  # does not raise, because the folder does not exist yet
    Store(data_dir, create=True).close()
    data_dir.check_access()
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    access, stat, lstat = os.access, os.stat, os.lstat
    owned = os.stat_result((*stat(data_dir.folder)[:4], uid, *stat(data_dir.folder)[5:]))

    def no_access(path: object, *more: Any, **words: Any) -> bool:
        return path != data_dir.folder and access(path, *more, **words)  # type: ignore[arg-type]

    def stat_of(path: object, **words: Any) -> os.stat_result:
        return owned if path == data_dir.folder else lstat(path, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "access", no_access)
    monkeypatch.setattr(os, "lstat", stat_of)
    with pytest.raises(SchedulerError) as caught:
        data_dir.check_access()
    with pytest.raises(SchedulerError):
        Store(data_dir)
    (found,) = [finding for finding in store_findings(data_dir) if finding.check == "database"]
    monkeypatch.undo()
    assert [part for part in parts if part not in str(caught.value)] == []
    assert found.grade == "bad"
