"""The `pause` and `resume` commands, with and without a scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_scheduler.store import state_file
from gpu_scheduler.store.state_file import apply_edit, is_from_older_scheduler
from tests.cli.desk import Desk


def test_pause_without_a_scheduler_is_carried_out_and_shown_by_status(desk: Desk) -> None:
    assert desk.store
    assert desk.run("pause", "0") == (0, "GPU 0: paused\n", "")
    assert (desk.requests(), [row.paused for row in desk.store.gpus()]) == ([], [1, 0])
    gpus = json.loads(desk.run("status", "--json")[1])["gpus"]
    assert [gpu["state"] for gpu in gpus] == ["paused", "available"]


def test_pause_prints_the_answer_of_a_running_scheduler(desk: Desk) -> None:
    with desk.scheduler():
        assert desk.run("pause", "all") == (0, "GPU 0: paused\nGPU 1: paused\n", "")
        assert [row.paused for row in desk.store.gpus()] == [1, 1]
        assert desk.run("resume", "0-1") == (0, "GPU 0: resumed\nGPU 1: resumed\n", "")
        assert [row.paused for row in desk.store.gpus()] == [0, 0]


def test_pause_names_a_scheduler_that_does_not_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.control.requests.ANSWER_TIMEOUT_S", 0.05)
    with desk.scheduler("deaf") as pid:
        code, out, _ = desk.run("resume", "1")
        assert (code, out) == (0, f"GPU 1: recorded; the scheduler (pid {pid}) has not answered yet\n")


@pytest.mark.parametrize("words", [["2"], ["0", "2"], ["0-2"]])
def test_pause_rejects_an_unknown_gpu_and_records_nothing(desk: Desk, words: list[str]) -> None:
    assert desk.store
    code, out, err = desk.run("pause", *words)
    assert (code, out) == (1, "")
    assert err == "gpu-scheduler: GPU 2 is not managed; the managed GPUs are 0,1\n"
    assert desk.requests() == []


def test_resume_of_a_gpu_that_is_not_paused_says_so(desk: Desk) -> None:
    with desk.scheduler():
        desk.run("pause", "0")
        assert desk.run("resume", "--all") == (0, "GPU 0: resumed\nGPU 1: was not paused\n", "")


def test_the_number_of_a_job_in_place_of_a_gpu_names_the_command_for_jobs(desk: Desk) -> None:
    for _ in range(4):
        job = desk.job()
    unmanaged = f"gpu-scheduler: GPU {job} is not managed; the managed GPUs are 0,1; for job {job}, use"
    assert desk.run("pause", str(job))[2] == f"{unmanaged} `hold {job}`\n"
    assert desk.run("resume", str(job))[2] == f"{unmanaged} `resume --job {job}`\n"


def test_pause_without_gpus_names_the_remedy(desk: Desk) -> None:
    assert desk.run("pause")[::2] == (
        2, "gpu-scheduler: name the GPUs to pause, as in `pause 0`, or give `all`\n"
    )  # fmt: skip


def test_pause_lists_unknown_gpus_as_ranges(desk: Desk) -> None:
    assert desk.store
    assert desk.run("pause", "0,5-99")[2] == (
        "gpu-scheduler: GPUs 5-99 are not managed; the managed GPUs are 0,1\n"
    )


def test_pause_applies_edits_to_the_state_file_first_and_overrides_them(desk: Desk) -> None:
    assert desk.store
    desk.data_dir.state_file.write_text('{"paused_gpus": [0, 1], "_scheduler": {"paused_gpus": []}}')
    assert desk.run("resume", "1") == (0, "GPU 1: resumed\n", "")
    rows = desk.store.db.rows("SELECT verb, target FROM request ORDER BY id")
    assert [tuple(row) for row in rows] == [("pause", "SIM-0"), ("pause", "SIM-1"), ("resume", "SIM-1")]
    assert (desk.requests(), [row.paused for row in desk.store.gpus()]) == ([], [1, 0])


def test_pause_all_fails_without_recorded_gpus(desk: Desk) -> None:
    with desk.store.db.transaction() as db:
        db.execute("DELETE FROM gpu")
    code, _, err = desk.run("pause", "all")
    assert code == 1
    assert "no GPUs are recorded in" in err


def test_pause_before_the_first_start_is_written_to_the_state_file(desk: Desk) -> None:
    path = desk.data_dir.state_file
    told = f"in {path}, which the first `start` reads\n"
    assert desk.run("pause", "2", "0") == (0, f"GPU 0: paused {told}GPU 2: paused {told}", "")
    assert json.loads(path.read_text()) == {"paused_gpus": [0, 2]}
    assert desk.run("resume", "2") == (0, f"GPU 2: resumed {told}", "")
    assert json.loads(path.read_text()) == {"paused_gpus": [0]}
    version = path.stat().st_mtime_ns
    assert desk.run("pause", "0")[0] == 0
    assert path.stat().st_mtime_ns == version
    assert [one.name for one in desk.path.iterdir()] == [path.name]
    # The first start creates the store and reads the file.
    assert desk.store
    apply_edit(desk.store, path.read_bytes())
    assert desk.requests() == [("pause", "SIM-0")]


def test_resuming_an_unpaused_gpu_before_the_first_start_writes_nothing(desk: Desk) -> None:
    assert desk.run("resume", "1") == (0, "GPU 1: not paused, because no scheduler has run here yet\n", "")
    assert list(desk.path.iterdir()) == []


def test_pause_before_the_first_start_keeps_the_older_schedulers_keys(desk: Desk) -> None:
    older = {"gpu_status": [0.5, 0.0], "paused_gpus": ["1"], "sessions": {"a": 1}, "note": None}
    desk.data_dir.state_file.write_text(json.dumps(older))
    assert desk.run("pause", "0")[0] == 0
    after = json.loads(desk.data_dir.state_file.read_text())
    assert after == {**older, "paused_gpus": [0, 1]}
    assert is_from_older_scheduler(after)


def test_pause_before_the_first_start_ignores_the_base_of_a_removed_store(desk: Desk) -> None:
    """The base of the removed store says that GPU 1 was already paused, which would hide the change."""
    desk.data_dir.state_file.write_text('{"paused_gpus": [1], "_scheduler": {"paused_gpus": [1]}, "mine": 3}')
    assert desk.run("pause", "0")[0] == 0
    assert json.loads(desk.data_dir.state_file.read_text())["mine"] == 3
    assert desk.store
    apply_edit(desk.store, desk.data_dir.state_file.read_bytes())
    assert desk.requests() == [("pause", "SIM-0"), ("pause", "SIM-1")]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (
            None,
            ["pause", "all"],
            "not known before the first `start`; list them, as in `pause 0,1`",
        ),
        ("{", ["pause", "0"], "line 1, column 2: not JSON"),
        ('{"paused_gpus": 3}', ["resume", "0"], 'its "paused_gpus" must be a list'),
    ],
)
def test_explains_an_impossible_pause_before_the_first_start(
    desk: Desk, text: str | None, words: list[str], said: str
) -> None:
    if text is not None:
        desk.data_dir.state_file.write_text(text)
    code, out, err = desk.run(*words)
    assert (code, out) == (1, "")
    assert said in err
    assert (desk.data_dir.state_file.read_text() if text is not None else None) == text


def test_pause_before_the_first_start_keeps_a_concurrent_edit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.data_dir.state_file
    path.write_text('{"paused_gpus": [3]}')
    exchange, edits = state_file.exchange, ['{"paused_gpus": [3, 4], "mine": 7}']

    def edited_meanwhile(file: Path, content: bytes) -> bytes | None:
        if edits:
            file.write_text(edits.pop())
        return exchange(file, content)

    monkeypatch.setattr(state_file, "exchange", edited_meanwhile)
    assert desk.run("pause", "0")[0] == 0
    assert json.loads(path.read_text()) == {"paused_gpus": [0, 3, 4], "mine": 7}
    assert [one.name for one in desk.path.iterdir()] == [path.name]
