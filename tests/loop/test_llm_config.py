"""Tests that a scheduler reports an unreadable llm_config.json once and keeps the last valid version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.errors import UsageError
from gpu_scheduler.intake.llm_config import LlmConfigFile, LlmConfigText

pytestmark = pytest.mark.timeout(20)


def _large(path: Path) -> None:
    path.write_bytes(b'{"models": "' + b"x" * 17_000_000 + b'"}')


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "is not a regular file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "folder": (lambda path: path.mkdir(), "is not a regular file"),
    "too large": (_large, "is larger than 16 MiB"),
    "nested": (lambda path: path.write_text("[" * 200_000), "nested more than 100 levels deep"),
    "GBK": (
        lambda path: path.write_bytes('{"models": {"中": 1}}'.encode("gbk")),
        "line 1, column 14: byte 0xd6 is not UTF-8",
    ),
    "twice": (
        lambda path: path.write_text('{"models": {"a": 1, "a": 0.5}}'),
        'the name "a" occurs twice in one object',
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_the_last_valid_llm_config_is_used_while_the_file_is_invalid(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, why = WRONG[kind]
    path = tmp_path / "llm_config.json"
    path.write_text('{"models": {"a": 0.5}}')
    file = LlmConfigFile(str(path))
    assert file.refresh()
    good = file.current
    path.unlink()
    make(path)
    for _ in range(3):
        assert not file.refresh()
    assert file.current == good
    assert caplog.text.count(why) == 1
    path.rename(tmp_path / "away")
    path.write_text('{"models": {"a": 0.25}}')
    assert file.refresh()
    assert file.current != good


@pytest.mark.parametrize("kind", WRONG)
def test_start_and_calibrate_reject_an_invalid_llm_config(tmp_path: Path, kind: str) -> None:
    make, why = WRONG[kind]
    path = tmp_path / "llm_config.json"
    make(path)
    for read in (LlmConfigFile, lambda path: LlmConfigText.read(path, must_exist=False)):
        with pytest.raises(UsageError) as caught:
            read(str(path))
        assert f"llm_config.json {why}; " in str(caught.value).replace("json: ", "json ")


def test_reads_an_llm_config_again_after_it_was_removed_and_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "llm_config.json"
    path.write_text('{"models": {"a": 0.5}}')
    file = LlmConfigFile(str(path))
    file.refresh()
    path.unlink()
    for _ in range(2):
        assert not file.refresh()
    assert caplog.text.count("was removed; the last valid version remains in use") == 1
    path.write_text('{"models": {"a": 0.25}}')
    assert file.refresh()
