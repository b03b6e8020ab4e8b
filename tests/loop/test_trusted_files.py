"""Tests that `start` refuses files that other users may change, and that a running scheduler ignores them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts.launch import Launcher
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.daemon import log_output
from gpu_scheduler.daemon.service import check_files, check_paths
from gpu_scheduler.errors import NotOwnerError, UsageError
from gpu_scheduler.health.storage import find_issues
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.intake.state_file_watcher import StateFileWatcher
from gpu_scheduler.store import state_file
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import open_jobs
from gpu_scheduler.store.jobs_files import jobs_files
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.scheduler_lock import InstanceLock, Ownership
from gpu_scheduler.store.state_file import edit_pauses_in_file
from tests.loop.rig import Rig

FILES = ("jobs.txt", "llm_config.json", "s.json", "gpu_scheduler.log")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder with all the files that `start` uses, and changes to it."""
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text("{}" if name.endswith(".json") else "")
    return tmp_path


def checked(*, trust: bool = False) -> list[str]:
    """Returns the warnings that `start` gives about its files."""
    options = StartOptions(state_file="s.json", log_dir="logs", trust_files=trust)
    check_paths(options)
    return check_files(options, DataDir.of("s.json"))


def refused() -> str:
    with pytest.raises(UsageError) as caught:
        checked()
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_start_refuses_a_world_writable_file_without_trust_files(folder: Path, name: str) -> None:
    assert checked() == []
    (folder / name).chmod(0o646)
    message = refused()
    assert f"{name}: is writable by everyone; `chmod o-w` it, or `start --trust-files`" in message
    assert checked(trust=True) == [
        f"{folder / name} is writable by other users, so they can run commands as you"
    ]


@pytest.mark.parametrize("name", FILES)
def test_start_refuses_a_file_of_another_user_without_trust_files(
    folder: Path, name: str, other_uid: int
) -> None:
    os.chown(folder / name, other_uid, other_uid)
    remedy = "use a file that you own"
    if name == "gpu_scheduler.log":
        remedy = "choose a --state-file in a folder that you own, which then has its own log"
    message = f"{name}: belongs to another user (uid {other_uid}); {remedy}, or `start --trust-files`"
    assert message in refused()
    assert checked(trust=True) == []


def test_start_reports_all_group_writable_files_in_one_warning(folder: Path) -> None:
    for name in ("jobs.txt", "s.json"):
        (folder / name).chmod(0o664)
    both = f"{folder / 'jobs.txt'}, {folder / 's.json'}"
    assert checked() == [f"{both} are writable by their groups, so other users can run commands as you"]


def test_start_refuses_a_linked_main_log_even_with_trust_files(folder: Path) -> None:
    log, precious = folder / "gpu_scheduler.log", folder / "precious"
    precious.write_text("precious")
    log.unlink()
    log.symlink_to(precious)
    assert refused() == f"{log}: is a link; remove it"
    with pytest.raises(UsageError, match="is a link"):
        checked(trust=True)
    with pytest.raises(OSError, match="is a link"):
        log_output.open_main_log(log, trust=True)
    assert precious.read_text() == "precious"


