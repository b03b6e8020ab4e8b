"""The commands show on which jobs a job depends, and why it waits for them or was skipped."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from gpu_scheduler.core.model.job_spec import UNRESOLVED, Dependency, DependencyKind
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests import changes
from tests.cli.desk import Desk
from tests.cli.test_why import run_to_end
from tests.waiting import wait_for

HELD_BY_USER = StateReason(ReasonKind.HELD_BY_USER)


def why(desk: Desk, job: int) -> dict[str, list[tuple[str, str, str]]]:
    """Returns the checks of a job as (grade, message, remedy), by name."""
    code, out, err = desk.run("why", job, "--json")
    assert (code, err) == (0, "")
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in json.loads(out)["checks"]:
        found.setdefault(one["check"], []).append((one["grade"], one["message"], one["remedy"]))
    return found


def shown_job(desk: Desk, job: int) -> dict[str, Any]:
    [found] = [one for one in json.loads(desk.run("status", "--json")[1])["jobs"] if one["id"] == job]
    return dict(found)


def finish(desk: Desk, job: int, outcome: Outcome) -> None:
    desk.record(changes.finish(job, outcome))
    desk.record(act.SettleDependencies())


def test_status_names_the_jobs_for_which_a_job_waits(desk: Desk) -> None:
    first, second = desk.job(), desk.job()
    child = desk.job_after(first, second)
    desk.record(changes.hold(second))
    reason = f"after job {first} (queued), job {second} (held)"
    assert shown_job(desk, child)["reason"] == reason
    assert reason in desk.run("status")[1]
    finish(desk, first, Outcome.COMPLETED)
    found = shown_job(desk, child)
    assert found["reason"] == f"after job {second} (held)"
    assert [(one["id"], one["state"], one["outcome"]) for one in found["after"]] == [
        (first, "finished", "completed"), (second, "held", None),
    ]  # fmt: skip


def test_why_shows_the_parents_of_a_job_and_the_job_that_needs_the_user(desk: Desk) -> None:
    root = desk.job()
    parent = desk.job_after(root, name="data")
    child = desk.job_after(parent)
    last = desk.job_after(child, kind=DependencyKind.FINISHED)
    assert "blocked by" not in why(desk, last)
    desk.record(changes.hold(root))
    found = why(desk, child)
    assert found["parent"] == [("warn", f"after={parent}: job {parent} (data) is queued", "")]
    assert found["children"] == [("ok", f"1 job depends on it: {last}", "")]
    assert "order" not in found
    assert found["placing"] == [("ok", "GPU 0 would accept the job now", "")]
    assert f"Parent        after={parent}: job {parent} (data) is queued\n" in desk.run("show", child)[1]
    assert why(desk, last)["parent"][0][1] == f"after-any={child}: job {child} is queued"
    assert why(desk, last)["blocked by"] == [
        ("bad", f"job {root} is held by the user", f"`release {root}` queues it")
    ]
    assert json.loads(desk.run("why", last, "--json")[1])["after"][0]["reference"] == str(child)


def test_why_shows_a_reference_that_names_no_job(desk: Desk) -> None:
    lost = desk.job_after(UNRESOLVED, kind=DependencyKind.FINISHED)
    child = desk.job_after(lost)
    [(grade, message, remedy)] = why(desk, lost)["parent"]
    assert (grade, message) == ("bad", "after-any=prep names no job, or a job that waits for this one")
    assert remedy.endswith(f"or remove it with `set {lost} after-any=`")
    assert why(desk, child)["blocked by"][0][1] == (
        f"job {lost} waits for prep (no such job, or it waits for this job)"
    )


def test_why_explains_how_to_run_a_skipped_job(desk: Desk) -> None:
    root = desk.job()
    parent = desk.job_after(root)
    child = desk.job_after(parent)
    finish(desk, root, Outcome.FAILED)
    assert shown_job(desk, child)["outcome"] == "skipped"
    assert desk.run("why", child)[1].startswith(f"job {child} skipped: job {parent} was skipped\n")
    [(grade, message, remedy)] = why(desk, child)["end"]
    assert (grade, message) == ("bad", f"skipped: job {parent} was skipped")
    assert remedy == (
        f"`retry {root}` queues job {root} and this job again; or change the dependency with"
        f" `set {child} after=JOBS`, or remove it with `set {child} after=`"
    )
    assert why(desk, child)["parent"][0][:2] == (
        "warn", f"after={parent}: job {parent} has ended: skipped",
    )  # fmt: skip


def test_why_says_that_a_held_job_will_be_skipped(desk: Desk) -> None:
    parent = desk.job()
    child = desk.job_after(parent)
    desk.record(changes.hold(child))
    finish(desk, parent, Outcome.FAILED)
    found = why(desk, child)
    assert found["held"][0][1] == "held by the user"
    assert found["parent"][0][:2] == (
        "bad",
        f"after={parent}: job {parent} has ended: failed; this job will be skipped once it is queued",
    )


def test_why_names_only_the_first_of_many_parents_and_children(desk: Desk) -> None:
    parents = [desk.job() for _ in range(12)]
    child = desk.job_after(*parents)
    for _ in range(7):
        last = desk.job_after(child)
    assert [one[1] for one in why(desk, child)["parent"]][-1] == "and 2 more jobs"
    assert len(why(desk, child)["parent"]) == 11
    listed = ", ".join(str(last - 6 + n) for n in range(5))
    assert why(desk, child)["children"][0][1] == f"7 jobs depend on it: {listed} and 2 more"


def test_the_list_of_failed_jobs_counts_the_skipped_ones(desk: Desk) -> None:
    first = desk.job()
    child = desk.job_after(first)
    desk.job_after(child)
    assert "skipped" not in desk.run("status", "--failed")[1]
    finish(desk, first, Outcome.FAILED)
    lines = desk.run("status", "--failed")[1].splitlines()
    assert lines[0].startswith("1 job: 1 failed")
    assert "2 jobs were skipped, because other jobs did not complete (status --all)" in lines
    assert desk.run("status")[1].startswith("3 jobs: 1 failed, 2 skipped\n")


def test_a_retry_that_would_be_skipped_names_the_job_to_retry_first(desk: Desk) -> None:
    root = desk.job()
    parent = desk.job_after(root)
    child = desk.job_after(parent)
    finish(desk, root, Outcome.FAILED)
    with desk.scheduler():
        code, out, err = desk.run("retry", child)
        assert (code, out) == (1, "")
        assert err == (
            f"gpu-scheduler: job {child} would be skipped, because job {parent} did not complete; run"
            f" `retry {root}` first, which also queues the jobs that were skipped because of it\n"
        )
        assert desk.run("retry", root) == (0, f"job {root}: queued again\n", "")
        wait_for(lambda: desk.state(child) == "queued", "the skipped job in the queue")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "job {parent} failed, so the job will be skipped"),
        ("true", "after jobs whose end is not recorded yet"),
    ],
)
def test_the_end_of_a_parent_counts_even_if_no_scheduler_has_recorded_it(
    desk: Desk, script: str, reason: str
) -> None:
    parent = run_to_end(desk, script)
    child = desk.job_after(parent)
    found = shown_job(desk, child)
    assert found["reason"] == reason.format(parent=parent)
    assert found["after"][0]["state"] == "finished"
    assert desk.run("why", child)[1].startswith(f"job {child} is queued: {found['reason']}\n")


@pytest.mark.parametrize("up", [True, False])
def test_a_cancelled_job_whose_parent_failed_is_retried_together_with_it_or_without_it(
    desk: Desk, up: bool
) -> None:
    parent = desk.job()
    child = desk.job_after(parent)
    desk.record(changes.finish(child, Outcome.CANCELLED))
    finish(desk, parent, Outcome.CANCELLED)
    assert why(desk, child)["end"][0][2] == f"`retry {parent} {child}` runs it again, and first job {parent}"
    with desk.scheduler() if up else nullcontext():
        assert desk.run("retry", child) == (
            1, "", f"gpu-scheduler: job {child} would be skipped, because job {parent} did not complete; run"
            f" `retry {parent} {child}`, or change what job {child} waits for\n",
        )  # fmt: skip
        assert desk.run("set", child, "after=")[0] == 0
        assert desk.run("retry", child)[0] == 0
    with desk.scheduler():
        wait_for(lambda: not desk.requests(), "the change and the retry")
        assert [desk.state(job) for job in (parent, child)] == ["finished", "queued"]


@pytest.mark.parametrize("is_root_first", [True, False])
@pytest.mark.parametrize("up", [True, False])
def test_a_job_and_the_job_because_of_which_its_parent_was_skipped_can_be_retried_together(
    desk: Desk, is_root_first: bool, up: bool
) -> None:
    root = desk.job()
    skipped, child = desk.job_after(root), desk.job()
    finish(desk, root, Outcome.FAILED)
    finish(desk, child, Outcome.FAILED)
    kind = DependencyKind.COMPLETED
    desk.record(act.SetDependencies(child, kind, (Dependency(skipped, kind, "x"),)))
    jobs = [root, child] if is_root_first else [child, root]
    if not up:
        assert desk.run("retry", *jobs)[0] == 0
    with desk.scheduler():
        if up:
            code, out, err = desk.run("retry", *jobs)
            assert (code, err) == (0, "")
            assert sorted(out.splitlines()) == [f"job {job}: queued again" for job in (root, child)]
        wait_for(lambda: not desk.requests(), "the retries")
        assert [desk.state(job) for job in (root, skipped, child)] == ["queued"] * 3


@pytest.mark.parametrize("first_is_parent", [True, False])
def test_a_job_and_its_failed_parent_can_be_retried_together(desk: Desk, first_is_parent: bool) -> None:
    pair = [desk.job(), desk.job()]
    parent, child = pair if first_is_parent else reversed(pair)
    finish(desk, parent, Outcome.FAILED)
    finish(desk, child, Outcome.FAILED)
    kind = DependencyKind.COMPLETED
    desk.record(act.SetDependencies(child, kind, (Dependency(parent, kind, "x"),)))
    code, out, err = desk.run("retry", child)
    assert (code, out) == (1, "")
    assert f"because job {parent} did not complete; run `retry {parent} {child}`, or change" in err
    assert desk.requests() == []
    with desk.scheduler():
        code, out, err = desk.run("retry", "--failed")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"job {job}: queued again" for job in sorted(pair)]
