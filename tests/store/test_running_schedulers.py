"""The list of the running schedulers of a user counts only what the kernel and the owners confirm."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.store import scheduler_lock as registry
from gpu_scheduler.store.data_dir import DataDir, Host
from gpu_scheduler.store.scheduler_lock import listed, running_schedulers
from tests.store.test_scheduler_lock import held


def made(folder: Path, data_dir: Path | None = None) -> DataDir:
    folder.mkdir(exist_ok=True)
    home = DataDir.of(str(folder / "s.json"), None if data_dir is None else str(data_dir))
    home.folder.mkdir(mode=0o700)
    return home


@contextmanager
def running(home: DataDir) -> Iterator[int]:
    """Lists a scheduler whose lock another process holds. Yields the pid of that process."""
    with held(home.lock) as child, listed(home) as problem:
        assert problem is None
        yield child.pid


def only_file() -> Path:
    [path] = registry._folder().iterdir()
    return path


def test_a_scheduler_is_listed_while_it_runs(tmp_path: Path) -> None:
    assert running_schedulers() == []
    one, other = made(tmp_path / "one"), made(tmp_path / "other", tmp_path / "elsewhere")
    with ExitStack() as stack:
        pid = stack.enter_context(running(one))
        assert stat.S_IMODE(only_file().stat().st_mode) == 0o600
        assert stat.S_IMODE(registry._folder().stat().st_mode) == 0o700
        other_pid = stack.enter_context(running(other))
        assert running_schedulers() == [
            (f"{tmp_path}/one/s.json", None, pid),
            (f"{tmp_path}/other/s.json", f"{tmp_path}/elsewhere", other_pid),
        ]
    assert list(registry._folder().iterdir()) == []
    assert running_schedulers() == []


def test_a_file_without_the_lock_of_its_store_does_not_count(tmp_path: Path) -> None:
    """A killed scheduler leaves its file behind. The next one of the store replaces it."""
    home = made(tmp_path / "one")
    stack = ExitStack()
    stack.enter_context(listed(home))
    assert running_schedulers() == []
    with running(home) as pid:
        only_file()
        assert [found[2] for found in running_schedulers()] == [pid]


def test_a_start_removes_the_files_of_stores_that_no_longer_exist(tmp_path: Path) -> None:
    gone, idle, home = made(tmp_path / "gone"), made(tmp_path / "idle"), made(tmp_path / "home")
    with listed(gone), listed(idle):
        gone.folder.rmdir()
        with listed(home):
            names = [json.loads(path.read_text())["data_dir"] for path in registry._folder().iterdir()]
            assert sorted(names) == [str(home.folder), str(idle.folder)]


def _change(**values: object) -> Callable[[Path, DataDir], None]:
    def change(path: Path, home: DataDir) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _chmod(mode: int) -> Callable[[Path, DataDir], None]:
    return lambda path, home: path.chmod(mode)


def _link(path: Path, home: DataDir) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to(path.parent.with_name("moved"))


@pytest.mark.parametrize(
    "spoil",
    [
        _change(name="otherhost", machine="0" * 32),
        _change(name="otherhost", machine=None),
        _change(state_file=3, data_dir=None),
        lambda path, home: path.write_text("[1, 2]"),
        lambda path, home: path.write_bytes(b"\xff{"),
        lambda path, home: path.write_text("null"),
        lambda path, home: path.write_text(""),
        _chmod(0o666),
        lambda path, home: path.parent.chmod(0o777),
        lambda path, home: path.parent.chmod(0o770),
        _link,
    ],
)
def test_what_others_could_have_written_does_not_count(
    tmp_path: Path, spoil: Callable[[Path, DataDir], None]
) -> None:
    home = made(tmp_path / "one")
    with running(home):
        assert len(running_schedulers()) == 1
        spoil(only_file(), home)
        assert running_schedulers() == []


def test_what_belongs_to_another_user_does_not_count(tmp_path: Path, other_uid: int) -> None:
    home = made(tmp_path / "one")
    with running(home) as pid:
        for path in (only_file(), registry._folder(), home.folder):
            os.chown(path, other_uid, other_uid)
            assert running_schedulers() == []
            os.chown(path, os.geteuid(), os.getegid())
            assert [found[2] for found in running_schedulers()] == [pid]


def test_a_home_folder_may_be_shared_by_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host has its own files, although the paths of the stores are the same."""
    home = made(tmp_path / "one")
    with running(home) as pid:
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setattr(registry, "this_host", lambda data_dir=None: Host("far", "1" * 32, data_dir))
            assert running_schedulers() == []
            with listed(home):
                assert len(list(registry._folder().iterdir())) == 2
            assert len(list(registry._folder().iterdir())) == 1
        assert [found[2] for found in running_schedulers()] == [pid]


def test_a_folder_that_is_not_this_users_is_neither_made_nor_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_uid: int
) -> None:
    """With `sudo`, HOME may be that of another user."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, other_uid, other_uid)
    monkeypatch.setenv("XDG_STATE_HOME", str(theirs / "state"))
    with listed(made(tmp_path / "one")) as problem:
        assert problem is not None
        assert list(theirs.iterdir()) == []


def test_a_scheduler_runs_even_if_it_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with listed(made(tmp_path / "one")) as problem:
        assert problem is not None
        assert "Not a directory" in problem
    assert running_schedulers() == []
