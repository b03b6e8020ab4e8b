"""Tests of health issues with files and folders, and of how the scheduler reacts to them."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler.attempts import job_logs as log_folder
from gpu_scheduler.attempts.folder import prepare
from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.finding import HealthIssue
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.daemon.log_output import MainLog
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.health import storage, storage_monitor
from gpu_scheduler.health.storage import describe_store_error, find_issues
from gpu_scheduler.health.storage_monitor import StorageMonitor
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.pending_groups import wait_reasons
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.system import safe_file
from tests.loop.rig import Rig


@pytest.fixture
def home(tmp_path: Path) -> DataDir:
    made = DataDir.of(str(tmp_path / "s.json"))
    made.create()
    return made


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of the user who runs the test.

    If this is root, the test becomes `nobody`, so that permissions apply.
    """
    # Only root might have access to $TMPDIR.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        was = os.geteuid()
        if was == 0:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if was == 0:
                os.seteuid(0)
            os.chmod(name, 0o700)


def issue_texts(home: DataDir, logs: LogFolder | None = None) -> list[str]:
    return [str(issue) for issue in find_issues(home, logs)]


def test_reports_no_issue_for_writable_folders(home: DataDir, tmp_path: Path) -> None:
    logs = LogFolder.from_option(str(tmp_path / "logs"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert issue_texts(home, logs) == []
    (tmp_path / "logs").rmdir()
    assert issue_texts(home, logs) == []  # The folder will be created together with the next log.
    assert sorted(path.name for path in tmp_path.rglob("*")) == [n for n in before if n != "logs"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is on a full disk: free some space there"),
        (errno.EDQUOT, "is over your quota: free some space there"),
        (errno.EROFS, "is on a read-only file system: remount it for writing"),
        (errno.EIO, "cannot be written (Input/output error): check"),
    ],
)
def test_every_write_error_has_a_message_and_a_remedy(
    home: DataDir, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    monkeypatch.setattr(storage, "_write_error", lambda folder: OSError(number, os.strerror(number)))
    [issue] = find_issues(home, None)
    assert str(issue).startswith(f"store {home.folder} {words}")
    assert issue.blocks_starts
    assert describe_store_error(home, OSError("text")) == f"{issue} (text)"


def test_checks_free_space_on_a_file_system_without_support_for_unnamed_files(
    home: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert issue_texts(home) == []
    full = os.statvfs_result((4096, 4096, 1000, 15, 15, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert issue_texts(home) == [f"store {home.folder} is on a full disk: free some space there"]


def test_reports_missing_permissions_for_files_and_folders(unprivileged: Path) -> None:
    home = DataDir.of(str(unprivileged / "s.json"))
    home.create()
    home.state_file.touch()
    home.state_file.chmod(0)
    home.main_log.touch(mode=0o400)
    assert issue_texts(home) == [
        f"state file {home.state_file} is not readable: chmod u+rw {home.state_file}",
        f"main log {home.main_log} is not writable: chmod u+rw {home.main_log}",
    ]
    unprivileged.chmod(0o500)
    [issue] = find_issues(home, None)
    assert (issue.problem, issue.remedy, issue.blocks_starts) == (
        "is not writable", f"chmod u+rwx {unprivileged}", False,
    )  # fmt: skip
    with pytest.raises(
        SchedulerError, match=r"cannot create .*Permission denied; choose another --state-file"
    ):
        DataDir.of(str(unprivileged / "other.json")).create()
    home.runs.chmod(0o500)
    [first, _] = find_issues(home, None)
    assert (first.subject, first.remedy, first.blocks_starts) == ("store", f"chmod u+rwx {home.runs}", True)


def test_checks_the_folder_that_contains_the_target_of_a_linked_state_file(unprivileged: Path) -> None:
    home = DataDir.of(str(unprivileged / "s.json"))
    home.create()
    target = unprivileged / "elsewhere" / "s.json"
    target.parent.mkdir()
    target.touch()
    home.state_file.symlink_to(target)
    assert issue_texts(home) == []
    target.parent.chmod(0o500)
    assert issue_texts(home) == [f"state file {target} is not writable: chmod u+rwx {target.parent}"]
    target.parent.chmod(0o700)


@pytest.mark.parametrize("what", ["state file", "main log"])
def test_reports_a_folder_in_place_of_a_file(home: DataDir, what: str) -> None:
    path = home.state_file if what == "state file" else home.main_log
    path.mkdir()
    assert issue_texts(home) == [f"{what} {path} is not a regular file: remove it, or move it aside"]


def _plant_link(path: Path) -> None:
    path.symlink_to(path.parent)


def _plant_file(path: Path) -> None:
    path.touch()


def _plant_folder_of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path.mkdir()
    os.chown(path, 12345, 12345)


PLANTED_OBSTACLES: list[tuple[Callable[[Path], None], str]] = [
    (_plant_link, "is a link"),
    (_plant_file, "is not a folder"),
    (_plant_folder_of_another_user, "belongs to another user (uid 12345)"),
]


@pytest.mark.parametrize(("plant", "problem"), PLANTED_OBSTACLES)
def test_reports_a_log_folder_that_something_else_has_replaced(
    home: DataDir, tmp_path: Path, plant: Callable[[Path], None], problem: str
) -> None:
    chosen = tmp_path / "logs"
    logs = LogFolder.from_json(LogFolder.from_option(str(chosen)).to_json())
    chosen.rmdir()
    plant(chosen)
    [issue] = find_issues(home, logs)
    assert issue == HealthIssue(
        "log folder",
        str(chosen),
        problem,
        "remove it, or name a folder that you own with --log-dir",
        True,
    )
    with pytest.raises(PermissionError):
        logs.create()
    chosen.rmdir() if plant is _plant_folder_of_another_user else chosen.unlink()
    assert (issue_texts(home, logs), logs.create()) == ([], chosen)


@pytest.mark.parametrize("plant", [plant for plant, _ in PLANTED_OBSTACLES])
def test_does_not_use_a_file_that_was_planted_after_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)  # This sets the mode regardless of the umask.
    default = tmp_path / "logs"
    logs = LogFolder((default, tmp_path / "logs_ada"), os.geteuid())
    looked = LogFolder.usable_path

    def then_plant(self: LogFolder) -> Path | None:
        usable = looked(self)
        if not os.path.lexists(default):
            default.symlink_to(theirs) if plant is _plant_link else plant(default)
        return usable

    monkeypatch.setattr(LogFolder, "usable_path", then_plant)
    with pytest.raises(OSError, match="logs"):
        logs.create()
    assert theirs.stat().st_mode & 0o777 == 0o755
    assert logs.create() == tmp_path / "logs_ada"


@pytest.mark.parametrize(("plant", "problem"), PLANTED_OBSTACLES)
def test_falls_back_to_a_log_folder_named_after_the_user(
    home: DataDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path], None],
    problem: str,
) -> None:
    monkeypatch.setattr(log_folder, "DEFAULT_FOLDER", tmp_path / "logs")
    monkeypatch.setenv("LOGNAME", "ada")
    logs = LogFolder.from_option(None)
    plant(tmp_path / "logs")
    [issue] = find_issues(home, logs)
    assert str(issue).startswith(
        f"log folder {tmp_path}/logs {problem}: remove it, or name a folder that you own with --log-dir;"
        f" until then, job logs go to {tmp_path}/logs_ada"
    )
    assert not issue.blocks_starts
    assert logs.create() == tmp_path / "logs_ada"
    (tmp_path / "logs_ada").rmdir()
    _plant_link(tmp_path / "logs_ada")
    assert [issue.blocks_starts for issue in find_issues(home, logs)] == [True, True]


def test_reports_a_symbolic_link_among_the_parent_folders_of_the_log_folder(
    home: DataDir, tmp_path: Path
) -> None:
    logs = LogFolder.from_option(str(tmp_path / "a" / "logs"))
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert [t.problem for t in find_issues(home, logs)] == ["is reached through a link"]
    # A link is allowed when the scheduler starts.
    assert LogFolder.from_option(str(tmp_path / "a" / "logs")).paths == (tmp_path / "b" / "logs",)


class ManualClock(Clock):
    """A clock that only the test advances."""

    boot = 1000.0

    def now(self) -> Now:
        """Returns the time that the test set."""
        return Now(0.0, self.boot, "boot")


def test_a_launch_prevented_by_a_full_disk_does_not_count_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage_monitor, "BACKOFF_S", 0.2)
    rig = Rig(tmp_path)
    watch = rig.loop.storage = StorageMonitor(
        rig.store.data_dir, LogFolder.from_option(str(tmp_path / "logs")), Clock()
    )
    left = 4

    def full_at_first(*words: object) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "spec.json")
        prepare(*words)  # type: ignore[arg-type]

    monkeypatch.setattr("gpu_scheduler.attempts.launch.prepare", full_at_first)
    job = rig.add_job("exit 7", share=500)
    rig.tick()
    assert left == 3
    assert watch.issue() == "spec.json: No space left on device: free some space there"
    other = rig.add_job("exit 0", share=500)
    rig.tick()
    [reason] = wait_reasons(rig.store).values()
    assert "No space left on device" in reason.cause
    row = rig.tick_until_ended(job)
    assert (row.exit_code, row.launch_failures, len(rig.store.attempts(job))) == (7, 0, 1)
    assert rig.tick_until_ended(other).exit_code == 0
    assert len(list((tmp_path / "logs").iterdir())) == 2  # A failed launch does not leave a log.
    assert caplog.text.count("spec.json: No space left on device: free some space there") == 1


