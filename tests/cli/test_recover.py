"""The `recover` and `clear` commands, with and without a scheduler."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from typing import Any

import pytest

from gpu_scheduler.control.job_requests import change_jobs
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from tests import changes
from tests.cli.desk import Desk
from tests.processes import kill_attempts
from tests.waiting import wait_for

NONE = "no job is interrupted\n"
WAIT = "while [ ! -e go ]; do sleep 0.01; done"


def interrupted(desk: Desk, **values: Any) -> int:
    """Adds a job that is held because its attempt was interrupted."""
    job = desk.job(**values)
    row = desk.attempt(job)
    reason = StateReason(ReasonKind.MACHINE_RESTARTED)
    desk.record(
        changes.end(row.id, Outcome.INTERRUPTED, reason),
        *changes.leave(row.id),
    )
    return job


def finished(desk: Desk, outcome: Outcome = Outcome.COMPLETED) -> int:
    """Adds a finished job."""
    job = desk.job()
    desk.record(changes.finish(job, outcome))
    return job


def listed(desk: Desk, *options: str) -> dict[int, bool]:
    """Returns whether each job that `status` lists was cleared."""
    jobs = json.loads(desk.run("status", "--json", *options)[1])["jobs"]
    return {job["id"]: job["cleared"] for job in jobs}


def test_recovers_all_interrupted_jobs_but_no_other_held_job(desk: Desk) -> None:
    first, other, last = interrupted(desk), desk.job(), interrupted(desk)
    desk.record(changes.hold(other))
    with desk.scheduler():
        out = f"job {first}: queued again\njob {last}: queued again\n"
        assert desk.run("recover", "--all") == (0, out, "")
        assert [desk.state(job) for job in (first, other, last)] == ["queued", "held", "queued"]
        assert desk.run("recover", "--all") == (0, NONE, "")


@pytest.mark.parametrize(
    "words", [["1", "3"], ["--jobs", "1,3"], ["--jobs=1", "3"], ["1-3", "--jobs", "named"]]
)
def test_recovers_the_given_jobs_and_refuses_those_that_are_not_interrupted(
    desk: Desk, words: list[str]
) -> None:
    interrupted(desk), finished(desk, Outcome.FAILED), interrupted(desk, name="named")
    with desk.scheduler():
        code, out, err = desk.run("recover", *words)
        assert sorted(out.splitlines()) == ["job 1: queued again", "job 3: queued again"]
        refused = "gpu-scheduler: job 2 is finished, not interrupted; `retry 2` runs it again\n"
        assert (code, err) == ((1, refused) if "1-3" in words else (0, ""))


@pytest.mark.parametrize("words", [[], ["--all", "1"], ["--all", "--jobs", "1"]])
def test_recover_needs_either_jobs_or_all(desk: Desk, words: list[str]) -> None:
    code, _, err = desk.run("recover", *words)
    assert code == 2
    assert "give either the jobs to recover or --all" in err


def test_the_json_of_status_says_which_held_jobs_are_interrupted(desk: Desk) -> None:
    job, other = interrupted(desk), desk.job(hold=True)
    jobs = json.loads(desk.run("status", "--json")[1])["jobs"]
    assert {one["id"]: one["interrupted"] for one in jobs} == {job: True, other: False}


@pytest.mark.parametrize("words", [["--all"], ["1"]])
def test_a_recovery_without_a_scheduler_is_carried_out(desk: Desk, words: list[str]) -> None:
    job = interrupted(desk)
    assert f"the machine was restarted; `retry {job}` runs it again\n" in desk.run("status")[1]
    assert desk.run("recover", *words) == (0, f"job {job}: queued again\n", "")
    assert (desk.state(job), desk.requests()) == ("queued", [])
    refused = f"gpu-scheduler: job {job} is queued, not interrupted\n"
    assert desk.run("recover", *words) == ((0, NONE, "") if "--all" in words else (1, "", refused))


def test_status_shows_a_recovery_that_is_only_recorded(desk: Desk) -> None:
    job = interrupted(desk)
    change_jobs(desk.server, "recover", None)
    assert "recover requested; waiting for the scheduler\n" in desk.run("status")[1]
    for _ in range(2):
        change_jobs(desk.server, "recover", [job])
    assert desk.requests() == [("recover", ""), ("recover", str(job)), ("recover", str(job))]
    with desk.scheduler():
        wait_for(lambda: not desk.requests(), "the answers")
    assert desk.state(job) == "queued"


def test_a_recovery_without_a_scheduler_finds_no_job_that_is_not_interrupted(desk: Desk) -> None:
    job = desk.run_job(WAIT)
    assert desk.run("recover", "--all") == (0, NONE, "")
    code, _, err = desk.run("recover", job)
    assert (code, err) == (1, f"gpu-scheduler: job {job} is running, not interrupted\n")
    assert desk.requests() == []


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("words", [["--all"], ["1"]])
def test_recovers_a_killed_job_whose_interruption_is_not_recorded_yet(
    desk: Desk, up: bool, words: list[str]
) -> None:
    job = desk.run_job(WAIT)
    kill_attempts(desk.folders)
    out = desk.run("status")[1]
    assert "1 job: 1 held" in out
    assert "interrupted" in out
    assert "; not recorded yet" in out
    assert desk.state(job) == "running"
    change_jobs(desk.server, "recover", None if words == ["--all"] else [job])
    pending = "recover requested; waiting for the scheduler; not recorded yet\n"
    assert pending in desk.run("status")[1]
    desk.store.db.connection.execute("DELETE FROM request")
    with desk.scheduler() if up else nullcontext():
        assert desk.run("recover", *words) == (0, f"job {job}: queued again\n", "")
        assert (desk.state(job), desk.requests()) == ("queued", [])


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("verb", ["retry", "recover"])
def test_a_killed_job_is_queued_by_each_command_that_queues_interrupted_jobs(
    desk: Desk, verb: str, up: bool
) -> None:
    """`status` says that the job is held, although the store does not say so yet."""
    job = desk.run_job(WAIT)
    kill_attempts(desk.folders)
    with desk.scheduler() if up else nullcontext():
        assert desk.run(verb, job) == (0, f"job {job}: queued again\n", "")
        assert desk.state(job) == "queued"


@pytest.mark.parametrize("up", [False, True])
def test_an_interrupted_job_is_not_released(desk: Desk, up: bool) -> None:
    job = desk.run_job(WAIT)
    kill_attempts(desk.folders)
    refused = (
        f"gpu-scheduler: job {job} is interrupted; `resume --job {job}` continues it from a"
        f" checkpoint, and `retry {job}` starts it from its beginning\n"
    )
    with desk.scheduler() if up else nullcontext():
        assert desk.run("release", job) == (1, "", refused)
    assert desk.requests() == []


@pytest.mark.parametrize("up", [False, True])
def test_a_killed_job_counts_as_held_for_hold_and_priority(desk: Desk, up: bool) -> None:
    job = desk.run_job(WAIT)
    kill_attempts(desk.folders)
    refused = f"gpu-scheduler: job {job} is already held; `why {job}` shows how it can be queued again\n"
    with desk.scheduler() if up else nullcontext():
        assert desk.run("hold", job) == (1, "", refused)
        assert desk.run("priority", job, 3) == (0, f"job {job}: priority=3 set\n", "")
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.priority) == ("held", 3)


def test_a_failed_job_that_has_retries_left_can_be_cancelled_before_this_is_recorded(desk: Desk) -> None:
    job = desk.run_job("exit 3", fail_retries=2)
    desk.wait_until_processes_end()
    assert desk.run("cancel", job) == (0, f"job {job}: cancelled\n", "")
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.outcome) == ("finished", "cancelled")


def test_a_recovery_that_the_scheduler_did_not_answer_before_it_died_is_carried_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = interrupted(desk)
    with desk.scheduler("deaf") as pid:
        monkeypatch.setattr(type(desk.data_dir), "ring_doorbell", lambda home: os.kill(pid, signal.SIGKILL))
        assert desk.run("recover", "--all") == (0, f"job {job}: queued again\n", "")
    assert desk.state(job) == "queued"


def test_a_recovery_that_the_scheduler_does_not_answer_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.control.requests.ANSWER_TIMEOUT_S", 0.05)
    interrupted(desk)
    with desk.scheduler("deaf") as pid:
        said = f"recorded; the scheduler (pid {pid}) has not answered yet\n"
        assert desk.run("recover", "--all") == (0, said, "")


def test_clear_takes_finished_jobs_out_of_the_lists_but_keeps_their_history(desk: Desk) -> None:
    done, failed, waiting = finished(desk), finished(desk, Outcome.FAILED), desk.job()
    assert desk.run("status")[1].startswith("3 jobs: 1 completed, 1 failed, 1 queued\n")
    with desk.scheduler():
        assert desk.run("clear") == (0, "2 jobs cleared\n", "")
        assert desk.run("clear") == (0, "there are no finished jobs to clear\n", "")
    assert listed(desk) == {waiting: False}
    assert listed(desk, "--all") == {waiting: False, failed: True, done: True}
    assert desk.run("status")[1].startswith("1 job: 1 queued (2 cleared)\n")
    out = desk.run("status", "--all")[1]
    assert out.startswith("3 jobs: 1 completed, 1 failed, 1 queued\n")
    assert out.count("; cleared\n") == 2
    assert desk.run("status", "--failed")[1].startswith("No job has failed\n")
    assert json.loads(desk.run("status", "--json")[1])["counts"] == {"finished": 2, "queued": 1}
    assert desk.run("retry", "--failed")[1] == "no job has failed\n"
    assert f"job {failed}" in desk.run("events")[1]
    assert desk.run("why", failed)[0] == 0


def test_a_cleared_job_that_is_retried_is_in_the_lists_again(desk: Desk) -> None:
    job = finished(desk, Outcome.FAILED)
    with desk.scheduler():
        desk.run("clear", job)
        assert listed(desk) == {}
        assert desk.run("status")[1].startswith("No jobs (1 cleared)")
        desk.run("retry", job)
    assert listed(desk) == {job: False}
    assert desk.run("status")[1].startswith("1 job: 1 queued\n")


def test_clears_the_given_jobs_and_refuses_those_that_have_not_finished(desk: Desk) -> None:
    done, waiting, other = finished(desk), desk.job(), finished(desk)
    with desk.scheduler():
        code, out, err = desk.run("clear", f"{done}-{waiting}", 99)
        assert (code, out) == (1, f"job {done}: cleared\n")
        assert f"job {waiting} is queued; clear needs a job that is finished\n" in err
        assert "there is no job 99" in err
    assert listed(desk) == {waiting: False, other: False}


def test_a_clear_without_a_scheduler_is_carried_out(desk: Desk) -> None:
    desk.job()
    assert desk.run("clear") == (0, "there are no finished jobs to clear\n", "")
    done = finished(desk)
    assert desk.run("clear", done) == (0, f"job {done}: cleared\n", "")
    other = finished(desk)
    assert desk.run("clear") == (0, "1 job cleared\n", "")
    assert desk.requests() == []
    assert not {done, other} & set(listed(desk))
