"""Where job logs go: files that are new, and folders that are ours."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from gpu_scheduler.joblogs import LogFolder, new_log


def test_two_logs_of_one_moment_are_two_files(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6)
    logs = [new_log(tmp_path, 7, when) for _ in range(3)]
    assert len(set(logs)) == 3
    assert {log.stat().st_mode & 0o777 for log in logs} == {0o600}
    assert {log.name[: len(logs[0].name)] for log in logs} == {logs[0].name}


def test_what_is_planted_in_the_place_of_a_log_is_left_alone(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 6)
    first = new_log(tmp_path, 7, when)
    first.rename(tmp_path / "kept")
    first.symlink_to(tmp_path / "kept")
    assert new_log(tmp_path, 7, when) != first
    assert (tmp_path / "kept").read_bytes() == b""


def test_a_default_folder_that_others_may_read_becomes_private(tmp_path: Path) -> None:
    default = tmp_path / "logs"
    default.mkdir()
    default.chmod(0o755)
    logs = LogFolder((default, tmp_path / "logs_me"), os.geteuid())
    assert (logs.make(), default.stat().st_mode & 0o777) == (default, 0o700)
    default.chmod(0o755)
    assert LogFolder.of(str(default)).make() == default
    assert default.stat().st_mode & 0o777 == 0o755  # a chosen one is as its user wants it


def test_a_chosen_folder_of_another_user_may_be_remade_by_us(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    chosen = tmp_path / "logs"
    chosen.mkdir()
    os.chown(chosen, 12345, 12345)
    logs = LogFolder.from_json(LogFolder.of(str(chosen)).to_json())
    assert logs.make() == chosen
    chosen.rmdir()
    assert logs.make() == chosen
    assert chosen.stat().st_uid == os.geteuid()
    assert logs.make() == chosen  # also when we have made it
    os.chown(chosen, 12346, 12346)
    with pytest.raises(PermissionError):
        logs.make()
