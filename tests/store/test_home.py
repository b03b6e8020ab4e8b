"""Where a record lies, whose it is, and what another host may do with it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.states import JobState
from gpu_scheduler.doctor.files import record
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.intake.statewatch import StateWatch
from gpu_scheduler.store import home as homes
from gpu_scheduler.store import host as hosts
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.host import Host, claim_host, read_host, this_host, write_host
from gpu_scheduler.store.store import Store

ELSEWHERE = Host("gpu-other", "0" * 32)
Kinds = Callable[..., None]


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kinds:
    """Says which folders lie on which kind of file system, and where this user's state lies."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def put(**kinds: str) -> None:
        def kind_of(path: Path) -> str:
            return next((kind for name, kind in kinds.items() if tmp_path / name in path.parents), "ext4")

        monkeypatch.setattr(homes, "kind_of", kind_of)

    return put


def test_beside_the_state_file_on_a_local_disk(tmp_path: Path, kinds: Kinds) -> None:
    kinds()
    home = Home.of(str(tmp_path / "a" / "x.json"))
    assert (home.folder, home.moved, home.problem) == (tmp_path / "a" / "x.d", False, None)
    assert Home.of(str(tmp_path / "plain")).folder == tmp_path / "plain.d"


def test_on_a_network_file_system_it_lies_in_the_users_state(tmp_path: Path, kinds: Kinds) -> None:
    kinds(net="nfs4")
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to("net")
    home = Home.of(str(tmp_path / "net" / "x.json"))
    assert (home.moved, home.problem) == (True, None)
    assert home.folder.parent == tmp_path / "state" / "gpu_scheduler"
    assert Home.of(str(tmp_path / "net" / "." / "x.json")).folder == home.folder
    assert Home.of(str(tmp_path / "net" / "y.json")).folder != home.folder
    kinds(net="nfs4", link="nfs4")
    assert Home.of(str(tmp_path / "link" / "x.json")).folder == home.folder


def test_the_state_of_a_user_without_xdg(
    tmp_path: Path, kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds(net="cifs")
    monkeypatch.setenv("HOME", str(tmp_path / "u"))
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        folder = Home.of(str(tmp_path / "net" / "x.json")).folder
        assert folder.parent == tmp_path / "u" / ".local" / "state" / "gpu_scheduler"


def test_where_that_is_no_local_disk_either_a_start_is_refused(tmp_path: Path, kinds: Kinds) -> None:
    kinds(net="nfs4", state="fuse.sshfs")
    home = Home.of(str(tmp_path / "net" / "x.json"))
    for create in (True, False):
        with pytest.raises(SchedulerError, match=r"\(nfs4\).*\(fuse\.sshfs\).*--data-dir /local/folder"):
            Store(home, create=create)
    assert not (tmp_path / "state").exists()
    chosen = Home.of(str(tmp_path / "net" / "x.json"), str(tmp_path / "net" / "mine"))
    assert (chosen.folder, chosen.moved, chosen.problem) == (tmp_path / "net" / "mine", False, None)
    Store(chosen, create=True).close()


def test_a_record_that_lies_on_the_network_already_is_not_forgotten(tmp_path: Path, kinds: Kinds) -> None:
    kinds()
    (tmp_path / "net").mkdir()
    state = str(tmp_path / "net" / "x.json")
    Store(Home.of(state), create=True).close()
    kinds(net="nfs")
    home = Home.of(state)
    with pytest.raises(SchedulerError, match=rf"x\.d, on nfs.*move that folder to {home.folder}"):
        home.create()
    home.folder.parent.mkdir(parents=True)
    os.rename(tmp_path / "net" / "x.d", home.folder)
    Store(Home.of(state)).close()
    # One that appears beside the file again, a copy of old, changes nothing.
    shutil.copytree(home.folder, tmp_path / "net" / "x.d")
    assert (Home.of(state).folder, Home.of(state).problem) == (home.folder, None)


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
def test_one_machine(one: Host, other: Host, same: bool) -> None:
    assert one.is_same(other) is other.is_same(one) is same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"machine": "1"}',
        '{"name": 1}',
        '{"name": "a", "machine": 2}',
        '{"name": "a", "record": 3}',
    ],
)
def test_a_file_that_names_no_host(tmp_path: Path, text: str) -> None:
    (tmp_path / "host").write_text(text)
    assert read_host(tmp_path / "host") is None


