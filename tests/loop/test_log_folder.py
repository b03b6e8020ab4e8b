"""Tests that every job log is a new file, in a folder that belongs to this user."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from gpu_scheduler.attempts.job_logs import LogFolder, create_log


def test_job_logs_created_at_the_same_moment_are_separate_files(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6)
    logs = [create_log(tmp_path, 7, when) for _ in range(3)]
    assert len(set(logs)) == 3
    assert {log.stat().st_mode & 0o777 for log in logs} == {0o600}
    assert {log.name[: len(logs[0].name)] for log in logs} == {logs[0].name}


def test_does_not_write_a_log_through_a_link_that_has_its_name(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6)
    first = create_log(tmp_path, 7, when)
    first.rename(tmp_path / "kept")
    first.symlink_to(tmp_path / "kept")
    assert create_log(tmp_path, 7, when) != first
    assert (tmp_path / "kept").read_bytes() == b""


def test_makes_the_default_log_folder_private(tmp_path: Path) -> None:
    default = tmp_path / "logs"
    default.mkdir()
    logs = LogFolder((default, tmp_path / "logs_me"), os.geteuid())
    for mode in (0o755, 0o750, 0o705):
        default.chmod(mode)
        assert (logs.create(), default.stat().st_mode & 0o777) == (default, 0o700)
    default.chmod(0o755)
    assert LogFolder.from_option(str(default)).create() == default
    assert default.stat().st_mode & 0o777 == 0o755  # A folder that --log-dir names keeps its mode.


def test_recreates_the_folder_named_by_log_dir_even_if_another_user_owned_it_before(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    chosen = tmp_path / "logs"
    chosen.mkdir()
    os.chown(chosen, 12345, 12345)
    logs = LogFolder.from_json(LogFolder.from_option(str(chosen)).to_json())
    assert logs.create() == chosen
    chosen.rmdir()
    assert logs.create() == chosen
    assert chosen.stat().st_uid == os.geteuid()
    assert logs.create() == chosen  # The folder is still accepted after the scheduler has created it.
    os.chown(chosen, 12346, 12346)
    with pytest.raises(PermissionError):
        logs.create()
