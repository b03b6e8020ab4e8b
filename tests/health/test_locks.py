"""Tests of the health checks of the lock folder and of the claims in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.health import doctor
from gpu_scheduler.runner.locks import Wanted, claim_gpus
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.system import lock_folder
from gpu_scheduler.system.gpu_claims import LOCK_FOLDER_KEY
from gpu_scheduler.system.lock_folder import VARIABLE, prepare_simulated_folder
from gpu_scheduler.system.safe_file import name_of_user
from tests.isolation import LOCK_DIR
from tests.users import User

ABSENT = Path("/var/tmp/absent/locks")
UID = os.geteuid()
#: The data directory of a scheduler that was never started.
HOME = DataDir.of("/absent/state.json")


@pytest.fixture
def place() -> Path:
    """Makes an empty folder on a local disk that only this user can change."""
    folder = Path(os.environ[LOCK_DIR])
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def holder() -> Iterator[User]:
    user = User(UID)
    yield user
    user.kill()


def found_in(
    folder: Path | str, home: DataDir = HOME, system: Path = ABSENT, *, simulated: bool = False
) -> dict[str, Finding]:
    """Returns the findings about a folder that the variable names, by check."""
    found = list(doctor.gpu_locks(home, simulated, {VARIABLE: str(folder)}, system))
    assert len({finding.name for finding in found}) == len(found)
    return {finding.name: finding for finding in found}


def test_a_missing_folder_is_private_and_is_not_made(place: Path) -> None:
    found = list(doctor.gpu_locks(HOME, False, {"XDG_STATE_HOME": str(place)}, ABSENT))
    assert [(finding.name, finding.grade) for finding in found] == [
        ("lock folder", "ok"),
        ("GPU claims", "ok"),
    ]
    assert found[0].message == (
        f"{place}/gpu_scheduler/locks (not created yet); only your own programs see each other's claims;"
        " while no job runs, an administrator can make a folder for all users:"
        f" `sudo install -d -m 1777 {ABSENT}`"
    )
    assert found[1].message == "none"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (0o700, "only your own programs see each other's claims"),
        (0o755, "only your own programs see each other's claims"),
        (0o1777, "shared by all users"),
        (0o1770, "shared by the users of its group"),
    ],
)
def test_the_check_tells_who_shares_the_folder(place: Path, mode: int, text: str) -> None:
    place.chmod(mode)
    finding = found_in(place)["lock folder"]
    assert finding.grade == "ok"
    assert finding.message.startswith(f"{place}, named by {VARIABLE}")
    assert text in finding.message
    assert finding.message.endswith(f"` and unset {VARIABLE}") == ("shared" not in text)
    [system, _] = doctor.gpu_locks(HOME, False, {}, place)
    assert (system.grade, system.message.startswith(str(place)), text in system.message) == ("ok", True, True)


def test_the_check_warns_if_the_variable_hides_the_folder_of_all_users(place: Path) -> None:
    (place / "system").mkdir()
    (place / "own").mkdir()
    finding = found_in(place / "own", system=place / "system")["lock folder"]
    assert finding.grade == "warn"
    assert f"programs without this variable use {place}/system" in finding.message
    assert finding.remedy == f"unset {VARIABLE}"
    assert found_in(place / "system", system=place / "system")["lock folder"].grade == "ok"


def test_the_check_warns_if_the_running_scheduler_uses_another_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    home = DataDir.of(str(tmp_path / "s.json"))
    store = Store(home, create=True)
    store.db.set_meta(LOCK_FOLDER_KEY, "/elsewhere")
    assert found_in(place, home)["lock folder"].grade == "ok"
    monkeypatch.setattr(doctor, "scheduler_pid", lambda path: 1)
    finding = found_in(place, home)["lock folder"]
    assert finding.grade == "warn"
    assert finding.message == f"{place}, but the lock files of the running scheduler are in /elsewhere"
    store.db.set_meta(LOCK_FOLDER_KEY, str(place))
    assert found_in(place, home)["lock folder"].grade == "ok"


def test_a_folder_that_cannot_be_used_is_bad_and_its_claims_are_not_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    place.chmod(0o777)
    cases: dict[Path | str, str] = {
        "locks": f"{VARIABLE}=locks is a relative path",
        place: f"{place} does not have the sticky bit",
        place / "file": f"{place}/file is in a folder without the sticky bit",
        place / "file" / "locks": f"{place}/file/locks cannot be made",
        "/tmp/locks": "/tmp/locks is in /tmp, which the system empties",
    }
    for folder, text in cases.items():
        found = found_in(folder)
        assert list(found) == ["lock folder"]
        assert found["lock folder"].grade == "bad"
        assert found["lock folder"].message.startswith(text)
        assert found["lock folder"].remedy
    monkeypatch.setattr(lock_folder, "kind_of", lambda path: "nfs4")
    assert "is on nfs4, which several hosts may share" in found_in(place)["lock folder"].message


def test_the_claims_and_their_holders_are_listed(place: Path, holder: User) -> None:
    assert found_in(place)["GPU claims"].message == "none"
    other = User(UID)
    holder.call(claim_gpus, str(place), [Wanted("GPU-1", 8000, 24576), Wanted("GPU-2", None, 24576)])
    other.call(claim_gpus, str(place), [Wanted("GPU-1", 100, 24576)])
    name = name_of_user(UID)
    finding = found_in(place)["GPU claims"]
    assert (finding.grade, finding.message) == (
        "ok",
        f"3 claims in {place}: GPU-1: pid {holder.pid} of {name} (8000 MiB), pid {other.pid} of {name}"
        f" (100 MiB); GPU-2: pid {holder.pid} of {name} (the whole GPU)",
    )
    other.kill()
    assert "2 claims" in found_in(place)["GPU claims"].message
    # Reading the claims releases none of them.
    assert "2 claims" in found_in(place)["GPU claims"].message


def test_the_claims_on_simulated_gpus_are_those_of_the_same_simulation(place: Path, holder: User) -> None:
    inner = prepare_simulated_folder(place, str(HOME.simulation))
    holder.call(claim_gpus, str(inner), [Wanted("SIM-0", None, 100)])
    assert "SIM-0: pid" in found_in(place, simulated=True)["GPU claims"].message
    other = DataDir.of("/absent/other.json")
    assert found_in(place, other, simulated=True)["GPU claims"].message == "none"
    assert found_in(place)["GPU claims"].message == "none"


def test_an_unusable_lock_file_is_bad(place: Path) -> None:
    (place / "notes").symlink_to("nowhere")
    (place / "lost+found").mkdir()
    assert found_in(place)["GPU claims"].grade == "ok"
    path = place / "GPU-1"
    path.symlink_to("nowhere")
    finding = found_in(place)["GPU claims"]
    assert (finding.grade, finding.message) == ("bad", f"{path} is a symbolic link")
    assert finding.remedy == "its owner or root must remove it while no program uses this GPU"
    path.unlink()
    path.mkdir()
    assert found_in(place)["GPU claims"].message == f"{path} is not a regular file"
    path.rmdir()
    path.touch()
    path.chmod(0o600)
    assert found_in(place)["GPU claims"].grade == "ok"
    place.chmod(0o1777)
    finding = found_in(place)["GPU claims"]
    assert finding.message == f"{path} has mode 600, so not every user can claim this GPU"
    assert (finding.grade, finding.remedy) == ("bad", f"its owner must run `chmod 1666 {path}`")


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_lock_file_that_this_user_cannot_write_to_is_bad(place: Path, other_uid: int, mode: int) -> None:
    (place / "GPU-1").touch()
    (place / "GPU-1").chmod(mode)
    place.chmod(0o1777)
    user = User(other_uid)
    finding = user.call(found_in, place)["GPU claims"]
    user.kill()
    assert finding.message == f"{place}/GPU-1 is not writable for this user"
    assert (finding.grade, finding.remedy) == ("bad", "its owner must run chmod 1666 on it")
