"""Tests of submitting a job: how the line is checked and what the store records."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.intake.jobs_file_watcher import FrontEnd, Submission, submit_job
from gpu_scheduler.intake.text_parser import parse_job_line
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store

FRONT_END = FrontEnd("api", "user 7", "the API")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


def spec_of(line: str) -> JobSpec:
    return parse_job_line(line, "/w", None)[0]


def submit(store: Store, line: str, newest: JobFact | None = None) -> Submission:
    return submit_job(store, spec_of(line), newest, FRONT_END, LlmConfig(), None)


def test_records_the_front_end_of_a_new_job_and_returns_warnings(store: Store) -> None:
    done = submit(store, "[name=7] python t.py")
    assert [warning for warning in done.warnings if warning.startswith("name=7")]
    job = store.job(done.job_id)
    assert job is not None
    assert (job.source, job.spec) == ("api", spec_of("[name=7] python t.py"))


def test_requeues_a_failed_job_with_the_attributes_submitted_now(store: Store) -> None:
    first = submit(store, "[timeout=1h] 0,/t.py,env,--x 1")
    failed = JobFact(first.job_id, JobState.FINISHED, Outcome.FAILED)
    again = submit(store, "[vram=8G] 5,/t.py,env,--x 1", failed)
    assert again == Submission(first.job_id)
    requests = open_requests(store)
    assert [(each.verb, each.target) for each in requests] == [
        ("requeue", str(first.job_id)),
        *[("set", str(first.job_id))] * 3,
    ]
    assert requests[0].args == {"added_to": "the API"}
    changed = {each.args["name"]: each.args["value"] for each in requests[1:]}
    assert changed == {"priority": 5, "vram": 8192, "timeout_s": None}


def test_submitting_an_unfinished_job_again_does_not_duplicate_it(store: Store) -> None:
    first = submit(store, "0,/t.py,env,--x 1")
    kept = submit(store, "0,/t.py,env,--x 1", JobFact(first.job_id, JobState.RUNNING))
    assert kept == Submission(first.job_id)
    assert open_requests(store) == []


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
