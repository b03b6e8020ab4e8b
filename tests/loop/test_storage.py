"""Health issues of the files and folders that we write to, and the scheduler's reaction."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler import joblogs, storage, storagewatch
from gpu_scheduler.clock import Clock
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.trouble import Trouble
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.joblogs import LogFolder
from gpu_scheduler.mainlog import MainLog
from gpu_scheduler.runner.protocol import prepare
from gpu_scheduler.storage import refusal, troubles
from gpu_scheduler.storagewatch import StorageWatch
from gpu_scheduler.store.home import Home
from tests.loop.rig import Rig


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.of(str(tmp_path / "s.json"))
    made.create()
    return made


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user who is subject to permissions; root becomes nobody for the test."""
    # $TMPDIR may be private to root.
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


def said(home: Home, logs: LogFolder | None = None) -> list[str]:
    return [str(issue) for issue in troubles(home, logs)]


def test_writable_folders_have_no_issue(home: Home, tmp_path: Path) -> None:
    logs = LogFolder.of(str(tmp_path / "logs"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert said(home, logs) == []
    (tmp_path / "logs").rmdir()
    assert said(home, logs) == []  # the next log creates it
    assert sorted(path.name for path in tmp_path.rglob("*")) == [n for n in before if n != "logs"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is on a full disk: free space there"),
        (errno.EDQUOT, "is over your quota: free space there"),
        (errno.EROFS, "is on a read-only file system: mount it for writing"),
        (errno.EIO, "cannot be written (Input/output error): check"),
    ],
)
def test_every_error_has_a_message_and_a_remedy(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    monkeypatch.setattr(storage, "_cannot_hold", lambda folder: OSError(number, os.strerror(number)))
    [issue] = troubles(home, None)
    assert str(issue).startswith(f"store {home.folder} {words}")
    assert issue.stops
    assert refusal(home, OSError("text")) == f"{issue} (text)"


def test_uses_the_file_systems_free_space_if_unnamed_files_are_unsupported(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert said(home) == []
    full = os.statvfs_result((4096, 4096, 1000, 15, 15, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert said(home) == [f"store {home.folder} is on a full disk: free space there"]


def test_reports_missing_permissions(unprivileged: Path) -> None:
    home = Home.of(str(unprivileged / "s.json"))
    home.create()
    home.state_file.touch()
    home.state_file.chmod(0)
    home.log.touch(mode=0o400)
    assert said(home) == [
        f"state file {home.state_file} is not readable: chmod u+rw {home.state_file}",
        f"main log {home.log} is not writable: chmod u+rw {home.log}",
    ]
    unprivileged.chmod(0o500)
    [issue] = troubles(home, None)
    assert (issue.problem, issue.remedy, issue.stops) == (
        "is not writable", f"chmod u+rwx {unprivileged}", False,
    )  # fmt: skip
    with pytest.raises(
        SchedulerError, match=r"cannot create .*Permission denied; choose another --state-file"
    ):
        Home.of(str(unprivileged / "other.json")).create()
    home.runs.chmod(0o500)
    [first, _] = troubles(home, None)
    assert (first.what, first.remedy, first.stops) == ("store", f"chmod u+rwx {home.runs}", True)


def test_checks_the_folder_of_a_linked_state_files_target(unprivileged: Path) -> None:
    home = Home.of(str(unprivileged / "s.json"))
    home.create()
    target = unprivileged / "elsewhere" / "s.json"
    target.parent.mkdir()
    target.touch()
    home.state_file.symlink_to(target)
    assert said(home) == []
    target.parent.chmod(0o500)
    assert said(home) == [f"state file {target} is not writable: chmod u+rwx {target.parent}"]
    target.parent.chmod(0o700)


@pytest.mark.parametrize("what", ["state file", "main log"])
def test_reports_a_folder_in_place_of_a_file(home: Home, what: str) -> None:
    path = home.state_file if what == "state file" else home.log
    path.mkdir()
    assert said(home) == [f"{what} {path} is not a regular file: remove it, or move it aside"]


def _link(path: Path) -> None:
    path.symlink_to(path.parent)


def _file(path: Path) -> None:
    path.touch()


def _foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path.mkdir()
    os.chown(path, 12345, 12345)


PLANTED: list[tuple[Callable[[Path], None], str]] = [
    (_link, "is a link"),
    (_file, "is not a folder"),
    (_foreign, "belongs to another user (uid 12345)"),
]


@pytest.mark.parametrize(("plant", "problem"), PLANTED)
def test_leaves_an_occupied_log_folder_alone(
    home: Home, tmp_path: Path, plant: Callable[[Path], None], problem: str
) -> None:
    chosen = tmp_path / "logs"
    logs = LogFolder.from_json(LogFolder.of(str(chosen)).to_json())
    chosen.rmdir()
    plant(chosen)
    [issue] = troubles(home, logs)
    assert issue == Trouble(
        "log folder", str(chosen), problem, "remove it, or name a folder that you own with --log-dir", True
    )
    with pytest.raises(PermissionError):
        logs.make()
    chosen.rmdir() if plant is _foreign else chosen.unlink()
    assert (said(home, logs), logs.make()) == ([], chosen)


@pytest.mark.parametrize("plant", [plant for plant, _ in PLANTED])
def test_does_not_use_what_is_planted_between_check_and_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)  # whatever the umask
    default = tmp_path / "logs"
    logs = LogFolder((default, tmp_path / "logs_ada"), os.geteuid())
    looked = LogFolder.usable

    def then_plant(self: LogFolder) -> Path | None:
        usable = looked(self)
        if not os.path.lexists(default):
            default.symlink_to(theirs) if plant is _link else plant(default)
        return usable

    monkeypatch.setattr(LogFolder, "usable", then_plant)
    with pytest.raises(OSError, match="logs"):
        logs.make()
    assert theirs.stat().st_mode & 0o777 == 0o755
    assert logs.make() == tmp_path / "logs_ada"


@pytest.mark.parametrize(("plant", "problem"), PLANTED)
def test_falls_back_to_a_log_folder_named_after_the_user(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None], problem: str
) -> None:
    monkeypatch.setattr(joblogs, "DEFAULT", tmp_path / "logs")
    monkeypatch.setenv("LOGNAME", "ada")
    logs = LogFolder.of(None)
    plant(tmp_path / "logs")
    [issue] = troubles(home, logs)
    assert str(issue).startswith(
        f"log folder {tmp_path}/logs {problem}: job logs go to {tmp_path}/logs_ada; remove it"
    )
    assert not issue.stops
    assert logs.make() == tmp_path / "logs_ada"
    (tmp_path / "logs_ada").rmdir()
    _link(tmp_path / "logs_ada")
    assert [issue.stops for issue in troubles(home, logs)] == [True, True]


def test_reports_a_link_among_the_parents_of_the_log_folder(home: Home, tmp_path: Path) -> None:
    logs = LogFolder.of(str(tmp_path / "a" / "logs"))
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert [t.problem for t in troubles(home, logs)] == ["is reached through a link"]
    assert LogFolder.of(str(tmp_path / "a" / "logs")).paths == (
        tmp_path / "b" / "logs",
    )  # at the start a link is allowed


class HandClock(Clock):
    """A clock that the test advances."""

    boot = 1000.0

    def now(self) -> Now:
        """Returns the time that the test set."""
        return Now(0.0, self.boot, "boot")


def test_a_launch_on_a_full_disk_does_not_count_as_a_failed_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storagewatch, "BLAME_S", 0.02)
    rig = Rig(tmp_path)
    watch = rig.loop.storage = StorageWatch(rig.store.home, LogFolder.of(str(tmp_path / "logs")), Clock())
    left = 4

    def full_at_first(*words: object) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "spec.json")
        prepare(*words)  # type: ignore[arg-type]

    monkeypatch.setattr("gpu_scheduler.launching.prepare", full_at_first)
    job = rig.add("exit 7", share=500)
    rig.tick()
    assert left == 3
    assert watch.trouble() == "spec.json: No space left on device: free space there"
    other = rig.add("exit 0", share=500)
    rig.tick()
    [reason] = rig.store.waiting().values()
    assert "No space left on device" in reason
    row = rig.ends(job)
    assert (row["exit_code"], row["launch_failures"], len(rig.store.attempts(job))) == (7, 0, 1)
    assert rig.ends(other)["exit_code"] == 0
    assert len(list((tmp_path / "logs").iterdir())) == 2  # failed launches leave no log
    assert caplog.text.count("spec.json: No space left on device: free space there") == 1


def test_backs_off_after_storage_failures_that_no_check_finds(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    watch = StorageWatch(home, LogFolder((home.folder,), os.geteuid()), clock)

    def waits() -> list[float]:
        """Returns the seconds without launches after each of the next failures."""
        found = []
        for _ in range(9):
            assert watch.is_to_blame(OSError(errno.EDQUOT, "over quota", f"/logs/{clock.boot}.log"))
            since = clock.boot
            while watch.trouble(at_once=True) is not None:
                assert watch.trouble() == "/logs: over quota: free space there"
                clock.boot += 0.25
            found.append(clock.boot - since)
        return found

    series = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert waits() == series
    assert caplog.text.count("over quota") == 1
    clock.boot += 100.0
    assert waits() == series
    assert caplog.text.count("over quota") == 2
    assert not watch.is_to_blame(OSError(errno.ENOENT, "no such file"))
    assert not watch.is_to_blame(None)


def test_a_launch_failure_of_the_job_itself_counts(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.loop.storage = StorageWatch(rig.store.home, LogFolder.of(str(tmp_path / "logs")), Clock())
    row = rig.ends(rig.add("x", conda="none"))
    assert (row["outcome"], row["launch_failures"]) == ("failed", 3)


def test_an_action_that_fails_does_not_block_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    jobs = [rig.add("sleep 60", share=500) for _ in range(2)]
    assert len({rig.runner(job) for job in jobs}) == 2
    (rig.attempt_folder(jobs[0]) / f".stop.{os.getpid()}").mkdir()
    for job in jobs:
        rig.store.wish("cancel", str(job), grace_s=0.0)
    with pytest.raises(IsADirectoryError):
        rig.tick()
    stops = [(rig.attempt_folder(job) / "stop").exists() for job in jobs]
    assert stops == [False, True]
    (rig.attempt_folder(jobs[0]) / f".stop.{os.getpid()}").rmdir()
    assert [rig.ends(job)["outcome"] for job in jobs] == ["cancelled", "cancelled"]


def test_logs_when_an_issue_begins_and_ends(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    for level in ("error", "info"):
        monkeypatch.setattr(storagewatch.log, level, lambda text, *values: messages.append(text % values))
    watch = StorageWatch(home, LogFolder((home.folder,), os.geteuid()), Clock())
    assert watch.trouble(at_once=True) is None
    with monkeypatch.context() as full:
        full.setattr(storage, "_cannot_hold", lambda folder: OSError(errno.ENOSPC, "full"))
        assert [watch.trouble(at_once=True) for _ in range(3)] == 3 * [
            f"log folder {home.folder} is on a full disk: free space there"
        ]
    assert watch.trouble(at_once=True) is None
    assert sorted(messages) == [
        f"log folder {home.folder} can be used again",
        f"log folder {home.folder} is on a full disk: free space there; until then no new job starts, "
        "running jobs continue",
        f"store {home.folder} can be used again",
        f"store {home.folder} is on a full disk: free space there; until then no new job starts, "
        "running jobs continue",
    ]


@pytest.fixture
def main_log(tmp_path: Path) -> Iterator[tuple[Path, list[str], Callable[[str], None]]]:
    """The path of a main log, the messages about it, and a function that writes a line."""
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
        f"the main log {path} can be written again; 2 lines missing",
    ]
    assert capsys.readouterr().err == ""


def test_the_main_log_is_private_with_any_umask(
    main_log: tuple[Path, list[str], Callable[[str], None]],
) -> None:
    path, _, write = main_log
    umask = os.umask(0)
    try:
        write("one")
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
