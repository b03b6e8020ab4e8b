"""Tests of the findings about logging out, with settings from logind's answers and configuration files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.health.doctor import logind
from gpu_scheduler.health.doctor.logind import LogindSettings, check

LINGER = "sudo loginctl enable-linger ann"
RUN = "systemd-run --user --scope"


@pytest.mark.parametrize(
    ("found", "grades", "parts"),
    [
        (None, ["ok"], []),
        (LogindSettings(False, False, False, scope="session"), ["ok", "ok"], []),
        (LogindSettings(True, False, False, scope="session"), ["warn", "ok"], [LINGER, RUN, "are killed"]),
        # Lingering does not protect processes that are in the session's scope.
        (LogindSettings(True, False, True, scope="session"), ["warn", "ok"], [RUN]),
        (LogindSettings(True, False, True, scope="manager"), ["ok", "ok"], []),
        (LogindSettings(True, False, False, scope="manager"), ["warn", "ok"], [LINGER]),
        (LogindSettings(False, False, False, scope="manager"), ["warn", "ok"], [LINGER]),
        (
            LogindSettings(True, False, False, kill_excluded_users=("root", "ann"), scope="session"),
            ["ok", "ok"],
            [],
        ),
        (LogindSettings(True, False, False, kill_only_users=("bob",), scope="session"), ["ok", "ok"], []),
        (
            LogindSettings(True, False, False, kill_only_users=("ann",), scope="session"),
            ["warn", "ok"],
            [LINGER],
        ),
        (LogindSettings(False, True, False, scope="session"), ["ok", "warn"], [LINGER, "shared memory"]),
        (LogindSettings(False, None, False, scope="session"), ["ok", "warn"], [LINGER]),
        (LogindSettings(False, True, True, scope="session"), ["ok", "ok"], []),
        (LogindSettings(None, False, None, scope=None), ["warn", "ok"], [RUN, "unknown", "may be killed"]),
        (LogindSettings(None, False, None, kill_excluded_users=("ann",)), ["ok", "ok"], ["not apply to you"]),
    ],
)
def test_warns_about_processes_that_a_logout_ends(
    found: LogindSettings | None, grades: list[str], parts: list[str]
) -> None:
    findings = list(check(found, "ann", 1000))
    assert [finding.grade for finding in findings] == grades
    text = " ".join(f"{one.message} {one.remedy}" for one in findings)
    assert all(part in text for part in parts), text
    assert all(bool(one.remedy) is (one.grade != "ok") for one in findings)


def test_does_not_warn_a_system_user_whose_shared_memory_logind_keeps() -> None:
    findings = list(check(LogindSettings(False, True, False), "svc", 999))
    assert [finding.grade for finding in findings] == ["ok", "ok"]


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder for fake programs, which is first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(logind, "_CONFIG_FOLDERS", (str(tmp_path / "usr"), str(tmp_path / "etc")))
    monkeypatch.setattr(logind, "_LINGERING", tmp_path / "linger")
    return tmp_path


ANSWER = """printf 'b true\\nb false\\nas 1 "root"\\nas 2 "ann" "bob"\\n'"""


def test_reads_the_settings_from_logind(programs: Path) -> None:
    fake(programs, "busctl", f'[ "$1 $4" = "get-property org.freedesktop.login1.Manager" ] && {ANSWER}')
    fake(programs, "loginctl", '[ "$2" = ann ] && echo Linger=yes')
    found = logind.read_settings("ann", booted=programs)
    assert found is not None
    assert (found.kills_user_processes, found.removes_ipc, found.lingers) == (True, False, True)
    assert (found.kill_excluded_users, found.kill_only_users) == (("root",), ("ann", "bob"))


def test_reads_lingering_from_a_file_if_logind_does_not_know_the_user(programs: Path) -> None:
    fake(programs, "busctl", ANSWER)
    fake(programs, "loginctl", "echo 'User ID 1000 is not logged in or lingering' >&2; exit 1")
    found = logind.read_settings("ann", booted=programs)
    assert found is not None
    assert found.lingers is False
    (programs / "linger").mkdir()
    (programs / "linger" / "ann").touch()
    found = logind.read_settings("ann", booted=programs)
    assert found is not None
    assert found.lingers is True


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "sleep 100"])
def test_reads_the_configuration_files_if_logind_does_not_answer(programs: Path, script: str) -> None:
    fake(programs, "busctl", script)
    fake(programs, "loginctl", script)
    (programs / "usr").mkdir()
    (programs / "usr" / "logind.conf").write_text("[Login]\n#KillUserProcesses=no\n#RemoveIPC=yes\n")
    dropped = programs / "etc" / "logind.conf.d"
    dropped.mkdir(parents=True)
    (dropped / "a.conf").write_text("[Login]\nKillUserProcesses = yes\nKillExcludeUsers=root ann\n")
    found = logind.read_settings("ann", timeout_s=0.5, booted=programs)
    assert found is not None
    assert (found.kills_user_processes, found.removes_ipc, found.kill_excluded_users) == (
        True,
        True,
        ("root", "ann"),
    )


def test_reads_no_logind_settings_without_systemd(programs: Path) -> None:
    fake(programs, "busctl", ANSWER)
    assert logind.read_settings("ann", booted=programs / "none") is None
