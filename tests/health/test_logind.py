"""Tests of the findings about logging out, with settings from logind's answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.health import sessions
from gpu_scheduler.health.sessions import LogindSettings, check

LINGER = "sudo loginctl enable-linger ann"
RUN = "systemd-run --user --scope"


@pytest.mark.parametrize(
    ("found", "grades", "parts"),
    [
        (None, ["ok"], []),
        ("it failed", ["warn"], [LINGER, RUN, "unknown", "may be killed", "it failed"]),
        (LogindSettings(False, False, False, scope="session"), ["ok", "ok"], ["not for you"]),
        (LogindSettings(True, False, False, scope="session"), ["warn", "ok"], [LINGER, RUN, "are killed"]),
        (LogindSettings(True, False, False, scope=None), ["warn", "ok"], [LINGER, RUN, "are killed"]),
        # Lingering does not protect processes that are in the session's scope.
        (LogindSettings(True, False, True, scope="session"), ["warn", "ok"], [RUN]),
        (LogindSettings(True, False, True, scope="manager"), ["ok", "ok"], []),
        (LogindSettings(True, False, False, scope="manager"), ["warn", "ok"], [LINGER]),
        (LogindSettings(False, False, False, scope="manager"), ["warn", "ok"], [LINGER]),
        (LogindSettings(False, True, False, scope="session"), ["ok", "warn"], [LINGER, "shared memory"]),
        (LogindSettings(False, True, True, scope="session"), ["ok", "ok"], []),
    ],
)
def test_warns_about_processes_that_a_logout_ends(
    found: LogindSettings | str | None, grades: list[str], parts: list[str]
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
    return tmp_path


def answer(folder: Path, *properties: str, user: str = "exit 1") -> None:
    """Makes a `loginctl` that shows these properties of logind, and runs a script when asked about ann."""
    shown = "\\n".join(properties)
    fake(folder, "loginctl", f"if [ \"$2\" = ann ]; then {user}; else printf '{shown}\\n'; fi")


@pytest.mark.parametrize(
    ("kills", "excluded", "only", "expected"),
    [
        ("yes", "root", "", True),
        ("no", "root", "", False),
        ("yes", "root ann", "", False),
        ("yes", "root", "bob", False),
        ("yes", "root", "ann bob", True),
    ],
)
def test_reads_whether_a_logout_kills_the_processes_of_the_user(
    programs: Path, kills: str, excluded: str, only: str, expected: bool
) -> None:
    answer(
        programs, f"KillOnlyUsers={only}", f"KillExcludeUsers={excluded}", f"KillUserProcesses={kills}",
        "RemoveIPC=no", user="echo Linger=yes",
    )  # fmt: skip
    found = sessions.read_settings("ann", booted=programs)
    assert isinstance(found, LogindSettings)
    assert (found.kills, found.removes_ipc, found.lingers) == (expected, False, True)


def test_root_is_excluded_if_logind_lists_no_excluded_users(programs: Path) -> None:
    answer(programs, "KillOnlyUsers=", "KillExcludeUsers=", "KillUserProcesses=yes", "RemoveIPC=yes")
    found = [sessions.read_settings(user, booted=programs) for user in ("root", "ann")]
    assert [isinstance(one, LogindSettings) and one.kills for one in found] == [False, True]


def test_a_user_whom_logind_does_not_know_does_not_linger(programs: Path) -> None:
    answer(programs, "KillUserProcesses=yes", "RemoveIPC=yes", user="echo 'not logged in' >&2; exit 1")
    found = sessions.read_settings("ann", booted=programs)
    assert isinstance(found, LogindSettings)
    assert (found.kills, found.removes_ipc, found.lingers) == (True, True, False)


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "sleep 100"])
def test_the_settings_are_unknown_if_logind_does_not_answer(
    programs: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake(programs, "loginctl", script)
    assert isinstance(sessions.read_settings("ann", timeout_s=0.5, booted=programs), str)
    monkeypatch.setattr(sessions, "read_settings", lambda user, timeout_s: "unknown")
    assert sessions.logout_warning(0.5) is None  # `start` warns about known problems only


def test_the_settings_are_unknown_without_loginctl(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    found = sessions.read_settings("ann", booted=programs)
    assert found == "`loginctl show-user` failed: loginctl cannot be started: No such file or directory"


def test_reads_no_logind_settings_without_systemd(programs: Path) -> None:
    answer(programs, "KillUserProcesses=yes", "RemoveIPC=yes")
    assert sessions.read_settings("ann", booted=programs / "none") is None
