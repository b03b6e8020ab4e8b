"""The warnings of the `start` command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.cli import start
from gpu_scheduler.health import sessions
from gpu_scheduler.health.sessions import LogindSettings

KILLS = LogindSettings(kills=True, removes_ipc=False, lingers=False, scope="session")


def test_start_warns_if_logging_out_would_kill_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "read_settings", lambda user, timeout_s: KILLS)
    monkeypatch.setattr(sessions, "user_name", lambda: "ann")
    start._log_logout_warning()
    (record,) = caplog.records
    assert "KillUserProcesses=yes" in record.getMessage()
    assert "sudo loginctl enable-linger ann" in record.getMessage()
    start._print_background_pid(12, Path("/x/gpu_scheduler.log"))
    out, err = capsys.readouterr()
    assert out == "the scheduler is running in the background (pid 12); its log is /x/gpu_scheduler.log\n"
    assert err == f"gpu-scheduler: {record.getMessage()}\n"


@pytest.mark.parametrize("found", [None, "unknown", LogindSettings(False, False, False, scope="session")])
def test_start_does_not_warn_if_logging_out_is_harmless(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    found: LogindSettings | str | None,
) -> None:
    monkeypatch.setattr(sessions, "read_settings", lambda user, timeout_s: found)
    start._log_logout_warning()
    start._print_background_pid(12, Path("/x/gpu_scheduler.log"))
    assert (caplog.records, capsys.readouterr().err) == ([], "")
