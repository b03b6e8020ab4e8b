"""Tests of running programs that answer, fail, hang or print too much."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpu_scheduler.system.run_program import MAX_OUTPUT_BYTES, run_program
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        ("echo out; echo err >&2", 0, "out\nerr\n"),
        ("echo no; exit 3", 3, "no\n"),
        ("exec >&- 2>&-; sleep 0.1; exit 4", 4, ""),
        ("kill -9 $$", -9, ""),
        ("read line; echo [$line]", 0, "[]\n"),
        ("printf '\\377'", 0, "\ufffd"),
    ],
)
def test_returns_output_and_exit_code(script: str, code: int, text: str) -> None:
    result = run_program(["sh", "-c", script])
    assert (result.exit_code, result.output, result.succeeded) == (code, text, code == 0)


def test_reports_a_missing_program() -> None:
    result = run_program(["./none-such"])
    assert result.exit_code is None
    assert "cannot be started: No such file" in result.failure_reason()


@pytest.mark.parametrize(
    "script", ["exec sleep 100", "sleep 100 & wait", "trap '' TERM INT; sleep 100; sleep 100"]
)
def test_kills_a_hanging_program_with_its_children(tmp_path: Path, script: str) -> None:
    began = time.monotonic()
    result = run_program(["sh", "-c", f"echo $$ > {tmp_path}/pid; {script}"], timeout_s=0.4)
    assert time.monotonic() - began < 50  # otherwise the program would run for 100 s
    assert result.exit_code is None
    assert "did not answer within 0.4 s" in result.failure_reason()
    group = int((tmp_path / "pid").read_text())
    wait_for(lambda: not _members(group), "the end of the whole group")


def test_does_not_wait_for_a_child_that_keeps_the_output_open(tmp_path: Path) -> None:
    go, ended = tmp_path / "go", tmp_path / "ended"
    child = f"until [ -e {go} ]; do sleep 0.02; done; touch {ended}"
    result = run_program(["sh", "-c", f"setsid sh -c '{child}' & echo done"], timeout_s=60)
    go.touch()
    assert (result.exit_code, result.output) == (0, "done\n")
    wait_for(ended.exists, "the end of the child")


def test_truncates_endless_output() -> None:
    result = run_program(["yes"], timeout_s=30)
    assert result.exit_code is None
    assert MAX_OUTPUT_BYTES <= len(result.output) < 2 * MAX_OUTPUT_BYTES


def _members(group: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(path.parent.name)
    return found
