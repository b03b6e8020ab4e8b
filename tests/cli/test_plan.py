"""`plan` prints when the jobs of the queue are expected to start and end."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from gpu_scheduler.control.job_requests import cancel
from gpu_scheduler.core.model.job_spec import DependencyKind
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests import changes
from tests.cli.desk import Desk


def learn(desk: Desk, text: str, *seconds: float) -> None:
    """Records completed runs of a command."""
    for number, run_time in enumerate(seconds):
        job = desk.job(text, command=f"{text} --seed {number}")
        this = desk.record(act.Start(job, ("SIM-0",), 1000, whole=True))[job]
        desk.record(
            changes.run(this),
            changes.end(this, Outcome.COMPLETED, started_at=100.0, ended_at=100.0 + run_time),
            *changes.leave(this),
        )  # fmt: skip


def run(desk: Desk, job: int, gpu: str, age_s: float) -> None:
    """Makes a queued job run, without a process, for age_s seconds already."""
    this = desk.record(act.Start(job, (gpu,), 1000, whole=True))[job]
    attempt = desk.store.attempt(this)
    assert attempt is not None
    desk.folder(attempt).mkdir(parents=True)
    desk.record(changes.run(this))
    with desk.store.db.transaction() as db:
        db.execute("UPDATE attempt SET started_at = ? WHERE id = ?", (time.time() - age_s, this))


def whole(desk: Desk, text: str, **values: Any) -> int:
    return desk.job(text, share=1000, **values)


def plan_json(desk: Desk, *words: object) -> dict[str, Any]:
    code, out, err = desk.run("plan", "--json", *words)
    assert (code, err) == (0, "")
    value: dict[str, Any] = json.loads(out)
    return value


def jobs_of(desk: Desk) -> dict[int, dict[str, Any]]:
    return {job["id"]: job for job in plan_json(desk)["jobs"]}


def test_shows_start_end_and_gpus_of_running_and_waiting_jobs(desk: Desk) -> None:
    learn(desk, "python even.py", *[3600.0] * 12)
    first, second, third = (whole(desk, "python even.py", name=name) for name in ("one", "two", "three"))
    run(desk, first, "SIM-0", 1800)
    run(desk, second, "SIM-1", 600)
    value = plan_json(desk)
    shown = {job["id"]: job for job in value["jobs"]}
    assert list(shown) == [first, second, third]
    assert (shown[third]["gpus"], shown[third]["state"], shown[third]["name"]) == ([0], "queued", "three")
    # Job 3 follows the first one on GPU 0.
    assert abs(shown[third]["start_at"] - value["now"] - 1800) < 30
    assert abs(shown[third]["end_at"] - value["now"] - 5400) < 30
    assert shown[third]["end_p90_at"] == shown[third]["end_at"]
    assert all(job["has_estimate"] for job in shown.values())
    assert abs(value["idle_share"]) < 0.02
    code, out, err = desk.run("plan")
    assert (code, err) == (0, "")
    head, *rows = out.split("\n\n")[0].splitlines()
    assert head.split() == ["Job", "Start", "In", "End", "In", "90%", "GPUs", "What"]
    assert re.fullmatch(rf" *{third} .* +(30m|29m5\ds|30m\ds) .* +(1h30m|1h29m) .* +0 +three", rows[2])
    assert "No scheduler is running. The times assume that one starts now.\n" in out
    assert "Jobs that are submitted later are not included; they can delay these starts.\n" in out


def test_says_how_likely_a_start_is_and_how_jobs_without_an_estimate_count(desk: Desk) -> None:
    learn(desk, "python even.py", *[3600.0] * 9, 7200.0, 7200.0, 7200.0)
    first, second, third = (
        whole(desk, text) for text in ("python new.py", "python new.py", "python even.py")
    )
    run(desk, first, "SIM-0", 60)
    run(desk, second, "SIM-1", 60)
    value = plan_json(desk)
    shown = {job["id"]: job for job in value["jobs"]}
    assert [shown[job]["has_estimate"] for job in (first, second, third)] == [False, False, True]
    # They count as all runs here: an hour, and two hours at most.
    assert abs(shown[third]["start_at"] - value["now"] - 3540) < 30
    assert abs(shown[third]["start_p90_at"] - value["now"] - 7140) < 30
    out = desk.run("plan")[1]
    assert re.search(r"(59m|58m5\ds|59m\d+s) to (1h59m|1h58m)", out)
    counted = "count as the runs of all jobs here (median 1 h, nine of ten at most 2 h)"
    shows = f"No earlier run shows how long jobs {first}, {second} take, so they {counted}"
    assert shows in " ".join(out.split())


def test_jobs_count_with_a_guess_as_long_as_few_runs_are_known(desk: Desk) -> None:
    learn(desk, "python even.py", 3600.0)
    first = whole(desk, "python new.py")
    run(desk, first, "SIM-0", 60)
    shown = jobs_of(desk)[first]
    assert (shown["has_estimate"], round(shown["end_at"] - shown["start_at"])) == (False, 660)
    assert "so it counts as 10 minutes, or as long again as the time so far" in " ".join(
        desk.run("plan")[1].split()
    )


def test_says_why_a_job_has_no_forecast(desk: Desk) -> None:
    held, wide = whole(desk, "true"), desk.job("true", gpus=3, share=1000)
    desk.record(changes.hold(held))
    child = desk.job_after(held, share=1000)
    lost = desk.job_after(0, share=1000)
    shown = jobs_of(desk)
    assert [shown[job]["start_at"] for job in (held, wide, child, lost)] == [None] * 4
    assert "held" in shown[held]["no_forecast"]
    assert "only 2 are managed" in shown[wide]["no_forecast"]
    assert f"job {held} (held)" in shown[child]["no_forecast"]
    assert "no such job" in shown[lost]["no_forecast"]
    assert f"\n{held:3}  " in desk.run("plan")[1]


def test_a_job_waits_for_its_parents(desk: Desk) -> None:
    learn(desk, "python even.py", *[3600.0] * 12)
    parent = whole(desk, "python even.py")
    child = desk.job_after(parent, kind=DependencyKind.FINISHED, share=1000, command="python even.py")
    shown = jobs_of(desk)
    assert shown[child]["start_at"] == shown[parent]["end_at"]


def test_says_that_gpus_are_paused(desk: Desk) -> None:
    whole(desk, "true")
    for index in range(2):
        desk.record(changes.pause(f"SIM-{index}"))
    assert "paused" in desk.run("plan")[1]


def test_a_job_that_will_be_cancelled_takes_no_gpu(desk: Desk) -> None:
    learn(desk, "python even.py", *[3600.0] * 12)
    wide = desk.job("python even.py", gpus=2, share=1000)
    other = whole(desk, "python even.py")
    shown = jobs_of(desk)
    assert shown[other]["start_at"] == shown[wide]["end_at"]
    cancel(desk.server, [wide], 1.0)
    shown = jobs_of(desk)
    assert shown[other]["start_at"] < shown[other]["end_at"] - 3599
    assert "cancel requested" in shown[wide]["no_forecast"]


def test_an_empty_queue_and_a_missing_store(desk: Desk) -> None:
    assert desk.run("plan") == (0, "No job is running or waiting.\n", "")
    assert plan_json(desk)["jobs"] == []
    assert desk.store
    assert desk.run("plan") == (0, "No job is running or waiting.\n", "")
    assert list(desk.path.glob("*.json")) == []


def test_forecasts_the_first_thousand_queued_jobs_unless_all_are_asked_for(
    desk: Desk, monkeypatch: Any
) -> None:
    monkeypatch.setattr("gpu_scheduler.show.plan.MAX_JOBS", 2)
    for _ in range(3):
        whole(desk, "true")
    assert (len(jobs_of(desk)), plan_json(desk)["omitted"]) == (2, 1)
    assert "1 queued job behind these is not shown (plan --all)." in desk.run("plan")[1]
    assert (len(plan_json(desk, "--all")["jobs"]), plan_json(desk, "--all")["omitted"]) == (3, 0)


def test_the_json_has_the_documented_keys(desk: Desk) -> None:
    whole(desk, "true")
    value = plan_json(desk)
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    for title, keys in {
        "# `plan --json`": value,
        "## An element of `jobs` in `plan --json`": value["jobs"][0],
    }.items():
        section = re.split(r"^#", text.partition(f"\n{title}\n")[2], flags=re.MULTILINE)[0]
        rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
        assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(keys), title


def test_a_running_scheduler_is_named_and_needs_no_note(desk: Desk) -> None:
    whole(desk, "true")
    with desk.scheduler("deaf") as pid:
        assert plan_json(desk)["scheduler"] == pid
        assert "No scheduler" not in desk.run("plan")[1]


def test_rows_fit_eighty_columns(desk: Desk) -> None:
    from gpu_scheduler.show.location import Location
    from gpu_scheduler.show.plan import forecast_queue, to_text

    whole(desk, "python train.py " + "--option value " * 20)
    whole(desk, "x" * 200)
    desk.job("true", gpus=3, share=1000)
    view = forecast_queue(Location(str(desk.data_dir.state_file)))
    lines = to_text(view, 80).splitlines()
    assert max(map(len, lines)) <= 80
