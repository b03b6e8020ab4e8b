"""Tests of the health checks of the scheduler's files and folders in every state."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_scheduler.attempts.job_logs import LogFolder
from gpu_scheduler.core.model.finding import Finding
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.health import doctor
from gpu_scheduler.store import backups, moved_or_copied
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store


@pytest.fixture
def home(tmp_path: Path) -> DataDir:
    """Returns the data directory for a state file in a private folder. Neither of them exists yet."""
    tmp_path.chmod(0o700)
    return DataDir.of(str(tmp_path / "s.json"))


def logs(path: Path) -> LogFolder:
    return LogFolder((path,), os.geteuid())


def findings_by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_accepts_missing_files_and_does_not_create_them(home: DataDir, tmp_path: Path) -> None:
    found = findings_by_check([*doctor.folders(home, logs(tmp_path / "logs")), *doctor.store_findings(home)])
    assert {finding.grade for finding in found.values()} == {"ok"}
    assert "not created yet" in found["log folder"].message
    assert "not created yet" in found["store"].message
    assert "none yet" in found["database"].message
    assert "does not exist" in doctor.state_file(home).message
    assert doctor.scheduler(home).message == "not running"
    assert list(tmp_path.iterdir()) == []


def test_checks_the_integrity_of_the_store(home: DataDir) -> None:
    Store(home, create=True).close()
    found = findings_by_check(list(doctor.store_findings(home)))
    assert found["database"].grade == "ok"
    assert "intact" in found["database"].message


def test_warns_if_a_store_with_simulated_gpus_is_used_with_real_gpus(home: DataDir) -> None:
    assert list(doctor.gpu_kind(home, True)) == []
    store = Store(home, create=True)
    store.insert_job(JobSpec("command", "true", "/", command="true"), "test")
    with store.db.transaction() as db:
        db.execute("INSERT INTO gpu (uuid, idx, name) VALUES ('SIM-0', 0, 'Simulated 24 GiB')")
    assert list(doctor.gpu_kind(home, True)) == []
    [finding] = doctor.gpu_kind(home, False)
    assert (finding.grade, "1 job recorded with simulated GPUs" in finding.message) == ("warn", True)
    assert "--keep-history" in finding.remedy


def test_reports_a_damaged_store(home: DataDir) -> None:
    Store(home, create=True).close()
    content = bytearray(home.database.read_bytes())
    content[4096:8192] = os.urandom(4096)
    home.database.write_bytes(content)
    found = findings_by_check(list(doctor.store_findings(home)))["database"]
    assert found.grade == "bad"
    assert "start --restore" in found.remedy
    home.database.write_bytes(b"no database" * 1000)
    assert findings_by_check(list(doctor.store_findings(home)))["database"].grade == "bad"


def test_checks_a_store_while_its_scheduler_holds_the_lock(home: DataDir) -> None:
    store = Store(home, create=True)
    writer = sqlite3.connect(home.database)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert findings_by_check(list(doctor.store_findings(home)))["database"].grade == "ok"
    finally:
        writer.close()
        store.close()


def test_reports_a_copied_store(home: DataDir, tmp_path: Path) -> None:
    with closing(Store(home, create=True)) as store:
        moved_or_copied.adopt_folder(store)
    shutil.copytree(home.folder, tmp_path / "copy" / home.folder.name)
    found = doctor.scheduler(DataDir.of(str(tmp_path / "copy" / home.state_file.name)))
    assert (found.grade, f"is a copy of {home.folder}" in found.message) == ("bad", True)
    assert "start --fresh" in found.remedy


def test_reports_a_log_folder_that_is_a_link(home: DataDir, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs").symlink_to("elsewhere")
    found = findings_by_check(list(doctor.folders(home, logs(tmp_path / "logs"))))["log folder"]
    assert found.grade == "bad"
    assert "is a link" in found.message
    assert "--log-dir" in found.remedy


def test_warns_about_low_disk_space(home: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, grade in ((doctor._LOW_SPACE_BYTES, "ok"), (doctor._LOW_SPACE_BYTES - 1, "warn")):
        left = SimpleNamespace(total=1 << 40, used=0, free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda path, left=left: left)
        found = findings_by_check(list(doctor.folders(home, logs(tmp_path / "logs"))))
        assert (found["store"].grade, found["log folder"].grade) == (grade, grade)
    assert found["store"].remedy == "free some space there"


def test_warns_about_a_folder_that_other_users_can_write_to(home: DataDir, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    folder.chmod(0o777)
    found = findings_by_check(list(doctor.folders(home, logs(folder))))["log folder"]
    assert (found.grade, found.remedy) == ("warn", f"chmod go-w {folder}")


@pytest.mark.parametrize(
    ("content", "mode", "grade", "part"),
    [
        ("{}", 0o644, "ok", "JSON"),
        ("{", 0o644, "warn", "not JSON"),
        ("[]", 0o644, "warn", "object"),
        ("{}", 0o666, "bad", "everyone"),
        ("{}", 0o664, "warn", "its group"),
    ],
)
def test_checks_the_state_file(home: DataDir, content: str, mode: int, grade: str, part: str) -> None:
    home.state_file.write_text(content)
    home.state_file.chmod(mode)
    found = doctor.state_file(home)
    assert found.grade == grade
    assert part in found.message
    assert home.state_file.read_text() == content


def test_checks_the_jobs_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    tmp_path.chmod(0o700)
    assert doctor.jobs_file("").grade == "ok"
    assert "waits for it" in doctor.jobs_file(str(path)).message
    path.write_text("true\n")
    path.chmod(0o644)
    assert doctor.jobs_file(str(path)).grade == "ok"
    path.chmod(0o666)
    found = doctor.jobs_file(str(path))
    assert (found.grade, found.message) == ("bad", f"{path} is writable by everyone")
    assert found.remedy == "`chmod o-w` it, or `start --trust-files`"
    assert doctor.jobs_file(str(path), trust=True).grade == "warn"
    path.chmod(0o660)
    assert doctor.jobs_file(str(path)).grade == "warn"
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    assert f"{tmp_path} is writable by everyone" in doctor.jobs_file(str(path)).message
    tmp_path.chmod(0o1777)
    assert doctor.jobs_file(str(path)).grade == "ok"
    tmp_path.chmod(0o700)
    assert doctor.jobs_file(str(tmp_path)).grade == "bad"
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert "belongs to another user (uid 65534)" in doctor.jobs_file(str(path)).message
        assert doctor.jobs_file(str(path), trust=True).grade == "warn"


def test_checks_the_llm_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    assert doctor.llm_config(None).grade == "ok"
    assert doctor.llm_config("none.json").grade == "bad"
    (tmp_path / "llm_config.json").write_text('{"models": []}')
    assert doctor.llm_config(None).grade == "bad"
    (tmp_path / "llm_config.json").write_text("{}")
    (tmp_path / "llm_config.json").chmod(0o644)
    assert doctor.llm_config(None).grade == "ok"


def test_reports_the_age_of_the_newest_backup(home: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(home, create=True)
    assert "none yet" in findings_by_check(list(doctor.store_findings(home)))["backups"].message
    made = backups.make_backup(store.db.connection, home)
    at = time.mktime((2026, 11, 20, 10, 15, 0, 0, 0, -1))
    os.utime(made.path, (at, at))
    says = f"1 backup in {home.backups}; the newest is from 2026-11-20 10:15"
    for days, is_up, grade, expected in (
        (1, True, "ok", says),
        (3, False, "ok", says),
        (3, True, "warn", f"{says}, although a scheduler is running"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda days=days: at + days * 86_400)
            patch.setattr(doctor, "scheduler_pid", lambda path, is_up=is_up: 1 if is_up else None)
            found = findings_by_check(list(doctor.store_findings(home)))["backups"]
        assert (found.grade, found.message) == (grade, expected)


def test_reports_a_lost_store_and_attempts_missing_from_the_store(home: DataDir) -> None:
    store = Store(home, create=True)
    assert "attempts" not in findings_by_check(list(doctor.store_findings(home)))
    for name in ("3/1-0123abcd", "4/1-0123abcd", "4/2-89abcdef", "4/other"):
        (home.runs / name).mkdir(parents=True)
    found = findings_by_check(list(doctor.store_findings(home)))["attempts"]
    assert (found.grade, found.message.split(":")[0]) == (
        "bad",
        f"3 attempt folders in {home.runs} (jobs 3, 4) are missing from the store,"
        " which seems to be out of date",
    )
    assert "`start --restore`" in found.remedy
    store.close()
    for path in home.folder.glob("scheduler.db*"):
        path.unlink()
    for content in (None, b""):
        if content is not None:
            home.database.write_bytes(content)
        [found] = [one for one in doctor.store_findings(home) if one.check != "file system"]
        assert (found.check, found.grade, "is missing or empty" in found.message) == ("database", "bad", True)
        assert "`start --restore`" in found.remedy