def test_a_start_makes_the_record_this_hosts(tmp_path: Path) -> None:
    home = Home.of(str(tmp_path / "s.json"))
    home.create()
    assert home.foreign() is None
    home.own()
    assert read_host(home.host) == this_host()
    write_host(home.host, Host("an earlier name", this_host().machine or "x"))
    if this_host().machine is not None:
        assert home.foreign() is None
    home.own()
    assert read_host(home.host) == this_host()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Home:
    """A record with a job, of another host, whose log is not folded into the file yet."""
    home = Home.of(str(tmp_path / "s.json"))
    store = Store(home, create=True)
    store.insert_job(JobSpec("command", "echo hello", "/", command="echo hello"), "cli")
    assert home.database.with_name("scheduler.db-wal").stat().st_size > 0
    for name in ("scheduler.db", "scheduler.db-wal"):  # as the other host's open files look from here
        data = (home.folder / name).read_bytes()
        (home.folder / f"kept-{name}").write_bytes(data)
    store.close()
    for name in ("scheduler.db", "scheduler.db-wal"):
        (home.folder / f"kept-{name}").rename(home.folder / name)
    write_host(home.host, ELSEWHERE)
    return home


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_host_reads_and_touches_nothing(elsewhere: Home) -> None:
    before = contents(elsewhere.folder)
    store = Store(elsewhere)
    assert store.foreign == ELSEWHERE
    assert [row["text"] for row in store.open_jobs([JobState.QUEUED])] == ["echo hello"]
    with pytest.raises(SchedulerError, match="belongs to host gpu-other") as caught:
        store.wish("cancel", "1")
    assert "start --take-over" in str(caught.value)
    with pytest.raises(SchedulerError, match="gpu-other"):
        store.db.set_meta("a", "b")
    copy = Path(store.db.rows("PRAGMA database_list")[0]["file"]).parent
    assert copy.exists()
    store.close()
    assert not copy.exists()
    assert contents(elsewhere.folder) == before


