"""Tests of submitting jobs with a jobs file: what the store records, and which lines are refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.intake.jobs_file_text import parse_job_line
from gpu_scheduler.intake.jobs_file_watcher import JobsFileWatcher
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store

LINE = "[timeout=1h] 0,/t.py,env,--x 1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "jobs.txt"


def spec_of(line: str, path: Path) -> JobSpec:
    return parse_job_line(line, str(path.parent), None)[0]


def submit(store: Store, path: Path, *texts: str) -> None:
    """Saves these texts as the jobs file, one after the other, and has the scheduler accept each."""
    watcher = JobsFileWatcher(store, str(path), None)
    for step, text in enumerate(texts):
        path.with_suffix(".new").write_text(f"{text}\n")
        path.with_suffix(".new").rename(path)
        for now in (100.0 * step, 100.0 * step + 30.0):
            watcher.check(now)


def set_state(store: Store, job_id: int, state: JobState, outcome: Outcome | None = None) -> None:
    with store.db.transaction() as db:
        db.execute(
            "UPDATE job SET state = ?, outcome = ? WHERE id = ?", (state, outcome and outcome.value, job_id)
        )


def test_records_the_file_of_a_new_job_and_logs_warnings(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        submit(store, path, "[name=7] python t.py")
    assert [text for text in caplog.messages if text.startswith("jobs.txt, line 1: name=7")]
    job = store.job(1)
    assert job is not None
    assert (job.source, job.spec) == (f"file:{path}", spec_of("[name=7] python t.py", path))


def test_requeues_a_failed_job_with_the_attributes_submitted_now(store: Store, path: Path) -> None:
    submit(store, path, LINE)
    set_state(store, 1, JobState.FINISHED, Outcome.FAILED)
    submit(store, path, "", "[vram=8G] 5,/t.py,env,--x 1")
    requests = open_requests(store)
    assert [(each.verb, each.target) for each in requests] == [("requeue", "1"), *[("set", "1")] * 3]
    assert requests[0].args == {"added_to": "jobs.txt"}
    changed = {each.args["name"]: each.args["value"] for each in requests[1:]}
    assert changed == {"priority": 5, "vram": 8192, "timeout_s": None}
    assert store.job(2) is None


def test_submitting_an_unfinished_job_again_does_not_duplicate_it(store: Store, path: Path) -> None:
    submit(store, path, LINE)
    set_state(store, 1, JobState.RUNNING)
    submit(store, path, "", LINE)
    assert open_requests(store) == []
    assert store.job(2) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("for i in 1; do", "bash rejects the command"),
        ("[gpus=x] a", "gpus"),
        ("python t.py &", "ends in `&`"),
    ],
)
def test_refuses_a_malformed_line_and_says_why(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_job_line(line, "/w", None)
