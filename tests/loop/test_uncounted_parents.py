"""Tests that a job does not start while the line of a parent does not count yet or is malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.test_dependencies import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Returns a file in which job 2 waits for job 1."""
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path)
    desk.save("[name=a] true 1\n[after=a] true 2\ntrue 3\n")
    assert desk.startable() == [1, 3]
    return desk


def finish(desk: Desk, job_id: int) -> None:
    """Ends a job as soon as the file has been read."""
    desk.wait(0)
    desk.finish(job_id)


def test_the_edited_line_of_a_parent(desk: Desk) -> None:
    desk.save("[name=a] true one\n[after=a] true 2\ntrue 3\n", quiet_s=0)
    finish(desk, 1)
    assert desk.startable() == [3]
    desk.wait(3)
    assert sorted(desk.startable()) == [3, 4]
    desk.wait(10)
    assert desk.parents() == {2: "4 a"}


def test_an_inserted_line_of_a_parent(desk: Desk) -> None:
    desk.save("[name=a] true 1\n[name=a] true 4\n[after=a] true 2\ntrue 3\n", quiet_s=0)
    finish(desk, 1)
    assert desk.startable() == [3]
    desk.wait(3)
    assert desk.parents() == {2: "1 a, 4 a"}


def test_an_appended_line_of_a_parent_without_a_line_ending(desk: Desk) -> None:
    desk.append("[name=a] true 4")
    finish(desk, 1)
    assert desk.startable() == [3]
    desk.wait(6)
    assert desk.parents() == {2: "1 a, 4 a"}


def test_a_malformed_line_of_a_parent_until_it_is_corrected(desk: Desk) -> None:
    desk.append("[name=a vram=x] true 4\n")
    finish(desk, 1)
    desk.wait(60)
    assert desk.startable() == [3]
    desk.restart()
    desk.wait(60)
    assert desk.startable() == [3]
    desk.save("[name=a] true 1\n[after=a] true 2\ntrue 3\n")
    assert desk.startable() == [2, 3]