def test_a_record_that_never_stands_still_is_said_so(
    elsewhere: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_scheduler.store import foreign

    monkeypatch.setattr(foreign, "_WAIT_S", 0.0)
    elsewhere.database.write_bytes(b"SQLite format 3\0" + bytes(4000))
    elsewhere.database.with_name("scheduler.db-wal").unlink()
    with pytest.raises(SchedulerError, match="changes too fast"):
        Store(elsewhere)


def test_another_host_does_not_start_unless_it_takes_over(elsewhere: Home) -> None:
    for refused in (elsewhere.check_owner, elsewhere.own):
        with pytest.raises(SchedulerError, match="gpu-other"):
            refused(take_over=False)
    assert read_host(elsewhere.host) == ELSEWHERE
    elsewhere.own(take_over=True)
    store = Store(elsewhere)
    assert store.foreign is None
    store.wish("cancel", "1")
    store.close()


@pytest.fixture
def shared(tmp_path: Path, kinds: Kinds) -> Home:
    """Of a state file on the network, whose record lies on a disk of this host."""
    kinds(net="nfs4")
    (tmp_path / "net").mkdir()
    return Home.of(str(tmp_path / "net" / "x.json"))


def test_beside_a_state_file_on_the_network_a_file_names_the_host_of_its_record(shared: Home) -> None:
    assert shared.host == shared.state_file.with_name("x.host")
    shared.create()
    shared.own()
    assert read_host(shared.host) == this_host(str(shared.folder))
    assert [path.name for path in shared.host.parent.iterdir()] == ["x.host"]
    store = Store(shared, create=True)
    StateWatch(store).write(1000.0)
    store.close()
    assert json.loads(shared.state_file.read_text())["_scheduler"] == {"paused_gpus": []}
    # The same folder, seen by a host that has no record of its own.
    write_host(shared.host, replace(ELSEWHERE, record="/home/u/there"))
    said = r"belongs to host gpu-other \(there: /home/u/there\)"
    with pytest.raises(SchedulerError, match=said):
        Store(shared)
    for refused in (shared.check_owner, shared.own):
        with pytest.raises(SchedulerError, match=said):
            refused(take_over=False)
    for text in ("{broken", '{"_scheduler": {}}'):  # whatever becomes of the state file
        shared.state_file.write_text(text)
        assert shared.foreign() is not None
    shared.own(take_over=True)
    assert shared.foreign() is None
    shared.own()


def test_a_file_that_names_no_host_refuses_a_start_until_it_is_taken_over(shared: Home) -> None:
    shared.create()
    shared.host.write_text("")
    for refused in (shared.check_owner, shared.own):
        with pytest.raises(SchedulerError, match=r"x\.host does not name the host .*--take-over"):
            refused(take_over=False)
    shared.own(take_over=True)
    assert read_host(shared.host) == this_host(str(shared.folder))


def test_a_file_that_cannot_be_read_is_told(shared: Home) -> None:
    shared.host.mkdir()
    with pytest.raises(SchedulerError, match=r"x\.host cannot be read \(is not a regular file\)"):
        shared.check_owner(take_over=False)


@pytest.mark.parametrize("links", [True, False])
def test_of_two_hosts_that_start_in_the_same_moment_one_gets_the_record(
    shared: Home, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def forbidden(*names: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    def come_first(path: Path, host: Host) -> None:
        claim_host(path, ELSEWHERE)  # after this host found no file, before it makes its own
        claim_host(path, host)

    if not links:
        monkeypatch.setattr(os, "link", forbidden)
    monkeypatch.setattr(homes, "claim_host", come_first)
    with pytest.raises(SchedulerError, match="gpu-other"):
        shared.own()
    assert read_host(shared.host) == ELSEWHERE
    assert [path.name for path in shared.host.parent.iterdir()] == ["x.host"]


def test_a_disk_that_is_full_leaves_no_half_of_the_file(
    shared: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    for take_over in (False, True):
        with pytest.raises(OSError, match="full"):
            shared.own(take_over=take_over)
    assert list(shared.host.parent.iterdir()) == []


def test_only_this_hosts_name_is_taken_back(shared: Home, tmp_path: Path) -> None:
    shared.own()
    shared.disown()
    assert not shared.host.exists()
    write_host(shared.host, ELSEWHERE)
    shared.disown()
    assert read_host(shared.host) == ELSEWHERE
    beside = Home.of(str(tmp_path / "s.json"))
    beside.create()
    beside.own()
    beside.disown()
    assert read_host(beside.host) == this_host()


def test_the_id_of_the_machine_is_told_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = "0123456789abcdef0123456789abcdef"
    (tmp_path / "machine-id").write_text(f"{identity}\n")
    monkeypatch.setattr(hosts, "_MACHINE_ID", (str(tmp_path / "machine-id"),))
    home = Home.of(str(tmp_path / "s.json"))
    home.create()
    home.own()
    machine = this_host().machine
    assert machine is not None
    assert machine in home.host.read_text()
    assert identity not in home.host.read_text()


@pytest.mark.parametrize(
    ("uid", "parts"),
    [
        (
            0,
            [
                "x.d is the record of root: a `start` with sudo made it",
                "sudo chown -R 1234 ",
                "x.d ",
                "x.json ",
            ],
        ),
        (99999, ["x.d is the record of user 99999, not yours", "--state-file"]),
        (1234, ["x.d may not be entered: chmod u+rwx "]),
    ],
)
def test_a_record_that_may_not_be_entered_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, parts: list[str]
) -> None:
    home = Home.of(str(tmp_path / "x.json"))
    home.check_access()  # it is not there yet
    Store(home, create=True).close()
    home.check_access()
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    access, stat, lstat = os.access, os.stat, os.lstat
    owned = os.stat_result((*stat(home.folder)[:4], uid, *stat(home.folder)[5:]))

    def no_access(path: object, *more: Any, **words: Any) -> bool:
        return path != home.folder and access(path, *more, **words)  # type: ignore[arg-type]

    def stat_of(path: object, **words: Any) -> os.stat_result:
        return owned if path == home.folder else lstat(path, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "access", no_access)
    monkeypatch.setattr(os, "lstat", stat_of)
    with pytest.raises(SchedulerError) as caught:
        home.check_access()
    with pytest.raises(SchedulerError):
        Store(home)
    (found,) = [finding for finding in record(home) if finding.check == "database"]
    monkeypatch.undo()
    assert [part for part in parts if part not in str(caught.value)] == []
    assert found.grade == "bad"