def test_start_accepts_links_that_belong_to_the_user_and_point_to_the_users_files(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    for name in FILES[:3]:
        (folder / name).rename(folder / "elsewhere" / name)
        (folder / name).symlink_to(folder / "elsewhere" / name)
    assert checked() == []
    (folder / "elsewhere" / "jobs.txt").chmod(0o666)
    assert "is writable by everyone" in refused()


def test_start_warns_about_a_world_writable_folder(folder: Path) -> None:
    folder.chmod(0o777)
    assert checked() == [
        f"{folder} is writable by everyone, so any user can replace the files in it: `chmod o-w` it"
    ]
    folder.chmod(0o1777)
    assert checked() == []


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with_gpus = Rig(tmp_path)
    yield with_gpus
    with_gpus.store.close()


def test_does_not_read_a_jobs_file_that_became_world_writable(folder: Path, rig: Rig) -> None:
    path = folder / "jobs.txt"
    path.write_text("true\nfalse\n")
    watch = JobsFileWatcher(rig.store, str(path), None)
    watch.check(0.0)
    path.write_text("echo planted\n")
    path.chmod(0o666)
    for now in (100.0, 200.0, 300.0):
        watch.check(now)
    assert [row.text for row in open_jobs(rig.store, (JobState.QUEUED,))] == ["true", "false"]
    assert open_requests(rig.store) == []
    problem = "is writable by everyone; `chmod o-w` it, or `start --trust-files`"
    assert [row.problem for row in jobs_files(rig.store)] == [problem]
    trusting = JobsFileWatcher(rig.store, str(path), None, trust=True)
    for now in (400.0, 500.0):
        trusting.check(now)
    assert [row.problem for row in jobs_files(rig.store)] == [None]
    assert "echo planted" in [row.text for row in open_jobs(rig.store, (JobState.QUEUED,))]


def test_does_not_reread_an_llm_config_that_became_world_writable(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "llm_config.json"
    path.write_text('{"models": {"m": 0.5}}')
    file = LlmConfigFile(None)
    file.refresh()
    before = file.current
    path.write_text('{"models": {"m": 0.1}}')
    path.chmod(0o666)
    assert [file.refresh(), file.refresh()] == [False, False]
    assert file.current is before
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
        f"{path} is writable by everyone; `chmod o-w` it, or `start --trust-files`; the last"
        " valid version remains in use"
    ]


def test_neither_reads_nor_writes_a_state_file_that_became_world_writable(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    home = rig.store.data_dir
    watch = StateFileWatcher(rig.store)
    watch.start(0.0)
    watch.write(0.0)
    planted = state_file.with_pauses({}, [0], True)
    home.state_file.write_bytes(planted)
    home.state_file.chmod(0o666)
    for now in (10.0, 20.0):
        watch.check(now)
        watch.write(now)
    assert home.state_file.read_bytes() == planted
    assert open_requests(rig.store) == []
    assert len([r for r in caplog.records if "is writable by everyone" in r.getMessage()]) == 1
    [trouble] = find_issues(home, None)
    assert (trouble.subject, trouble.blocks_starts) == ("state file", False)
    assert str(trouble).endswith("is writable by everyone: `chmod o-w` it, or `start --trust-files`")
    assert find_issues(home, None, trust=True) == ()


def test_does_not_write_a_main_log_owned_by_another_user(folder: Path, other_uid: int) -> None:
    path = folder / "gpu_scheduler.log"
    os.chown(path, other_uid, other_uid)
    with pytest.raises(PermissionError, match="belongs to another user"):
        log_output.open_main_log(path, trust=False)
    os.close(log_output.open_main_log(path, trust=True))


def test_does_not_launch_from_a_folder_that_replaced_the_data_directory(folder: Path, tmp_path: Path) -> None:
    home = DataDir.of(str(tmp_path / "state.json"))

    def exchange(step: str) -> None:
        if step == "folder made":
            shutil.copytree(home.folder, tmp_path / "his")
            home.folder.rename(tmp_path / "away")
            (tmp_path / "his").rename(home.folder)

    rig = Rig(tmp_path)
    lock = InstanceLock(home.lock)
    assert lock.acquire()
    launcher = rig.launcher
    assert isinstance(launcher, Launcher)
    launcher._failpoint, launcher.check_owner = exchange, Ownership(home, lock).check
    try:
        rig.add_job("touch ran")
        with pytest.raises(NotOwnerError, match="was removed or replaced"):
            rig.tick()
    finally:
        lock.release()
        rig.store.close()
    assert list(home.runs.rglob("command.sh"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("leads_to", ["precious.json", "new.json"])
def test_does_not_write_the_state_file_through_a_link_of_another_user(
    rig: Rig, tmp_path: Path, other_uid: int, leads_to: str
) -> None:
    link, precious = rig.store.data_dir.state_file, tmp_path / "precious.json"
    precious.write_text("[not ours")
    link.symlink_to(leads_to)
    os.chown(link, other_uid, other_uid, follow_symlinks=False)
    watch = StateFileWatcher(rig.store)
    watch.start(0.0)
    for now in (10.0, 20.0, 30.0):
        watch.check(now)
        watch.write(now)
    with pytest.raises(PermissionError, match="is a link that belongs to another user"):
        edit_pauses_in_file(link, [0], True)
    assert precious.read_text() == "[not ours"
    assert not (tmp_path / "new.json").exists()
    assert not (tmp_path / "precious.json.bad").exists()


def test_a_file_planted_at_the_temporary_path_does_not_become_the_state_file(
    tmp_path: Path, other_uid: int
) -> None:
    path = tmp_path / "s.json"
    planted = state_file.displaced_path(path)
    planted.touch()
    os.chown(planted, other_uid, other_uid)
    with pytest.raises(PermissionError, match="belongs to another user"):
        state_file.exchange(path, b"{}")
    assert not path.exists()
