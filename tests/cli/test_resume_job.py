"""The command `resume --job`, with and without a scheduler."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.control.preempt import resume_job
from gpu_scheduler.control.requests import AnswerKind
from gpu_scheduler.core.model.job import Checkpoint, Job
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests import changes
from tests.cli.desk import Desk
from tests.processes import kill_attempts
from tests.waiting import wait_for

COMMAND = "python train.py --output_dir outputs"


def stopped(desk: Desk, text: str = COMMAND, outcome: Outcome = Outcome.PREEMPTED, **values: Any) -> int:
    """Adds a job whose attempt was preempted or interrupted, or has finished."""
    job = desk.job(text, **values)
    row = desk.attempt(job)
    desk.record(changes.end(row.id, outcome), *changes.leave(row.id))
    return job


def save(desk: Desk, step: int, folder: str = "outputs") -> Path:
    """Makes a complete checkpoint."""
    path = desk.path / folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text("{}")
    return path


def recorded(desk: Desk, job: int) -> Job:
    row = desk.store.job(job)
    assert row is not None
    return row


@pytest.mark.parametrize(
    "outcome", [Outcome.PREEMPTED, Outcome.INTERRUPTED, Outcome.FAILED, Outcome.CANCELLED]
)
def test_continues_a_job_from_its_newest_checkpoint(desk: Desk, outcome: Outcome) -> None:
    job = stopped(desk, outcome=outcome, name="exp02-training")
    save(desk, 100)
    path = save(desk, 150)
    with desk.scheduler():
        code, out, err = desk.run("resume", "--job", "exp02-training")
        expected = (
            f"job {job} (exp02-training) queued again, resuming from outputs/checkpoint-150 (step 150)\n"
        )
        assert (code, out, err) == (0, expected, "")
        assert desk.state(job) == "queued"
    assert "Resumes       from outputs/checkpoint-150 (step 150)\n" in desk.run("show", job)[1]
    shown = json.loads(desk.run("show", job, "--json")[1])
    assert shown["resumes_from"] == {"path": str(path), "step": 150}
    assert shown["history"][-1]["reason"] == f"resumed from {path}"
    desk.attempt(job)
    assert "resumes from step 150" in desk.run("why", job)[1]


def test_without_a_scheduler_the_request_is_carried_out(desk: Desk) -> None:
    job = stopped(desk)
    path = save(desk, 150)
    said = f"job {job} queued again, resuming from outputs/checkpoint-150 (step 150)\n"
    assert desk.run("resume", "--job", job) == (0, said, "")
    assert desk.requests() == []
    row = recorded(desk, job)
    saved_at = os.stat(path / "trainer_state.json").st_mtime
    assert row.resume_from == Checkpoint(str(path), 150.0, saved_at)
    assert (row.state, row.min_vram_mib) == (JobState.QUEUED, None)


def test_a_server_only_records_the_request_and_status_shows_it(desk: Desk) -> None:
    job = stopped(desk)
    save(desk, 150)
    assert resume_job(desk.server, job).answer.kind is AnswerKind.RECORDED
    assert (desk.requests(), desk.state(job)) == ([("resume_job", str(job))], "held")
    assert "resume --job requested; waiting for the scheduler" in desk.run("status")[1]


def test_a_named_checkpoint_is_found_in_the_current_folder_or_in_that_of_the_job(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stopped(desk, outcome=Outcome.COMPLETED)
    here, there = save(desk, 50, "elsewhere"), save(desk, 100)
    state = ("--state-file", desk.data_dir.state_file)
    monkeypatch.chdir(desk.path / "elsewhere")
    for name, path in (("checkpoint-50", here), ("outputs/checkpoint-100", there), (str(there), there)):
        assert desk.run("resume", "--job", job, "--from", name, *state)[0] == 0
        resumed = recorded(desk, job).resume_from
        assert (resumed and resumed.path, desk.state(job)) == (str(path), "queued")
        desk.record(changes.finish(job, Outcome.COMPLETED))
    code, out, err = desk.run("resume", "--job", job, "--from", "nowhere", *state)
    assert (code, out, err) == (2, "", "gpu-scheduler: --from nowhere: there is no such file or folder\n")


@pytest.mark.parametrize(
    ("command", "values", "why"),
    [
        (COMMAND, {}, "none was found in its --output_dir outputs"),
        ("python train.py", {}, "its command has no --output_dir, and it has no attribute checkpoints="),
        ("python train.py --output-dir outputs", {}, "none was found in its --output-dir outputs"),
        ("python train.py", {"checkpoints": "*.pt"}, "none matches checkpoints=*.pt"),
    ],
)
def test_a_job_without_a_checkpoint_is_refused_with_what_to_do(
    desk: Desk, command: str, values: dict[str, Any], why: str
) -> None:
    job = stopped(desk, command, **values)
    code, out, err = desk.run("resume", "--job", job)
    assert (code, out) == (1, "")
    assert err == (
        f"gpu-scheduler: job {job} has no complete checkpoint: {why}\n"
        f"`retry {job}` starts it from its beginning, and `resume --job {job} --from PATH`"
        " continues from a checkpoint that you name\n"
    )
    assert desk.requests() == []


def test_a_checkpoint_that_is_older_than_the_job_belongs_to_another_run(desk: Desk) -> None:
    path = save(desk, 900)
    os.utime(path / "trainer_state.json", (1, 1))
    job = stopped(desk)
    assert "none was found" in desk.run("resume", "--job", job)[2]


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for s in 1 2; do python train.py --output_dir outputs ; done", "it is unclear where"),
        (
            "bash train.sh --output_dir outputs",
            "arguments on, run `set 1 resume-flag=--resume_from_checkpoint`; otherwise, run `set 1 com",
        ),
        (
            "./train --output_dir outputs",
            "run `set 1 command='…'` with `--resume_from_checkpoint \"$GPU_SCHEDULER_CHECKPOINT\"`",
        ),
    ],
)
def test_a_command_without_a_place_for_the_path_is_refused(
    desk: Desk, text: str, message: str, up: bool
) -> None:
    job = stopped(desk, text)
    save(desk, 150)
    with desk.scheduler() if up else nullcontext():
        code, out, err = desk.run("resume", "--job", job)
    assert (code, out, desk.requests()) == (1, "", [])
    assert message in err
    assert desk.state(job) == "held"


@pytest.mark.parametrize("up", [False, True])
def test_refuses_jobs_in_another_state(desk: Desk, up: bool) -> None:
    queued, completed = desk.job(COMMAND), stopped(desk, outcome=Outcome.COMPLETED)
    save(desk, 150)
    with desk.scheduler() if up else nullcontext():
        assert desk.run("resume", "--job", queued) == (
            1, "",
            f"gpu-scheduler: job {queued} is queued; `resume --job` needs a job that is finished or held\n",
        )  # fmt: skip
        assert desk.run("resume", "--job", completed) == (
            1, "",
            f"gpu-scheduler: job {completed} has completed; `resume --job {completed} --from PATH` continues"
            " it nevertheless\n",
        )  # fmt: skip
        assert "there is no job 99" in desk.run("resume", "--job", 99)[2]
    assert desk.requests() == []


@pytest.mark.parametrize("up", [False, True])
def test_a_skipped_job_is_refused_until_its_parent_is_retried(desk: Desk, up: bool) -> None:
    parent = desk.job()
    child = desk.job_after(parent, text=COMMAND, command=COMMAND)
    save(desk, 150)
    desk.record(changes.finish(parent, Outcome.FAILED), act.SettleDependencies())
    with desk.scheduler() if up else nullcontext():
        code, _, err = desk.run("resume", "--job", child)
    assert code == 1
    assert f"run `retry {parent}` first" in err


@pytest.mark.parametrize(
    ("declared", "peak", "needed"),
    [(None, 9000, 9000), (8000, 9000, 9000), (8000, 7000, None), (None, None, None)],
)
def test_the_job_needs_the_peak_that_was_not_declared(
    desk: Desk, declared: int | None, peak: int | None, needed: int | None
) -> None:
    job = desk.job(COMMAND, vram=declared)
    opened = desk.record(act.Start(job, ("SIM-0",), 0, vram=declared, assumed=declared is None))
    attempt = opened[job]
    if peak is not None:
        desk.record(changes.run(attempt), changes.measure(attempt, 5.0, ("SIM-0", peak, 50.0)))
    desk.record(changes.end(attempt, Outcome.PREEMPTED), *changes.leave(attempt))
    save(desk, 150)
    out = desk.run("resume", "--job", job)[1]
    assert (desk.state(job), recorded(desk, job).min_vram_mib) == ("queued", needed)
    assert ("it needs 8.8 GiB on each GPU, because it has used that much" in out) is (needed is not None)


@pytest.mark.parametrize(
    "words", [[], ["0", "--job", "1"], ["--from", "x"], ["0", "--from", "x"], ["--job", "1-3"]]
)
def test_resume_needs_either_gpus_or_one_job(desk: Desk, words: list[str]) -> None:
    desk.job()
    code, out, err = desk.run("resume", *words)
    assert (code, out) == (2, "")
    assert "resume" in err


def test_a_held_preempted_job_names_the_command_that_continues_it(desk: Desk) -> None:
    job = stopped(desk)
    path = save(desk, 150)
    saved = json.dumps({"path": str(path), "step": 150.0})
    desk.store.db.connection.execute("UPDATE job SET checkpoint = ?", (saved,))
    assert f"`resume --job {job}` queues it" in desk.run("why", job)[1]
    assert "Checkpoint    outputs/checkpoint-150 (step 150)\n" in desk.run("show", job)[1]


@pytest.mark.parametrize("up", [False, True])
def test_a_killed_job_is_resumed_before_its_interruption_is_recorded(desk: Desk, up: bool) -> None:
    job = desk.run_job(
        "mkdir -p outputs/checkpoint-7; echo {} > outputs/checkpoint-7/trainer_state.json; touch saved;"
        " sleep 60; python train.py --output_dir outputs"
    )
    wait_for((desk.path / "saved").exists, "the checkpoint")
    kill_attempts(desk.folders)
    where = "resuming from outputs/checkpoint-7 (step 7)"
    with desk.scheduler() if up else nullcontext():
        assert desk.run("resume", "--job", job) == (0, f"job {job} queued again, {where}\n", "")
        assert (desk.state(job), desk.requests()) == ("queued", [])
    row = recorded(desk, job)
    assert row.resume_from is not None
    assert (row.resume_from.step, row.checkpoint) == (7.0, row.resume_from)


def test_resuming_a_gpu_names_the_preempted_job_with_its_number(desk: Desk) -> None:
    job = stopped(desk)
    note = f"gpu-scheduler: note: job {job} is preempted; `resume --job {job}` continues it\n"
    code, _, err = desk.run("resume", "0", str(job))
    assert (code, err) == (0, note)


@pytest.mark.parametrize("outcome", [Outcome.PREEMPTED, Outcome.FAILED])
@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("./train --output_dir outputs", ["command=./train {flag} --output_dir outputs"]),
        (
            "python a.py && python b.py --output_dir outputs",
            ["command=python b.py {flag} --output_dir outputs"],
        ),
        (
            "bash -c 'python t.py --output_dir outputs'",
            ["command=bash -c 'python t.py {flag} --output_dir outputs'"],
        ),
        ("bash train.sh --output_dir outputs", ["resume-flag=--resume_from_checkpoint"]),
    ],
)
def test_the_remedy_for_a_job_without_a_line_lets_it_resume(
    desk: Desk, text: str, changes: list[str], outcome: Outcome
) -> None:
    """The job is held or has finished, and follows the advice of the refusal."""
    job = stopped(desk, text, outcome, checkpoints="outputs/checkpoint-*")
    path = save(desk, 150)
    flag = '--resume_from_checkpoint "$GPU_SCHEDULER_CHECKPOINT"'
    with desk.scheduler():
        code, _, err = desk.run("resume", "--job", job)
        assert code == 1
        assert flag in err
        assert desk.run("set", job, *(one.format(flag=flag) for one in changes))[0] == 0
        assert desk.run("resume", "--job", job)[0] == 0
    row = desk.store.job(job)
    assert row is not None
    assert row.resume_from is not None
    assert row.resume_from.path == str(path)


def test_a_job_with_a_line_is_told_to_change_its_file(desk: Desk) -> None:
    job = stopped(desk, "bash train.sh --output_dir outputs")
    save(desk, 150)
    with desk.store.db.transaction() as db:
        db.execute("INSERT INTO jobs_file (path, cwd) VALUES ('j', '/')")
        db.execute(
            "INSERT INTO line (path, position, number, text, job_id) VALUES ('j', 1, 1, '', ?)", (job,)
        )
    err = desk.run("resume", "--job", job)[2]
    assert "put [resume-flag=--resume_from_checkpoint] before its line; otherwise, add a line with" in err
    assert "set" not in err


def test_a_resume_that_will_be_refused_is_not_offered(desk: Desk) -> None:
    fits, unclear = (stopped(desk, text) for text in (COMMAND, "./train --output_dir outputs"))
    for job in (fits, unclear):
        desk.store.db.connection.execute(
            'UPDATE job SET checkpoint = \'{"path": "/c"}\' WHERE id = ?', (job,)
        )
    assert f"`resume --job {fits}` queues it" in desk.run("why", fits)[1]
    said = desk.run("why", unclear)[1]
    assert f"`retry {unclear}` queues it" in said
    assert "resume --job" not in said
