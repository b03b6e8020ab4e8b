"""Referring to jobs by number, range or name in every command, and the --failed options."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.core.model.job import Job
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.show.job_refs import JobRef, resolve_job, resolve_jobs
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for


def finish_job(desk: Desk, name: str | None, at: float, outcome: Outcome = Outcome.COMPLETED) -> int:
    """Inserts a finished job that ended at the time `at`."""
    job = desk.job(name=name)
    desk.record(changes.finish(job, outcome))
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET finished_at = ? WHERE id = ?", (at, job))
    return job


@pytest.mark.parametrize(
    ("refs", "ids"),
    [
        ([3], [3]),
        ([99], [99]),
        ([range(2, 4)], [2, 3]),
        ([range(3, 10**9)], [3, 4, 5]),
        ([4, range(1, 5), 4], [4, 1, 2, 3]),
        (["done"], [2]),
        (["bert"], [4]),
        (["5"], None),
        (["bert", 1, "bert"], [4, 1]),
    ],
)
def test_finds_jobs_by_number_range_and_name(desk: Desk, refs: list[JobRef], ids: list[int] | None) -> None:
    finish_job(desk, "done", 100.0)
    assert finish_job(desk, "done", 300.0) == 2  # this job ended last
    finish_job(desk, "done", 200.0)
    assert desk.job(name="bert") == 4
    finish_job(desk, "bert", 400.0)  # the name refers to the open job
    if ids is None:
        with pytest.raises(
            SchedulerError, match=f"there is no job named {refs[0]} in .*; `status --all` lists"
        ):
            resolve_jobs(desk.store, refs)
    else:
        assert resolve_jobs(desk.store, refs) == ids


def test_rejects_a_range_without_jobs_and_an_ambiguous_name(desk: Desk) -> None:
    ids = [desk.job(name="bert", hold=n == 2) for n in range(3)]
    with pytest.raises(SchedulerError, match="there are no jobs 7 to 9 in "):
        resolve_jobs(desk.store, [range(7, 10)])
    with pytest.raises(SchedulerError) as caught:
        resolve_job(desk.store, "bert")
    assert str(caught.value) == (
        "3 open jobs are named bert: 1-3\ngive a job number instead; nothing was done"
    )
    code, out, err = desk.run("preempt", "bert")
    assert (code, out, "3 open jobs" in err) == (1, "", True)
    assert desk.requests() == []
    assert resolve_jobs(desk.store, [ids[2], "bert"]) == [3, 1, 2]


def test_a_job_whose_end_is_not_recorded_yet_does_not_make_a_name_ambiguous(desk: Desk) -> None:
    job = desk.run_job("exit 7")
    row = desk.store.attempts(job)[0]
    wait_for(lambda: observe(desk.folder(row), row.token).result, "the result")
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET name = 'bert' WHERE id = ?", (job,))
    assert resolve_job(desk.store, "bert") == job
    waiting = desk.job(name="bert")
    assert resolve_job(desk.store, "bert") == waiting
    desk.wait_until_processes_end()


@pytest.mark.parametrize(
    ("words", "said", "before", "after"),
    [
        (["cancel", "bert"], "cancelled", "queued", "finished"),
        (["hold", "bert"], "held", "queued", "held"),
        (["release", "bert"], "released", "held", "queued"),
        (["retry", "bert"], "queued again", "held", "queued"),
        (["priority", "bert", "5"], "priority=5 set", "queued", "queued"),
        (["cancel", "1-3"], "cancelled", "queued", "finished"),
    ],
)
def test_commands_that_change_jobs_accept_names_and_ranges(
    desk: Desk, words: list[str], said: str, before: str, after: str
) -> None:
    job = desk.job(name="bert", hold=before == "held")
    assert desk.run(*words) == (0, f"job {job}: {said}\n", "")
    assert (desk.state(job), desk.requests()) == (after, [])


def test_commands_that_show_a_job_accept_its_name(desk: Desk) -> None:
    job = desk.run_job("echo hello")
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET name = 'bert' WHERE id = ?", (job,))
    row = desk.store.attempts(job)[0]
    wait_for(lambda: observe(desk.folder(row), row.token).result, "the result")
    assert json.loads(desk.run("show", "bert", "--json")[1])["job"]["id"] == job
    assert json.loads(desk.run("why", "bert", "--json")[1])["job"] == job
    assert "hello" in desk.run("logs", "bert")[1]
    assert desk.run("attach", "bert")[2].startswith(f"gpu-scheduler: job {job} is no longer running")
    for command in ("show", "why", "logs", "attach"):
        code, out, err = desk.run(command, "bret")
        assert (code, out) == (1, "")
        assert f"there is no job named bret in {desk.data_dir.folder}; `status --all` lists the jobs" in err
    desk.wait_until_processes_end()


def some_failed(desk: Desk) -> list[int]:
    """Inserts three jobs that failed in different ways, and other jobs that did not fail."""
    finish_job(desk, None, 50.0)
    failed = [
        finish_job(desk, None, 100.0 * n, outcome)
        for n, outcome in enumerate((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED), 1)
    ]
    finish_job(desk, None, 500.0, Outcome.CANCELLED)
    finish_job(desk, None, 500.0, Outcome.SKIPPED)
    desk.job("echo queued")
    return failed


def test_retry_failed_queues_each_failed_job_once(desk: Desk) -> None:
    assert desk.store
    assert desk.run("retry", "--failed") == (0, "no job has failed\n", "")
    failed = some_failed(desk)
    code, out, err = desk.run("retry", "--failed")
    assert (code, err) == (0, "")
    assert out == "".join(f"job {job}: queued again\n" for job in failed)
    assert [desk.state(job) for job in failed] == ["queued"] * len(failed)
    assert desk.run("retry", "--failed") == (0, "no job has failed\n", "")


def test_retry_requires_jobs_or_failed(desk: Desk) -> None:
    job = desk.job()
    for words in ([], ["--failed", job]):
        code, out, err = desk.run("retry", *words)
        assert (code, out, "--failed" in err) == (2, "", True)
    assert desk.requests() == []


def test_status_failed_lists_only_failed_jobs(desk: Desk) -> None:
    assert desk.store
    assert "No job has failed\n" in desk.run("status", "--failed")[1]
    failed = some_failed(desk)
    shown = json.loads(desk.run("status", "--failed", "--json")[1])
    assert [job["id"] for job in shown["jobs"]] == failed[::-1]
    text = desk.run("status", "--failed")[1]
    assert text.startswith(f"{len(failed)} jobs: ")
    assert "echo queued" not in text


def test_a_failure_that_is_not_recorded_yet_counts_as_failed(desk: Desk) -> None:
    job = desk.run_job("exit 7")
    row = desk.store.attempts(job)[0]
    wait_for(lambda: observe(desk.folder(row), row.token).result, "the result")
    assert [one["id"] for one in json.loads(desk.run("status", "--failed", "--json")[1])["jobs"]] == [job]
    assert desk.run("retry", "--failed") == (0, f"job {job}: queued again\n", "")
    desk.wait_until_processes_end()


def test_a_long_list_of_failed_jobs_is_shortened_and_counted(desk: Desk) -> None:
    with desk.store.db.transaction():
        jobs = [desk.job() for _ in range(25)]
    desk.record(*(changes.finish(job, Outcome.FAILED) for job in jobs))
    desk.job()
    assert "… and 5 more failed (status --failed --all)" in desk.run("status", "--failed")[1]
    assert len(json.loads(desk.run("status", "--failed", "--all", "--json")[1])["jobs"]) == 25
    assert desk.run("retry", "--failed") == (0, "25 jobs: queued again\n", "")


def test_a_job_that_waits_for_a_retry_does_not_count_as_failed(desk: Desk) -> None:
    job = desk.job(fail_retries=1)
    row = desk.attempt(job)
    desk.record(changes.fail(row.id))
    found: Job | None = desk.store.job(job)
    assert found is not None
    assert found.state == "queued"
    assert json.loads(desk.run("status", "--failed", "--json")[1])["jobs"] == []
