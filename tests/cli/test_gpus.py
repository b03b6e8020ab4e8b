"""`pause` and `resume`, with and without a scheduler."""

from __future__ import annotations

import json

import pytest

from tests.cli.desk import Desk


def test_a_pause_is_recorded_with_no_scheduler_up_and_status_shows_it(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("pause", "0")
    assert (code, out, err) == (0, "GPU 0: recorded; takes effect when the scheduler starts\n", "")
    assert desk.wishes() == [("pause", "SIM-0")]
    gpus = json.loads(desk.run("status", "--json")[1])["gpus"]
    assert [gpu["state"] for gpu in gpus] == ["paused", "available"]


def test_with_a_scheduler_up_the_answer_is_printed(desk: Desk) -> None:
    with desk.scheduler():
        assert desk.run("pause", "all") == (0, "GPU 0: paused\nGPU 1: paused\n", "")
        assert [row["paused"] for row in desk.store.gpus()] == [1, 1]
        assert desk.run("resume", "0-1") == (0, "GPU 0: resumed\nGPU 1: resumed\n", "")
        assert [row["paused"] for row in desk.store.gpus()] == [0, 0]


def test_a_scheduler_that_does_not_answer_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.cli.record.ring_and_wait.__defaults__", (0.05,))
    with desk.scheduler("deaf") as pid:
        code, out, _ = desk.run("resume", "1")
        assert (code, out) == (0, f"GPU 1: recorded; the scheduler (pid {pid}) has not answered yet\n")


@pytest.mark.parametrize("words", [["2"], ["0", "2"], ["0-2"]])
def test_an_unknown_gpu_is_refused_and_nothing_recorded(desk: Desk, words: list[str]) -> None:
    assert desk.store
    code, out, err = desk.run("pause", *words)
    assert (code, out) == (1, "")
    assert err == "gpu-scheduler: GPU 2 is not managed; the managed GPUs are 0,1\n"
    assert desk.wishes() == []


def test_many_unknown_gpus_are_told_as_ranges(desk: Desk) -> None:
    assert desk.store
    assert desk.run("pause", "0,5-99")[2] == (
        "gpu-scheduler: GPUs 5-99 are not managed; the managed GPUs are 0,1\n"
    )


def test_an_edit_of_the_state_file_is_taken_in_first_and_the_later_word_wins(desk: Desk) -> None:
    assert desk.store
    desk.home.state_file.write_text('{"paused_gpus": [0, 1], "_scheduler": {"paused_gpus": []}}')
    desk.run("resume", "1")
    assert desk.wishes() == [("pause", "SIM-0"), ("pause", "SIM-1"), ("resume", "SIM-1")]


def test_without_any_gpu_on_the_record_it_says_so(desk: Desk) -> None:
    with desk.store.db.transaction() as db:
        db.execute("DELETE FROM gpu")
    code, _, err = desk.run("pause", "all")
    assert code == 1
    assert "knows no GPUs yet" in err
