"""The choice of the lock folder, and the folders that cannot be used. Real folders, on a local disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import gettempdir

import pytest

from gpu_scheduler.errors import UsageError
from gpu_scheduler.system import lock_folder
from gpu_scheduler.system.lock_folder import (
    VARIABLE,
    LockFolderError,
    find_lock_folder,
    folder_problem,
    location_problem,
    prepare_lock_folder,
    prepare_simulated_folder,
    simulated_folder,
)
from tests.isolation import LOCK_DIR

IN_VAR_TMP = Path("/var/tmp", f"gpu_scheduler-{os.geteuid()}", "locks")
ABSENT = Path("/var/tmp/absent/locks")


@pytest.fixture
def place() -> Path:
    """Makes an empty folder on a local disk that only this user can change."""
    folder = Path(os.environ[LOCK_DIR])
    folder.mkdir(mode=0o755)
    return folder


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({VARIABLE: "/data/locks"}, Path("/data/locks")),
        ({VARIABLE: "/data/locks/", "XDG_STATE_HOME": "/opt/state"}, Path("/data/locks")),
        ({VARIABLE: "", "XDG_STATE_HOME": "/opt/state"}, Path("/opt/state/gpu_scheduler/locks")),
        ({"XDG_STATE_HOME": "/opt/state"}, Path("/opt/state/gpu_scheduler/locks")),
        ({"XDG_STATE_HOME": "/tmp/state"}, IN_VAR_TMP),
        ({"XDG_STATE_HOME": "/dev/shm"}, IN_VAR_TMP),
        ({"XDG_STATE_HOME": "/run/user/1000"}, IN_VAR_TMP),
        ({"XDG_STATE_HOME": "/var/run/state"}, IN_VAR_TMP),
    ],
)
def test_the_lock_folder_is_the_named_one_or_one_that_the_system_does_not_empty(
    env: Mapping[str, str], expected: Path
) -> None:
    assert find_lock_folder(env, ABSENT) == expected


def test_the_system_folder_precedes_the_users_own_even_if_it_cannot_be_used(place: Path) -> None:
    env = {"XDG_STATE_HOME": "/opt/state"}
    system = place / "system"
    assert find_lock_folder(env, system) == Path("/opt/state/gpu_scheduler/locks")
    system.symlink_to("nowhere")
    assert find_lock_folder(env, system) == system
    assert find_lock_folder(env | {VARIABLE: "/data/locks"}, system) == Path("/data/locks")


def test_a_home_folder_on_a_network_file_system_holds_no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_folder, "kind_of", lambda path: "nfs4" if path.startswith("/net/") else "ext4")
    assert find_lock_folder({"XDG_STATE_HOME": "/net/ann"}, ABSENT) == IN_VAR_TMP
    assert find_lock_folder({"XDG_STATE_HOME": "/ann"}, ABSENT) == Path("/ann/gpu_scheduler/locks")


def test_a_user_without_a_home_folder_has_the_locks_in_var_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_folder, "user_state_dir", lambda env: Path("~/.local/state"))
    assert find_lock_folder({}, ABSENT) == IN_VAR_TMP


def test_a_relative_path_in_the_variable_is_refused() -> None:
    with pytest.raises(UsageError, match=f"{VARIABLE}=locks is a relative path; give an absolute path"):
        find_lock_folder({VARIABLE: "locks"}, ABSENT)


def test_a_path_that_is_not_utf_8_is_refused_with_the_remedy() -> None:
    path = os.fsdecode(b"/data/\xff")
    with pytest.raises(UsageError) as raised:
        find_lock_folder({VARIABLE: path}, ABSENT)
    assert (
        str(raised.value)
        == f"{VARIABLE}=/data/\N{REPLACEMENT CHARACTER} is not valid UTF-8; name another folder"
    )
    assert find_lock_folder({"XDG_STATE_HOME": path}, ABSENT) == IN_VAR_TMP


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("/data/locks", "ext4", None),
        ("/data/locks", None, None),
        ("/data/locks", "nfs4", "is on nfs4, which several hosts may share"),
        ("/data/locks", "cifs", "is on cifs, which several hosts may share"),
        ("/data/locks", "lustre", "is on lustre, which several hosts may share"),
        ("/data/locks", "fuse.sshfs", "is on fuse.sshfs, which several hosts may share"),
        ("/tmp/locks", "ext4", "is in /tmp, which the system empties"),
        ("/tmp", "ext4", "is in /tmp, which the system empties"),
        ("/var/../tmp/locks", "ext4", "is in /tmp, which the system empties"),
        ("/tmpfiles/locks", "ext4", None),
        ("/dev/shm/locks", "tmpfs", "is in /dev/shm, which the system empties"),
        ("/run/user/1000/locks", "tmpfs", "is in /run, which the system empties"),
        ("/var/tmp/locks", "ext4", None),
    ],
)
def test_a_folder_that_is_shared_by_hosts_or_emptied_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: str, kind: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(lock_folder, "kind_of", lambda path: kind)
    problem = location_problem(Path(path))
    assert (problem and problem.text) == expected
    assert problem is None or problem.remedy.startswith(f"set {VARIABLE} to a folder on a local disk")


def test_a_link_into_an_emptied_folder_is_refused(place: Path, tmp_path: Path) -> None:
    (place / "link").symlink_to(tmp_path)
    problem = location_problem(place / "link" / "locks")
    assert problem is not None
    assert problem.text == f"is in {gettempdir()}, which the system empties"


def _link(path: Path) -> None:
    path.with_name("target").mkdir()
    path.symlink_to("target")


def _dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def _folder(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


REFUSED: list[tuple[Callable[[Path], None], str, str]] = [
    (_link, "is a symbolic link", f"set {VARIABLE} to the folder itself"),
    (_dangling_link, "is a symbolic link", f"set {VARIABLE} to the folder itself"),
    (Path.touch, "is not a folder", "remove it"),
    (os.mkfifo, "is not a folder", "remove it"),
    (_folder(0o777), "does not have the sticky bit", "run `chmod +t {}` as its owner"),
    (_folder(0o770), "does not have the sticky bit", "run `chmod +t {}` as its owner"),
    (_folder(0o702), "does not have the sticky bit", "run `chmod +t {}` as its owner"),
]


@pytest.mark.parametrize(("make", "text", "remedy"), REFUSED)
def test_a_planted_path_and_a_folder_that_others_can_change_are_refused_with_the_remedy(
    place: Path, make: Callable[[Path], None], text: str, remedy: str
) -> None:
    folder = place / "the locks"
    make(folder)
    problem = folder_problem(folder)
    assert problem is not None
    assert problem.text.startswith(text)
    assert problem.remedy.startswith(remedy.format(f"'{folder}'"))
    with pytest.raises(LockFolderError) as caught:
        prepare_lock_folder(folder)
    assert str(caught.value) == f"the lock folder {folder} {problem.text}\n{problem.remedy}"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1770, 0o3770])
def test_a_private_folder_and_one_with_the_sticky_bit_are_accepted_unchanged(place: Path, mode: int) -> None:
    folder = place / "locks"
    _folder(mode)(folder)
    prepare_lock_folder(folder)
    assert folder_problem(folder) is None
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_a_folder_of_another_user_needs_the_sticky_bit(place: Path, other_uid: int) -> None:
    folder = place / "locks"
    folder.mkdir()
    os.chown(folder, other_uid, other_uid)
    folder.chmod(0o755)
    problem = folder_problem(folder)
    assert problem is not None
    assert problem.text.startswith(f"belongs to {other_uid} and does not have the sticky bit")
    assert problem.remedy.startswith(f"ask {other_uid} to run `chmod 1777 {folder}`")
    folder.chmod(0o1777)
    assert folder_problem(folder) is None


def test_a_folder_below_one_that_everyone_can_change_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(LockFolderError, match="so every user can replace it") as caught:
        prepare_lock_folder(place / "locks")
    assert caught.value.problem.remedy.startswith(f"run `chmod +t {place}`")
    assert list(place.iterdir()) == []
    place.chmod(0o1777)
    prepare_lock_folder(place / "locks")


def test_a_folder_below_a_folder_or_link_of_another_user_is_refused(place: Path, other_uid: int) -> None:
    planted = place / "planted"
    planted.mkdir()
    os.chown(planted, other_uid, other_uid)
    with pytest.raises(LockFolderError, match=f"is in a folder of {other_uid}, who can replace it") as caught:
        prepare_lock_folder(planted / "locks")
    assert f"ask {other_uid} to run `install -d -m 1777 {planted}/locks`" in caught.value.problem.remedy
    assert list(planted.iterdir()) == []
    link = place / "link"
    link.symlink_to("own")
    (place / "own").mkdir()
    prepare_lock_folder(link / "locks")
    os.chown(link, other_uid, other_uid, follow_symlinks=False)
    problem = folder_problem(link / "locks")
    assert problem is not None
    assert problem.text == f"is behind a link that belongs to {other_uid}"
    # The owner of a shared folder may own the folder above it, too.
    (planted / "locks").mkdir()
    os.chown(planted / "locks", other_uid, other_uid)
    (planted / "locks").chmod(0o1777)
    assert folder_problem(planted / "locks") is None


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_missing_folder_and_its_parents_are_made_for_this_user_alone(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        prepare_lock_folder(place / "a" / "b" / "locks")
    finally:
        os.umask(before)
    for made in ("a", "a/b", "a/b/locks"):
        assert stat.S_IMODE((place / made).stat().st_mode) == 0o700


def test_a_parent_that_is_a_file_is_named(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(LockFolderError, match="Not a directory") as caught:
        prepare_lock_folder(place / "file" / "locks")
    assert str(caught.value).startswith(f"the lock folder {place}/file/locks cannot be used: ")


def test_the_folder_for_simulated_gpus_depends_on_the_real_path_of_the_simulation(place: Path) -> None:
    (place / "simulation").mkdir()
    (place / "link").symlink_to("simulation")
    one = simulated_folder(place, str(place / "simulation"))
    assert one == simulated_folder(place, str(place / "link"))
    assert one != simulated_folder(place, str(place / "other"))
    assert one.parent == place
    assert one.name.startswith("sim-")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1770])
def test_the_folder_for_simulated_gpus_is_as_open_as_the_lock_folder(place: Path, mode: int) -> None:
    place.chmod(mode)
    before = os.umask(0o022)
    os.umask(before)
    for _ in range(2):
        inner = prepare_simulated_folder(place, "/simulation")
        assert stat.S_IMODE(inner.stat().st_mode) == mode
    assert os.umask(before) == before


def test_a_planted_folder_for_simulated_gpus_is_refused(place: Path) -> None:
    simulated_folder(place, "/simulation").symlink_to(place)
    with pytest.raises(LockFolderError, match="is a symbolic link"):
        prepare_simulated_folder(place, "/simulation")


def test_the_folder_for_simulated_gpus_is_open_to_others_as_soon_as_it_exists(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    make = os.mkdir

    def make_and_look(path: Path, mode: int) -> None:
        make(path, mode)
        seen.append(stat.S_IMODE(os.stat(path).st_mode))

    place.chmod(0o1777)
    monkeypatch.setattr(os, "mkdir", make_and_look)
    prepare_simulated_folder(place, "/simulation")
    assert seen == [0o1777]
