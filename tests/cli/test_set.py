"""The commands `set` and `retry --set` change attributes of jobs that have no line in a jobs file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from gpu_scheduler.control.job_requests import set_attributes
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store.job_lists import parents_of
from tests import changes
from tests.cli.desk import Desk
from tests.waiting import wait_for


def spec(desk: Desk, job: int) -> dict[str, Any]:
    row = desk.store.job(job)
    assert row is not None
    return row.spec.attributes


def parents(desk: Desk, job: int) -> list[tuple[int, str]]:
    return [(one.id, one.reference) for one in parents_of(desk.store, [job]).get(job, ())]


def test_set_changes_several_attributes(desk: Desk) -> None:
    job = desk.job(name="one", fail_retries=3)
    with desk.scheduler():
        code, out, err = desk.run("set", "one", "vram=18G", "exclusive", "fail-retries=", "priority=0")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"job {job}: vram=18G set",
        f"job {job}: exclusive set",
        f"job {job}: fail-retries removed",
        f"job {job}: priority=0 set",
    ]
    found = spec(desk, job)
    assert (found["vram"], found["exclusive"], found["fail_retries"]) == (18432, True, None)
    row = desk.store.job(job)
    assert row is not None
    assert (row.priority, row.name) == (0, "one")


def test_set_without_a_scheduler_is_carried_out(desk: Desk) -> None:
    job = desk.job(vram=5000)
    said = f"job {job}: priority=7 set\njob {job}: vram removed\n"
    assert desk.run("set", job, "priority=7", "vram=") == (0, said, "")
    row = desk.store.job(job)
    assert row is not None
    assert (row.priority, row.spec.vram, desk.requests()) == (7, None, [])


def test_status_shows_a_change_that_is_only_recorded(desk: Desk) -> None:
    job = desk.job(vram=5000)
    set_attributes(desk.server, job, ["priority=7", "vram="])
    assert spec(desk, job)["vram"] == 5000
    [shown] = json.loads(desk.run("status", "--json")[1])["jobs"]
    assert shown["reason"] == "vram= requested; waiting for the scheduler"
    with desk.scheduler():
        wait_for(lambda: spec(desk, job)["vram"] is None, "the change")


def test_set_replaces_the_jobs_for_which_a_job_waits(desk: Desk) -> None:
    first, second = desk.job(), desk.job(name="data")
    child = desk.job_after(first, after=(str(first),))
    with desk.scheduler():
        code, out, err = desk.run("set", child, "after=data", f"after-any={first}")
        assert (code, out, err) == (
            0, f"job {child}: after=data set\njob {child}: after-any={first} set\n", "",
        )  # fmt: skip
        assert parents(desk, child) == [(first, str(first)), (second, "data")]
        assert spec(desk, child)["after"] == ("data",)
        assert desk.run("set", child, "after=", "after-any=")[0] == 0
    assert parents(desk, child) == []


def test_set_refuses_a_job_that_would_wait_for_itself(desk: Desk) -> None:
    first = desk.job()
    child = desk.job_after(first)
    for job, parent in ((first, child), (first, first)):
        code, out, err = desk.run("set", job, "vram=1G", f"after={parent}")
        assert (code, out) == (1, "")
        assert err == f"gpu-scheduler: job {job} would wait for itself; its dependencies were not changed\n"
    assert desk.requests() == []


@pytest.mark.parametrize("are_together", [True, False])
def test_two_changes_that_together_form_a_cycle_are_not_both_made(desk: Desk, are_together: bool) -> None:
    first, second = desk.job(), desk.job()
    if are_together:
        set_attributes(desk.server, first, [f"after={second}"])
        set_attributes(desk.server, second, [f"after={first}"])
        assert len(desk.requests()) == 2
        assert desk.run("hold", desk.job())[0] == 0  # runs rounds
    else:
        assert desk.run("set", first, f"after={second}") == (0, f"job {first}: after={second} set\n", "")
        refused = f"gpu-scheduler: job {second} would wait for itself; its dependencies were not changed\n"
        assert desk.run("set", second, f"after={first}") == (1, "", refused)
    assert desk.requests() == []
    assert (parents(desk, first), parents(desk, second)) == ([(second, str(second))], [])


def test_other_parents_queue_a_skipped_job_again(desk: Desk) -> None:
    first, second = desk.job(), desk.job()
    child = desk.job_after(first)
    desk.record(changes.finish(first, Outcome.FAILED))
    desk.record(act.SettleDependencies())
    code, out, err = desk.run("set", child, "vram=1G", f"after={second}")
    assert (code, out) == (1, "")
    assert err.endswith(
        f"job {child} was skipped, so only after and after-any can be changed, not vram;"
        " nothing was changed\n"
    )
    with desk.scheduler():
        assert desk.run("set", child, f"after={second}")[:2] == (0, f"job {child}: after={second} set\n")
        wait_for(lambda: desk.state(child) == JobState.QUEUED, "the job in the queue")


def test_set_warns_about_a_parent_that_has_not_completed(desk: Desk) -> None:
    parent, job = desk.job(), desk.job()
    desk.record(changes.finish(parent, Outcome.FAILED))
    code, out, err = desk.run("set", job, f"after={parent}")
    assert (code, out) == (0, f"job {job}: after={parent} set\n")
    assert err == (
        f"gpu-scheduler: warning: job {parent} has not completed (failed), so this job is skipped until"
        f" `retry {parent}` queues it again\n"
    )
    assert desk.run("set", job, f"after-any={parent}")[2] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["after=1-3"],
            "after 1-3: this is a range, which is not possible here; separate the ids with commas",
        ),
        (["vram=20H"], "memory '20H'"),
        (["vram=1G", "after=nothing"], "after nothing: there is no job named nothing"),
        (["after-any=99"], "after-any 99: there is no job 99"),
        (["vram=1G", "gpus=0"], "gpus=0 asks for no GPU and contradicts vram"),
        (["share=2", "gpus=1"], "a share above 1 is a number of whole GPUs"),
        (["allowed=7"], "7"),
        (["hold"], "`hold JOB`"),
        ([], "KEY=VALUE"),
    ],
)
def test_a_wrong_change_is_a_usage_error_and_nothing_is_requested(
    desk: Desk, words: list[str], said: str
) -> None:
    code, out, err = desk.run("set", desk.job(), *words)
    assert (code, out) == (2, "")
    assert said in err
    assert desk.requests() == []


def test_set_names_the_line_of_a_job_that_has_one(desk: Desk) -> None:
    job = desk.job()
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES ('/home/me/jobs.txt', '/')")
        db.execute(
            "INSERT INTO line (path, position, number, text, job_id)"
            " VALUES ('/home/me/jobs.txt', 1, 4, '', ?)",
            (job,),
        )
    code, out, err = desk.run("set", job, "vram=1G")
    assert (code, out) == (1, "")
    assert f"job {job} has a line in a jobs file; edit line 4 of /home/me/jobs.txt instead" in err
    assert desk.requests() == []


def test_set_refuses_a_job_that_does_not_wait(desk: Desk) -> None:
    job = desk.job()
    desk.record(changes.finish(job, Outcome.COMPLETED))
    code, out, err = desk.run("set", job, "vram=1G")
    assert (code, out) == (1, "")
    assert err == (
        f"gpu-scheduler: job {job} is finished; only a job that is held or queued can be changed;"
        f" `retry {job} --set KEY=VALUE` changes it and queues it again\n"
    )
    with desk.scheduler():
        assert desk.run("set", job, "vram=1G", "priority=3") == (1, "", err)
    assert "there is no job 99" in desk.run("set", 99, "vram=1G")[2]


@pytest.mark.parametrize("up", [False, True])
def test_set_makes_no_change_of_a_finished_job_if_it_cannot_make_all(desk: Desk, up: bool) -> None:
    job = desk.job("python old.py")
    desk.record(changes.finish(job, Outcome.FAILED))
    refused = (
        f"gpu-scheduler: job {job} is finished; only a job that is held or queued can be changed;"
        f" `retry {job} --set KEY=VALUE` changes it and queues it again\n"
    )
    with desk.scheduler() if up else nullcontext():
        assert desk.run("set", job, "command=python new.py", "vram=1G") == (1, "", refused)
    row = desk.store.job(job)
    assert row is not None
    assert (row.spec.command, row.spec.vram, desk.requests()) == ("python old.py", None, [])


@pytest.mark.parametrize("outcome", [None, Outcome.FAILED])
def test_set_changes_the_command_of_a_job_without_a_line(desk: Desk, outcome: Outcome | None) -> None:
    job, same = desk.job("python old.py"), desk.job("python new.py --token secret | tee log")
    if outcome is not None:
        desk.record(changes.finish(job, outcome))
    with desk.scheduler():
        code, out, err = desk.run("set", job, "command=python new.py --token secret | tee log")
    assert (code, out, err) == (0, f"job {job}: command set\n", "")
    row, other = desk.store.job(job), desk.store.job(same)
    assert row is not None
    assert other is not None
    assert row.spec == other.spec
    assert (row.text, row.identity) == (other.text, other.identity)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("command=", "a command is missing"),
        ("command", "a command is missing"),
        ("command=if x", "bash rejects the command"),
        ("command=cd x", "it only changes its own shell"),
        ("command=python t.py &", "it ends in `&`"),
        ("command=a\nb", "line break"),
    ],
)
def test_set_refuses_a_command_that_no_line_could_run(desk: Desk, item: str, message: str) -> None:
    job = desk.job()
    code, out, err = desk.run("set", job, item)
    assert (code, out, desk.requests()) == (2, "", [])
    assert message in err
    assert "nothing was changed" in err


def test_set_changes_no_command_of_a_script(desk: Desk) -> None:
    job = desk.job(kind="csv", script="/t.py", command=None)
    code, _, err = desk.run("set", job, "command=python t.py")
    assert (code, "the job runs a script with its arguments" in err) == (2, True)


CHANGES = ("--set", "gpus=2", "--set", "timeout=2h", "--set", "command=python new.py")


@pytest.mark.parametrize("is_up", [True, False])
def test_retry_changes_and_queues_a_finished_job_in_one_step(desk: Desk, is_up: bool) -> None:
    job, other = desk.job("python old.py"), desk.job("python old.py")
    for one in (job, other):
        desk.record(changes.finish(one, Outcome.FAILED))
    with desk.scheduler() if is_up else nullcontext():
        code, out, err = desk.run("retry", job, other, *CHANGES)
    said = "gpus=2 timeout=2h command set, and queued again"
    assert (code, out, err) == (0, f"job {job}: {said}\njob {other}: {said}\n", "")
    for one in (job, other):
        row = desk.store.job(one)
        assert row is not None
        assert (row.state, row.spec.gpus, row.spec.timeout_s) == (JobState.QUEUED, 2, 7200.0)
        assert row.spec.command == "python new.py"


@pytest.mark.parametrize("is_up", [True, False])
def test_retry_changes_nothing_of_a_job_that_it_does_not_queue(desk: Desk, is_up: bool) -> None:
    job = desk.job()
    with desk.scheduler() if is_up else nullcontext():
        code, _, err = desk.run("retry", job, "--set", "gpus=2")
    assert code == 1
    assert f"job {job} is queued; retry needs a job that is " in err
    assert spec(desk, job)["gpus"] is None


def test_retry_replaces_the_parents_because_of_which_a_job_was_skipped(desk: Desk) -> None:
    first, second = desk.job(), desk.job()
    child = desk.job_after(first)
    desk.record(changes.finish(first, Outcome.FAILED))
    desk.record(act.SettleDependencies())
    assert desk.run("retry", child, "--set", f"after={child}")[2].endswith(
        f"job {child} would wait for itself; its dependencies were not changed\n"
    )
    with desk.scheduler():
        code, out, err = desk.run("retry", child, "--set", f"after={second}")
        assert (code, out, err) == (0, f"job {child}: after={second} set, and queued again\n", "")
    assert (desk.state(child), parents(desk, child)) == (JobState.QUEUED, [(second, str(second))])


def test_retry_with_a_wrong_change_or_of_a_job_with_a_line_requests_nothing(desk: Desk) -> None:
    job, other = desk.job(), desk.job()
    for one in (job, other):
        desk.record(changes.finish(one, Outcome.FAILED))
    code, _, err = desk.run("retry", job, "--set", "vram=20H")
    assert (code, "memory '20H'" in err, "nothing was changed" in err) == (2, True, True)
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES ('/home/me/jobs.txt', '/')")
        db.execute(
            "INSERT INTO line (path, position, number, text, job_id)"
            " VALUES ('/home/me/jobs.txt', 1, 4, '', ?)",
            (other,),
        )
    code, _, err = desk.run("retry", "--failed", "--set", "vram=1G")
    assert (code, "edit line 4 of /home/me/jobs.txt instead" in err) == (1, True)
    assert desk.requests() == []
