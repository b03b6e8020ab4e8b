"""Which queue a command uses, if no, one or several schedulers run."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from gpu_scheduler.runner.folder import TOKEN
from gpu_scheduler.show.location import Location, QueueUse, Verdict, find_queue, judge

STATE, DATA = "GPU_SCHEDULER_STATE_FILE", "GPU_SCHEDULER_DATA_DIR"
CASES = list(product(QueueUse, (False, True), (0, 1, 2)))


@pytest.mark.parametrize(
    ("use", "has_store", "running", "verdict"),
    [
        (QueueUse.PART, False, 0, Verdict.CLEAR),
        (QueueUse.PART, False, 1, Verdict.FOUND),
        (QueueUse.PART, False, 2, Verdict.SEVERAL),
        (QueueUse.PART, True, 0, Verdict.CLEAR),
        (QueueUse.PART, True, 1, Verdict.IDLE),
        (QueueUse.ADD_JOBS, False, 0, Verdict.CLEAR),
        (QueueUse.ADD_JOBS, False, 1, Verdict.FOUND),
        (QueueUse.ADD_JOBS, False, 2, Verdict.SEVERAL),
        (QueueUse.ADD_JOBS, True, 0, Verdict.CLEAR),
        (QueueUse.ADD_JOBS, True, 1, Verdict.IDLE_REFUSED),
        (QueueUse.WHOLE, False, 1, Verdict.WHOLE_REFUSED),
        (QueueUse.WHOLE, False, 2, Verdict.SEVERAL),
        (QueueUse.WHOLE, True, 2, Verdict.IDLE),
        (QueueUse.FIXED, False, 1, Verdict.CLEAR),
        (QueueUse.FIXED, True, 2, Verdict.CLEAR),
    ],
)
def test_the_queue_of_a_command(use: QueueUse, has_store: bool, running: int, verdict: Verdict) -> None:
    assert judge(use, has_store=has_store, running=running) is verdict


@pytest.mark.parametrize(("use", "has_store", "running"), CASES)
def test_no_command_guesses(use: QueueUse, has_store: bool, running: int) -> None:
    verdict = judge(use, has_store=has_store, running=running)
    if verdict is Verdict.FOUND:
        assert (running, has_store) == (1, False)
        assert use in (QueueUse.PART, QueueUse.ADD_JOBS)
    if use is QueueUse.ADD_JOBS and has_store:
        assert verdict is (Verdict.IDLE_REFUSED if running else Verdict.CLEAR)
    if use is QueueUse.FIXED or not running:
        assert verdict is Verdict.CLEAR


@pytest.mark.parametrize(
    ("use", "state_file", "data_dir", "env", "location"),
    [
        (QueueUse.PART, None, None, {}, Location()),
        (QueueUse.PART, None, None, {STATE: ""}, Location()),
        (QueueUse.PART, None, None, {STATE: "/a/s.json"}, Location("/a/s.json")),
        (QueueUse.PART, None, None, {STATE: "/a/s.json", DATA: "/d"}, Location("/a/s.json", "/d")),
        (QueueUse.PART, "x.json", None, {STATE: "/a/s.json", DATA: "/d"}, Location("x.json")),
        (QueueUse.PART, None, "d", {STATE: "/a/s.json"}, Location(data_dir="d")),
        (QueueUse.PART, None, None, {STATE: "/a/s.json", TOKEN: "0"}, Location("/a/s.json")),
        (QueueUse.FIXED, None, None, {STATE: "/a/s.json"}, Location("/a/s.json")),
        (QueueUse.FIXED, None, None, {STATE: "/a/s.json", TOKEN: "0"}, Location()),
        (QueueUse.FIXED, "x.json", None, {STATE: "/a/s.json", TOKEN: "0"}, Location("x.json")),
    ],
)
def test_an_option_counts_more_than_a_variable_and_start_ignores_that_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    use: QueueUse, state_file: str | None, data_dir: str | None, env: dict[str, str], location: Location,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    verdict, found, running = find_queue(use, state_file, data_dir, env)
    assert (verdict, found, list(running)) == (Verdict.CLEAR, location, [])
