"""Tests that changes to the line of a skipped job count, because the job still waits for its parents."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.requests import add_request
from tests.loop.test_dependencies import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Returns a file with a failed job 1 and the skipped jobs 2 and 3."""
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path)
    desk.save("[name=a] true 1\n[name=b after=a] true 2\n[after=b] true 3\n")
    desk.finish(1, Outcome.FAILED)
    assert desk.states() == {1: "failed", 2: "skipped", 3: "skipped"}
    return desk


def change(desk: Desk, text: str) -> None:
    """Saves the file, then retries and completes job 1."""
    desk.save(text)
    desk.retry(1)
    desk.finish(1)


def test_a_skipped_job_whose_line_was_removed_never_runs(desk: Desk) -> None:
    change(desk, "[name=a] true 1\n[after=b] true 3\n")
    assert desk.states() == {1: "completed", 2: "cancelled", 3: "skipped"}
    rows = desk.rig.store.db.rows("SELECT kind, data FROM event WHERE job_id = 2 ORDER BY id")
    assert [tuple(row) for row in rows][1:] == [
        ("finished", '{"outcome": "skipped"}'),
        ("finished", '{"outcome": "cancelled"}'),
    ]


def test_only_the_new_text_of_a_skipped_job_runs(desk: Desk) -> None:
    change(desk, "[name=a] true 1\n[name=b after=a] true two\n[after=b] true 3\n")
    assert desk.states() == {1: "completed", 2: "cancelled", 3: "queued", 4: "queued"}
    assert desk.startable() == [4]


def test_a_skipped_job_is_held_if_its_line_holds_it(desk: Desk) -> None:
    change(desk, "[name=a] true 1\n[name=b after=a hold] true 2\n[after=b] true 3\n")
    assert desk.states() == {1: "completed", 2: "held", 3: "queued"}
    assert desk.startable() == []
    desk.save("[name=a] true 1\n[name=b after=a] true 2\n[after=b] true 3\n")
    assert desk.startable() == [2]


def test_a_skipped_job_is_cancelled_by_its_line(desk: Desk) -> None:
    change(desk, "[name=a] true 1\n[name=b after=a cancel] true 2\n[after=b] true 3\n")
    assert desk.states() == {1: "completed", 2: "cancelled", 3: "skipped"}


def test_a_cancelled_job_is_not_queued_again_with_its_parent(desk: Desk) -> None:
    add_request(desk.rig.store, "cancel", "3")
    desk.rig.tick()
    desk.retry(1)
    desk.finish(1)
    assert desk.states() == {1: "completed", 2: "queued", 3: "cancelled"}
    assert desk.startable() == [2]


def test_a_skipped_job_keeps_its_count_of_used_retries(desk: Desk) -> None:
    with desk.rig.store.db.transaction() as db:
        db.execute("UPDATE job SET fail_retries_used = 1")
    desk.retry(1)
    assert [desk.rig.job(job_id).fail_retries_used for job_id in (1, 2)] == [0, 1]
