"""Sweeps with `submit --grid` and `add --grid`, and commands on the groups of jobs that they give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store.job_lists import dependencies_of
from tests import changes
from tests.cli.desk import Desk

SWEEP = ("--grid", "lr=0.1,0.01", "--grid", "seed=1..2", "--max-running", "3")
COMMAND = ("--", "python", "train.py", "--lr", "{lr}", "--seed", "{seed}")
NAMES = [f"train/lr={lr}/seed={seed}" for lr in ("0.1", "0.01") for seed in (1, 2)]


def jobs(desk: Desk) -> list[tuple[str | None, str]]:
    return [
        (row["name"], row["text"]) for row in desk.store.db.rows("SELECT name, text FROM job ORDER BY id")
    ]


def sweep(desk: Desk, *outcomes: Outcome | None) -> None:
    """Submits four jobs of the group train. outcomes: how each has ended; None if it is queued."""
    assert desk.store
    assert desk.run("submit", *SWEEP, *COMMAND)[0] == 0
    for job_id, outcome in enumerate(outcomes, 1):
        if outcome is not None:
            desk.record(changes.finish(job_id, outcome))


def carried_out(desk: Desk) -> list[tuple[str, str]]:
    """Returns the verb and target of each request. None is open."""
    assert desk.requests() == []
    return [
        (row["verb"], row["target"])
        for row in desk.store.db.rows("SELECT verb, target FROM request ORDER BY id")
    ]


def test_a_grid_gives_a_job_for_each_combination(desk: Desk) -> None:
    assert desk.store
    code, out, err = desk.run("submit", *SWEEP, *COMMAND)
    texts = [f"python train.py --lr {lr} --seed {seed}" for lr in ("0.1", "0.01") for seed in (1, 2)]
    assert (code, jobs(desk)) == (0, list(zip(NAMES, texts, strict=True)))
    assert out.splitlines()[3] == f"job 4 submitted: {NAMES[3]}: {texts[3]}"
    missing = f"gpu-scheduler: warning: script {desk.path}/train.py does not exist"
    waits = f"gpu-scheduler: no scheduler is running, so the jobs wait until `start` in {desk.path}"
    assert err.splitlines() == [missing, waits]  # each warning once
    assert desk.store.job(1).spec.max_running == 3  # type: ignore[union-attr]


def test_a_dry_run_shows_the_jobs_and_submits_none(desk: Desk) -> None:
    code, out, err = desk.run("submit", "--dry-run", *SWEEP, *COMMAND)
    assert (code, out.splitlines()[0]) == (0, f"{NAMES[0]}: python train.py --lr 0.1 --seed 1")
    assert (len(out.splitlines()), err.splitlines()[-1]) == (
        4,
        "gpu-scheduler: 4 jobs; nothing was submitted",
    )
    code, out, _ = desk.run("submit", "--dry-run", "--json", *SWEEP, *COMMAND)
    assert [one["name"] for one in json.loads(out)["jobs"]] == NAMES
    assert not desk.data_dir.folder.exists()


def test_many_jobs_of_a_grid_are_announced_in_one_line(desk: Desk) -> None:
    assert desk.store
    code, out, _ = desk.run("submit", "--grid", "n=1..30", "--name", "x", "--", "echo {n}")
    assert (code, out) == (0, "30 jobs submitted, x/n=1 and others: 1-30\n")
    assert json.loads(desk.run("submit", "--json", "--grid", "n=1,2", "--", "echo {n}")[1]) == {
        "ids": [31, 32]
    }
    assert jobs(desk)[29:31] == [("x/n=30", "echo 30"), ("echo/n=1", "echo 1")]


def test_values_reach_a_script_its_arguments_and_the_attributes(desk: Desk, tmp_path: Path) -> None:
    assert desk.store
    (tmp_path / "fit.py").touch()
    words = ("--grid", "n=1,2", "--grid", "m=4G,5G", "--zip", "--vram", "{m}", "--env", "N={n}")
    assert desk.run("submit", *words, "fit.py", "--seed", "{n}")[0] == 0
    specs = [job.spec for n in (1, 2) if (job := desk.store.job(n)) is not None]
    assert [(one.name, one.vram, one.env) for one in specs] == [
        ("fit/n=1/m=4G", 4096, (("N", "1"),)),
        ("fit/n=2/m=5G", 5120, (("N", "2"),)),
    ]
    assert specs[1].text.endswith("fit.py --seed 2")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--grid", "lr=1", "--", "echo {lr} {sed}"), "{sed} is none of the keys lr"),
        (("--grid", "lr=1", "--grid", "n=2", "--", "echo {lr}"), "--grid: n is not used; write {n}"),
        (("--grid", "lr=1,1", "--", "echo {lr}"), "a value is given twice"),
        (("--zip", "--", "echo"), "--zip combines the values of several --grid"),
        (("--grid", "m=1G,x", "--vram", "{m}", "--", "true"), "'x'"),
        (("--grid", "j=1,7", "--after", "{j}", "--", "true"), "--after 7: there is no job 7"),
        (("--max-running", "2", "--", "true"), "max-running counts the jobs of a group; give a name too"),
        (("--max-running", "0", "--name", "a/b", "--", "true"), "max-running=0 is not a whole number from 1"),
    ],
)
def test_a_wrong_combination_submits_none_of_the_jobs(
    desk: Desk, words: tuple[str, ...], problem: str
) -> None:
    desk.job()
    code, out, err = desk.run("submit", *words)
    assert (code, out, len(jobs(desk))) == (2, "", 1)
    assert problem in err
    assert "nothing was submitted" in err


def test_add_appends_a_line_for_each_combination(desk: Desk) -> None:
    code, out, _ = desk.run("add", *SWEEP, *COMMAND)
    assert (code, (desk.path / "jobs.txt").read_text()) == (0, out)
    assert out.splitlines()[3] == (f"[name={NAMES[3]} max-running=3] python train.py --lr 0.01 --seed 2")
    code, again, _ = desk.run("add", "--output-file", "-", *SWEEP, *COMMAND)
    assert again == out
    code, _, err = desk.run("add", *SWEEP, "--", "echo {lr}")
    assert (code, "seed is not used" in err, "nothing was added" in err) == (2, True, True)
    assert (desk.path / "jobs.txt").read_text() == out


C, F, X, S = Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED, Outcome.SKIPPED


@pytest.mark.parametrize(
    ("command", "outcomes", "targets"),
    [
        ("cancel train", (C, None, None, None), "234"),
        ("cancel 'train/*=2'", (C, None, None, None), "24"),
        ("cancel train/lr=0.1/seed=2", (C, None, None, None), "2"),
        ("hold train", (C, None, None, None), "234"),
        ("priority train 5", (F, None, None, None), "234"),
        ("retry train", (C, F, X, None), "23"),
        ("retry train", (C, S, Outcome.TIMED_OUT, Outcome.INTERRUPTED), "34"),
        ("clear train", (C, F, None, None), "12"),
    ],
)
def test_a_group_means_the_jobs_that_the_command_concerns(
    desk: Desk, command: str, outcomes: tuple[Outcome | None, ...], targets: str
) -> None:
    sweep(desk, *outcomes)
    assert desk.run(*command.replace("'", "").split())[0] == 0
    verb = "set" if command.startswith("priority") else command.split()[0]
    assert carried_out(desk) == [(verb, target) for target in targets]


def test_release_of_a_group_concerns_its_held_jobs(desk: Desk) -> None:
    sweep(desk, None, C)
    desk.record(changes.hold(3))
    assert desk.run("release", "train")[0] == 0
    assert carried_out(desk) == [("release", "3")]


def test_a_group_with_nothing_to_do_is_refused(desk: Desk) -> None:
    sweep(desk, C, C, C, C)
    for words in (("cancel", "train"), ("retry", "train"), ("hold", "train/*")):
        code, out, err = desk.run(*words)
        assert (code, out, desk.requests()) == (1, "", [])
        assert f"{words[1]} means 4 jobs, none of which this command concerns (completed)" in err
    for word, problem in (
        ("eval", "there is no job named eval"),
        ("x*", "there is no job with a name such as"),
    ):
        code, _, err = desk.run("cancel", word)
        assert (code, problem in err) == (1, True)


@pytest.mark.parametrize(
    "words", ["logs {}", "attach {}", "show {}", "why {}", "preempt {}", "set {} vram=1G"]
)
@pytest.mark.parametrize("group", ["train", "train/*"])
def test_a_command_for_one_job_refuses_a_group_with_its_jobs(desk: Desk, words: str, group: str) -> None:
    sweep(desk, None, C)
    code, _, err = desk.run(*words.format(group).split())
    assert code == 1
    assert f"{group} means 4 jobs: 1-4\ngive a job number instead; nothing was done" in err


def test_an_exact_name_wins_over_a_group_and_a_cleared_job_belongs_to_none(desk: Desk) -> None:
    sweep(desk, C)
    assert desk.run("clear", "1")[0] == 0
    desk.run("submit", "--after", "train", "--", "true")
    assert {one.parent_id for one in dependencies_of(desk.store, [5])[5]} == {2, 3, 4}
    desk.job(name="train")
    assert desk.run("cancel", "train")[0] == 0
    assert carried_out(desk) == [("clear", "1"), ("cancel", "6")]
    assert [desk.state(job) for job in (2, 6)] == ["queued", "finished"]


def test_a_name_in_a_group_means_its_newest_job(desk: Desk) -> None:
    sweep(desk, F, C, C, C)
    sweep(desk)
    desk.record(changes.finish(5, C))
    code, _, err = desk.run("retry", "train")
    assert (code, "none of which" in err) == (1, True)
    desk.run("submit", "--after", "train", "--", "true")
    assert {one.parent_id for one in dependencies_of(desk.store, [9])[9]} == {5, 6, 7, 8}


def test_wait_waits_for_all_jobs_of_a_group(desk: Desk) -> None:
    sweep(desk, C, C, F, None)
    code, _, err = desk.run("wait", "--job", "train", "--timeout", "0.1")
    assert (code, "job 3 failed" in err) == (124, True)
    desk.record(changes.finish(4, C))
    assert desk.run("wait", "--job", "train")[0] == 1


def test_status_of_a_group_shows_only_its_jobs(desk: Desk) -> None:
    sweep(desk, C)
    desk.job("other")
    spec_key = desk.store.job(2).spec_key  # type: ignore[union-attr]
    full = WaitReason(WaitKind.GROUP_FULL, "train", running=3, max_running=3)
    desk.record(act.SetWaitReason(spec_key, full))
    with desk.scheduler():
        code, out, _ = desk.run("status", "train")
        assert (code, out.split(";")[0]) == (0, "4 jobs: 1 completed, 3 queued")
        assert "3 jobs wait, 3 of 3 jobs of group train are running: 2-4" in out
        assert "other" not in out
        shown = json.loads(desk.run("status", "train", "--json")[1])
        assert ([job["id"] for job in shown["jobs"]], shown["counts"]) == (
            [1, 2, 3, 4],
            {"finished": 1, "queued": 3},
        )
        assert desk.run("status", "5")[1].startswith("1 job: 1 queued")
        why = desk.run("why", "2")[1]
        assert "placing               3 of 3 jobs of group train are running (max-running)" in why
    assert desk.run("status", "nobody")[0] == 1


def test_jobs_wait_anew_when_their_group_has_a_place_again(desk: Desk) -> None:
    sweep(desk)
    with desk.store.db.transaction() as db:
        db.execute("UPDATE job SET queued_at = 7.0")
    key = desk.store.job(1).spec_key  # type: ignore[union-attr]
    for kind, is_anew in (
        (WaitKind.GROUP_FULL, False),
        (WaitKind.GROUP_FULL, False),
        (WaitKind.NO_FREE_GPU, True),
    ):
        desk.record(act.SetWaitReason(key, WaitReason(kind)))
        assert (desk.store.db.rows("SELECT min(queued_at) AS at FROM job")[0]["at"] > 7.0) == is_anew


def test_a_wrong_grid_is_answered_with_its_form(desk: Desk) -> None:
    code, _, err = desk.run("submit", "--grid", "lr", "--", "echo", "{lr}")
    assert (code, "'lr' is not KEY=VALUES, such as lr=0.1,0.01 or seed=1..3" in err) == (2, True)
    assert "did you mean `--env KEY=VALUE`?" in desk.run("submit", "--export=A=1", "--", "true")[2]
