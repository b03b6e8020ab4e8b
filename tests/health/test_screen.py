"""Tests of the health checks of Screen with several versions, permissions and socket folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.health.doctor import screen, sockets


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, mode: int = 0o755) -> Path:
    """Makes a fake `screen`, which is the only program on PATH."""
    program = folder / "bin" / "screen"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(mode)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


@pytest.mark.parametrize(
    ("version", "mode", "grade", "part"),
    [
        ("Screen version 4.09.00 (GNU) 30-Jan-22", 0o755, "ok", "4.9.0"),
        ("Screen version 4.09.00 (GNU) 30-Jan-22", 0o4755, "warn", "chmod u-s"),
        ("Screen version 4.05.00 (GNU) 10-Dec-16", 0o755, "warn", "known vulnerability"),
        ("Screen version 4.05.00 (GNU) 10-Dec-16", 0o4755, "bad", "become root"),
        ("Screen version 5.0.0 (build on 2024-08-29)", 0o4755, "bad", "become root"),
        ("Screen version 5.0.1 (build on 2025-05-12)", 0o755, "ok", "5.0.1"),
        ("what?", 0o755, "bad", "reinstall it"),
    ],
)
def test_checks_the_version_and_the_set_uid_bit_of_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, mode: int, grade: str, part: str
) -> None:
    fake(tmp_path, monkeypatch, f"echo '{version}'", mode)
    monkeypatch.delenv("SCREENDIR", raising=False)
    finding, places = screen(lambda: None)
    assert (finding.grade, places.grade) == (grade, "ok")
    assert part in f"{finding.message} {finding.remedy}"


def test_warns_if_screen_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = screen(lambda: None)
    assert finding.grade == "warn"
    assert "apt-get install screen" in finding.remedy


def test_reports_an_unusable_socket_folder_as_start_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "echo 'Directory /run/screen/S-x must have mode 700.'; exit 1")
    finding = list(screen())[-1]
    assert finding.grade == "bad"
    assert "must have mode 700" in finding.message
    assert "SCREENDIR" in finding.remedy


def test_checks_the_socket_folder(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert sockets(str(folder)).grade == "bad"
    folder.mkdir(mode=0o700)
    assert sockets(str(folder)).grade == "ok"
    folder.chmod(0o755)
    assert (sockets(str(folder)).grade, sockets(str(folder)).remedy) == ("bad", f"chmod 700 {folder}")
    if os.geteuid() == 0:
        folder.chmod(0o700)
        os.chown(folder, 65534, 65534)
        assert "belongs to uid 65534" in sockets(str(folder)).message