def test_a_disk_that_has_become_full_since_the_last_check_opens_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, clock = Rig(tmp_path), ManualClock()
    logs = LogFolder.from_option(str(tmp_path / "logs"))
    watch = rig.loop.storage = StorageMonitor(rig.store.data_dir, logs, clock)
    assert watch.issue() is None
    monkeypatch.setattr(storage, "_write_error", lambda folder: OSError(errno.ENOSPC, "full"))
    job = rig.add_job("exit 0")
    rig.tick()
    assert rig.store.attempts(job) == []
    [reason] = wait_reasons(rig.store).values()
    assert "is on a full disk" in reason.cause


def test_launches_pause_after_storage_failures_that_the_checks_do_not_detect(
    home: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    watch = StorageMonitor(home, LogFolder((home.folder,), os.geteuid()), clock)

    def waits() -> list[float]:
        """Returns how many seconds pass without launches after each of nine failures."""
        found = []
        for _ in range(9):
            assert watch.is_cause_of(OSError(errno.EDQUOT, "over quota", f"/logs/{clock.boot}.log"))
            since = clock.boot
            while watch.issue(fresh=True) is not None:
                assert watch.issue() == "/logs: over quota: free some space there"
                clock.boot += 0.25
            found.append(clock.boot - since)
        return found

    series = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert waits() == series
    assert caplog.text.count("over quota") == 1
    clock.boot += 100.0
    assert waits() == series
    assert caplog.text.count("over quota") == 2
    assert not watch.is_cause_of(OSError(errno.ENOENT, "no such file"))
    assert not watch.is_cause_of(None)


def test_a_launch_failure_caused_by_the_job_itself_counts_as_a_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.loop.storage = StorageMonitor(
        rig.store.data_dir, LogFolder.from_option(str(tmp_path / "logs")), Clock()
    )
    row = rig.tick_until_ended(rig.add_job("x", conda="none"))
    assert (row.outcome, row.launch_failures) == ("failed", 3)


def test_a_failed_action_does_not_block_the_other_actions_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    jobs = [rig.add_job("sleep 60", share=500) for _ in range(2)]
    assert len({rig.runner_pid(job) for job in jobs}) == 2
    bad, write = rig.attempt_folder(jobs[0]), safe_file.replace_file

    def replace_file(path: Path, data: bytes) -> None:
        if path.parent == bad:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write(path, data)

    monkeypatch.setattr("gpu_scheduler.attempts.folder.replace_file", replace_file)
    for job in jobs:
        add_request(rig.store, "cancel", str(job), grace_s=0.0)
    with pytest.raises(PermissionError):
        rig.tick()
    stops = [(rig.attempt_folder(job) / "stop").exists() for job in jobs]
    assert stops == [False, True]
    monkeypatch.undo()
    assert [rig.tick_until_ended(job).outcome for job in jobs] == ["cancelled", "cancelled"]


def test_logs_the_beginning_and_the_end_of_a_health_issue(
    home: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    for level in ("error", "info"):
        monkeypatch.setattr(storage_monitor.log, level, lambda text, *values: messages.append(text % values))
    watch = StorageMonitor(home, LogFolder((home.folder,), os.geteuid()), Clock())
    assert watch.issue(fresh=True) is None
    with monkeypatch.context() as full:
        full.setattr(storage, "_write_error", lambda folder: OSError(errno.ENOSPC, "full"))
        assert [watch.issue(fresh=True) for _ in range(3)] == 3 * [
            f"log folder {home.folder} is on a full disk: free some space there"
        ]
    assert watch.issue(fresh=True) is None
    assert sorted(messages) == [
        f"log folder {home.folder} can be used again",
        f"log folder {home.folder} is on a full disk: free some space there; until then no new job starts, "
        "but running jobs continue",
        f"store {home.folder} can be used again",
        f"store {home.folder} is on a full disk: free some space there; until then no new job starts, "
        "but running jobs continue",
    ]


@pytest.fixture
def main_log(tmp_path: Path) -> Iterator[tuple[Path, list[str], Callable[[str], None]]]:
    """Yields the path of a main log, the messages about it, and a function that writes a line to it."""
    messages: list[str] = []
    handler = MainLog(tmp_path / "main.log", messages.append)

    def write(text: str) -> None:
        handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, text, None, None))

    yield tmp_path / "main.log", messages, write
    handler.close()


