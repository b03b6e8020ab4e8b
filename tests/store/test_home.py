"""Where a record lies, whose it is, and what another host may do with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.states import JobState
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.intake.statewatch import StateWatch
from gpu_scheduler.store import home as homes
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.host import Host, read_host, this_host, write_host
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


@pytest.mark.parametrize("text", ["", "[]", '{"machine": "1"}', '{"name": 1}', '{"name": "a", "machine": 2}'])
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


def test_a_state_file_on_the_network_names_the_host_of_its_record(tmp_path: Path, kinds: Kinds) -> None:
    kinds(net="nfs4")
    (tmp_path / "net").mkdir()
    home = Home.of(str(tmp_path / "net" / "x.json"))
    store = Store(home, create=True)
    StateWatch(store).write(1000.0)
    ours = json.loads(home.state_file.read_text())["_scheduler"]
    assert ours == {"paused_gpus": [], "host": this_host().to_object(), "record": str(home.folder)}
    assert home.foreign() is None
    store.close()
    # The same file, seen by a host that has no record of its own.
    ours.update(host=ELSEWHERE.to_object(), record="/home/u/there")
    home.state_file.write_text(json.dumps({"paused_gpus": [], "_scheduler": ours}))
    said = r"belongs to host gpu-other \(there: /home/u/there\)"
    with pytest.raises(SchedulerError, match=said):
        Store(home)
    with pytest.raises(SchedulerError, match=said):
        home.check_owner(take_over=False)
    home.own(take_over=True)
    store = Store(home, create=True)
    StateWatch(store).write(1000.0)
    store.close()
    Store(home).close()
    home.state_file.write_text("{broken")
    assert home.foreign() is None


def test_the_host_is_not_written_where_the_record_is_beside(tmp_path: Path) -> None:
    store = Store(Home.of(str(tmp_path / "s.json")), create=True)
    StateWatch(store).write(1000.0)
    assert json.loads(store.home.state_file.read_text())["_scheduler"] == {"paused_gpus": []}
    store.close()
