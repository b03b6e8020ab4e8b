"""Interrupted jobs are queued again, by request or by the scheduler itself, whatever ends the scheduler."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.folder import observe
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.store.job_lists import (
    cleared_count,
    finished_jobs,
    interrupted_jobs,
    unsuccessful_counts,
)
from gpu_scheduler.store.requests import add_request, open_requests, request_answer
from tests.loop.rig import SETTINGS, Rig
from tests.processes import kill_attempts
from tests.waiting import wait_for

LISTED = "state = 'finished' AND cleared_at IS NULL"
WAITING = "echo x >> ran; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end_processes()


def restarted(rig: Rig, *, recover: bool = False) -> Rig:
    return Rig(rig.folder, settings=replace(SETTINGS, recover=recover))


def kill_job(rig: Rig, job: int) -> None:
    """Kills the runner and all processes of a running job."""
    rig.runner_pid(job)
    row = rig.store.attempts(job)[-1]
    folders = {row.token: rig.attempt_folder(job)}
    kill_attempts(folders)


def test_a_recovery_of_all_includes_a_job_that_ran_before_a_reboot(rig: Rig) -> None:
    first, second = rig.add_job(WAITING), rig.add_job(WAITING)
    for job in (first, second):
        kill_job(rig, job)
    rig.store.db.connection.execute("UPDATE attempt SET boot_id = 'before'")
    request = add_request(rig.store, "recover")
    (rig.folder / "go").touch()
    again = restarted(rig)
    assert [again.tick_until_ended(job).outcome for job in (first, second)] == ["completed"] * 2
    answer = request_answer(rig.store, request)
    assert answer is not None
    assert answer.jobs == (first, second)


@pytest.mark.parametrize("target", ["", "1"])
def test_a_recovery_waits_until_the_processes_of_a_killed_runner_have_ended(rig: Rig, target: str) -> None:
    job = rig.add_job(f"trap '' TERM; {WAITING}")
    os.kill(rig.runner_pid(job), signal.SIGKILL)
    folder, token = rig.attempt_folder(job), rig.store.attempts(job)[-1].token
    wait_for(lambda: observe(folder, token).claim == "dead", "the death of the runner")
    add_request(rig.store, "recover", target)
    seen: set[tuple[int, str | None]] = set()

    def is_answered() -> bool:
        seen.add((len(open_requests(rig.store)), rig.job(job).held_by))
        return not open_requests(rig.store)

    rig.tick_until(is_answered, "the recovery")
    assert seen <= {(1, None), (0, None)}
    (rig.folder / "go").touch()
    assert rig.tick_until_ended(job).outcome == "completed"


def test_the_scheduler_itself_recovers_a_job_three_times_and_the_user_as_often_as_needed(rig: Rig) -> None:
    rig = restarted(rig, recover=True)
    job = rig.add_job(WAITING)
    for used in range(3):
        assert rig.job(job).recoveries == used
        kill_job(rig, job)
        rig.tick_until(lambda: rig.job(job).recoveries == used + 1, "a recovery")  # noqa: B023
    kill_job(rig, job)
    row = rig.tick_until_ended(job)
    assert (row.state, row.held_by, row.recoveries) == ("held", "interrupted", 3)
    assert [one.id for one in interrupted_jobs(rig.store)] == [job]
    add_request(rig.store, "recover", str(job))
    kill_job(rig, job)
    rig.tick_until(lambda: rig.job(job).recoveries == 1, "a recovery after that of the user")
    (rig.folder / "go").touch()
    assert rig.tick_until_ended(job).outcome == "completed"
    assert len(rig.store.attempts(job)) == 6


@pytest.mark.parametrize("verb", ["retry", "recover"])
def test_a_request_of_the_user_resets_the_number_of_recoveries(rig: Rig, verb: str) -> None:
    job = rig.add_job(WAITING)
    kill_job(rig, job)
    rig.tick_until_ended(job)
    rig.store.db.connection.execute("UPDATE job SET recoveries = 3")
    add_request(rig.store, verb, str(job))
    rig.tick_until(lambda: rig.job(job).state == "running", "the job")
    assert rig.job(job).recoveries == 0


def test_without_the_option_an_interrupted_job_stays_held(rig: Rig) -> None:
    job = rig.add_job(WAITING)
    kill_job(rig, job)
    assert rig.tick_until_ended(job).held_by == "interrupted"
    rig.tick()
    assert rig.job(job).state == "held"
    (rig.folder / "go").touch()
    assert restarted(rig, recover=True).tick_until_ended(job).outcome == "completed"


@pytest.mark.parametrize(
    "step", ["planned", "recorded", "performed AttemptChanged ended", "performed JobChanged queued"]
)
def test_no_recovery_is_lost_or_repeated_if_the_scheduler_ends_at_any_step(rig: Rig, step: str) -> None:
    job = rig.add_job(WAITING)
    kill_job(rig, job)
    add_request(rig.store, "recover")
    (rig.folder / "go").touch()

    def fail(reached: str) -> None:
        if reached == step:
            raise InterruptedError(step)

    crashing = restarted(rig)
    crashing.loop._failpoint = fail
    with pytest.raises(InterruptedError):
        crashing.tick()
    assert restarted(rig).tick_until_ended(job).outcome == "completed"
    assert len(rig.store.attempts(job)) == 2
    assert open_requests(rig.store) == []


def test_the_children_of_an_interrupted_job_wait_for_its_recovery(rig: Rig) -> None:
    parent = rig.add_job(WAITING)
    child = rig.store.insert_job(
        JobSpec("command", "c", str(rig.folder), command="cp ran seen"), "test",
        dependencies=[Dependency(parent, DependencyKind.COMPLETED, str(parent))],
    )  # fmt: skip
    rig.runner_pid(parent)
    ran = rig.folder / "ran"
    wait_for(lambda: ran.exists() and ran.read_text() == "x\n", "the first line of the job")
    kill_job(rig, parent)
    assert rig.tick_until_ended(parent).held_by == "interrupted"
    assert rig.job(child).state == "queued"
    (rig.folder / "go").touch()
    add_request(rig.store, "recover")
    assert rig.tick_until_ended(child).outcome == "completed"
    assert (rig.folder / "seen").read_text() == "x\nx\n"


def test_a_hundred_thousand_cleared_jobs_do_not_slow_down_the_list_of_the_others(rig: Rig) -> None:
    job = rig.add_job("true")
    with rig.store.db.transaction() as db:
        columns = ", ".join(row[1] for row in db.execute("PRAGMA table_info(job)") if row[1] != "id")
        db.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
            f" INSERT INTO job ({columns}) SELECT {columns} FROM job, n"
        )
        values = "state = 'finished', outcome = 'failed', finished_at = 1"
        db.execute(f"UPDATE job SET {values} WHERE id <> ?", (job,))
    request = add_request(rig.store, "clear")
    assert rig.tick_until_ended(job).outcome == "completed"
    answer = request_answer(rig.store, request)
    assert answer is not None
    assert answer.count == cleared_count(rig.store) == 100_000
    assert [one.id for one in finished_jobs(rig.store, 20)] == [job]
    assert unsuccessful_counts(rig.store) == {}
    for query, index in [
        (f"SELECT * FROM job WHERE {LISTED} ORDER BY finished_at DESC, id DESC LIMIT 20", "job_listed"),
        (f"SELECT outcome, count(*) FROM job WHERE {LISTED} AND outcome <> 'completed' GROUP BY outcome",
         "job_unsuccessful"),
        ("SELECT count(*) FROM job WHERE cleared_at IS NOT NULL", "job_cleared"),
        ("SELECT id FROM job WHERE state = 'held' AND held_by = 'interrupted'", "job_interrupted"),
    ]:  # fmt: skip
        plan = rig.store.db.rows(f"EXPLAIN QUERY PLAN {query}")
        assert index in " ".join(row["detail"] for row in plan), query