def test_recreates_a_main_log_that_was_removed_or_moved(
    main_log: tuple[Path, list[str], Callable[[str], None]],
) -> None:
    path, messages, write = main_log
    write("one")
    path.unlink()
    write("two")
    path.rename(path.with_name("old"))
    write("three")
    assert (path.read_text(), path.with_name("old").read_text(), messages) == ("three\n", "two\n", [])


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda path: path.symlink_to("/dev/full"), "is a link; remove it"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.mkfifo(path), "No such device or address"),
    ],
)
def test_reports_an_unwritable_main_log_once_and_retries(
    main_log: tuple[Path, list[str], Callable[[str], None]],
    capsys: pytest.CaptureFixture[str],
    plant: Callable[[Path], None],
    problem: str,
) -> None:
    path, messages, write = main_log
    write("before")
    path.unlink()
    plant(path)
    write("lost")
    write("lost")
    path.rmdir() if path.is_dir() else path.unlink()
    write("after")
    assert path.read_text() == "after\n"
    assert messages == [
        f"the main log {path} cannot be written: {problem}; the scheduler continues",
        f"the main log {path} can be written again; 2 lines are missing",
    ]
    assert capsys.readouterr().err == ""


def test_the_main_log_is_private_regardless_of_the_umask(
    main_log: tuple[Path, list[str], Callable[[str], None]],
) -> None:
    path, _, write = main_log
    umask = os.umask(0)
    try:
        write("one")
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
