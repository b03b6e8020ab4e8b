"""Programs that answer, fail, hang and flood."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpu_scheduler.asking import MOST, ask
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
def test_the_answer_and_the_code(script: str, code: int, text: str) -> None:
    said = ask(["sh", "-c", script])
    assert (said.code, said.text, said.good) == (code, text, code == 0)


def test_a_program_that_is_not_there() -> None:
    said = ask(["./none-such"])
    assert said.code is None
    assert "cannot be started: No such file" in said.why()


@pytest.mark.parametrize(
    "script", ["exec sleep 100", "sleep 100 & wait", "trap '' TERM INT; sleep 100; sleep 100"]
)
def test_one_that_hangs_is_killed_with_what_it_started(tmp_path: Path, script: str) -> None:
    began = time.monotonic()
    said = ask(["sh", "-c", f"echo $$ > {tmp_path}/pid; {script}"], timeout_s=0.4)
    assert time.monotonic() - began < 50  # and not the 100 that it would last
    assert said.code is None
    assert "did not answer within 0.4 s" in said.why()
    group = int((tmp_path / "pid").read_text())
    wait_for(lambda: not _members(group), "the end of the whole group")


def test_a_child_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    go = tmp_path / "go"
    said = ask(
        ["sh", "-c", f"setsid sh -c 'until [ -e {go} ]; do sleep 0.02; done' & echo done"], timeout_s=60
    )
    go.touch()  # the child lasts until here
    assert (said.code, said.text) == (0, "done\n")


def test_a_flood_is_cut() -> None:
    said = ask(["yes"], timeout_s=30)
    assert said.code is None
    assert MOST <= len(said.text) < 2 * MOST


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
