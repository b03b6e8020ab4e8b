"""Jobs continue from their checkpoints, by request or by themselves, with real runners and real files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.core.model.job import Attempt, Checkpoint, Job
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.store.requests import add_request, request_answer
from tests.loop.rig import SETTINGS, Rig
from tests.processes import kill_attempts
from tests.waiting import wait_for

#: A training script. It appends what it was given to `ran`, saves the next checkpoint, and waits for `go`. It
#: then ends with the exit code in that file.
TRAIN = """
import json, os, sys, time
arguments = sys.argv[1:]
resumed = os.environ.get("GPU_SCHEDULER_CHECKPOINT")
with open("ran", "a") as ran:
    print(json.dumps([arguments, resumed]), file=ran)
step = 100 + (int(resumed.rsplit("-", 1)[1]) if resumed else 0)
os.makedirs(f"out/checkpoint-{step}")
with open(f"out/checkpoint-{step}/trainer_state.json", "w") as state:
    state.write("{}")
open("up", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(int(open("go").read() or "0"))
"""
FLAG = "--resume_from_checkpoint"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "train.py").write_text(TRAIN)
    made = Rig(tmp_path)
    yield made
    made.end_processes()


def add_training(rig: Rig, *words: str, **values: object) -> int:
    return rig.add_job(shlex.join([sys.executable, "train.py", "--output_dir", "out", *words]), **values)


def checkpoint(rig: Rig, step: int) -> str:
    return str(rig.folder / f"out/checkpoint-{step}")


def tick_until_saved(rig: Rig, step: int) -> None:
    rig.tick_until(lambda: (rig.folder / "up").exists(), f"checkpoint-{step}")
    (rig.folder / "up").unlink()
    assert Path(checkpoint(rig, step)).exists()


def interrupt(rig: Rig, job: int, step: int) -> None:
    """Kills the runner and the processes of a running job that has saved this checkpoint."""
    rig.runner_pid(job)
    tick_until_saved(rig, step)
    kill_attempts({rig.store.attempts(job)[-1].token: rig.attempt_folder(job)})


def end(rig: Rig, job: int, exit_code: int = 0) -> Job:
    (rig.folder / "go").write_text(str(exit_code))
    return rig.tick_until_ended(job)


def ran(rig: Rig) -> list[list[object]]:
    """Returns the arguments and the checkpoint variable of each run."""
    return [json.loads(line) for line in (rig.folder / "ran").read_text().splitlines()]


def last_attempt(rig: Rig, job: int) -> Attempt:
    return rig.store.attempts(job)[-1]


def test_the_store_has_the_newest_checkpoint_when_an_attempt_has_ended(rig: Rig) -> None:
    job = add_training(rig)
    interrupt(rig, job, 100)
    row = rig.tick_until_ended(job)
    assert (row.held_by, row.resume_from) == ("interrupted", None)
    assert row.checkpoint is not None
    assert (row.checkpoint.path, row.checkpoint.step) == (checkpoint(rig, 100), 100.0)


@pytest.mark.parametrize(
    ("words", "flag", "expected"),
    [
        ((), None, ["--output_dir", "out"]),
        ((FLAG, "none"), None, ["--output_dir", "out", FLAG, "CHECKPOINT"]),
        ((), "--ckpt", ["--ckpt", "CHECKPOINT", "--output_dir", "out"]),
    ],
)
def test_a_recovered_job_resumes_only_if_its_line_says_how(
    rig: Rig, words: tuple[str, ...], flag: str | None, expected: list[str]
) -> None:
    job = add_training(rig, *words, resume_flag=flag)
    interrupt(rig, job, 100)
    rig.tick_until_ended(job)
    add_request(rig.store, "recover", str(job))
    resumes = "CHECKPOINT" in expected
    if not resumes:  # it saves the same checkpoint again
        (rig.folder / "out").rename(rig.folder / "before")
    rig.tick_until(lambda: (rig.folder / "up").exists(), "the second attempt")
    path = checkpoint(rig, 100) if resumes else None
    given = [path if word == "CHECKPOINT" else word for word in expected]
    assert ran(rig)[-1] == [given, path]
    resumed = last_attempt(rig, job).resumed_from
    assert (None if resumed is None else resumed.path) == path
    assert end(rig, job).outcome == "completed"


def test_a_request_to_resume_gives_the_command_the_checkpoint_and_retry_does_not(rig: Rig) -> None:
    job = add_training(rig)
    interrupt(rig, job, 100)
    rig.tick_until_ended(job)
    saved = {"path": checkpoint(rig, 100), "step": 100.0}
    add_request(rig.store, "resume_job", str(job), checkpoint=saved, min_vram_mib=4000)
    tick_until_saved(rig, 200)
    path = checkpoint(rig, 100)
    assert ran(rig)[-1] == [[FLAG, path, "--output_dir", "out"], path]
    assert last_attempt(rig, job).vram == 4000
    row = end(rig, job, 3)
    assert (row.outcome, row.exit_code) == ("failed", 3)
    assert row.checkpoint is not None
    assert (row.checkpoint.step, row.resume_from) == (200.0, None)
    (rig.folder / "go").unlink()
    (rig.folder / "out").rename(rig.folder / "before")
    add_request(rig.store, "retry", str(job))
    tick_until_saved(rig, 100)
    assert ran(rig)[-1] == [["--output_dir", "out"], None]
    assert end(rig, job).outcome == "completed"


def test_a_failed_job_that_is_retried_resumes_by_itself(rig: Rig) -> None:
    job = add_training(rig, FLAG, "none", fail_retries=1)
    tick_until_saved(rig, 100)
    (rig.folder / "go").write_text("3")
    rig.tick_until(lambda: rig.job(job).state == "queued", "the retry")
    (rig.folder / "go").unlink()
    row = rig.job(job)
    assert row.resume_from is not None
    assert row.resume_from.step == 100.0
    rig.store.db.connection.execute("UPDATE job SET not_before_boot = NULL")
    tick_until_saved(rig, 200)
    assert end(rig, job).outcome == "completed"


def test_recoveries_are_counted_anew_if_the_job_has_saved_a_newer_checkpoint(rig: Rig) -> None:
    rig = Rig(rig.folder, settings=replace(SETTINGS, recover=True))
    job = add_training(rig, FLAG, "none")
    for attempt in range(1, 6):
        interrupt(rig, job, 100 * attempt)
        rig.tick_until(lambda: len(rig.store.attempts(job)) == attempt + 1, "a recovery")  # noqa: B023
        assert rig.job(job).recoveries == 1
    tick_until_saved(rig, 600)
    assert end(rig, job).outcome == "completed"


def test_a_held_or_skipped_job_keeps_the_checkpoint_with_which_it_is_to_start(rig: Rig) -> None:
    job = add_training(rig)
    saved = Checkpoint(str(rig.folder / "train.py"), 5.0)
    rig.store.db.connection.execute("UPDATE job SET resume_from = ?", (saved.to_json(),))
    rig.store.db.connection.execute("UPDATE job SET state = 'held', held_by = 'user'")
    add_request(rig.store, "release", str(job))
    rig.tick_until(lambda: rig.store.attempts(job), "the attempt")
    assert last_attempt(rig, job).resumed_from == saved
    assert end(rig, job).outcome == "failed"


def test_a_job_whose_checkpoint_is_gone_does_not_start_from_its_beginning(rig: Rig) -> None:
    job = add_training(rig)
    saved = Checkpoint(str(rig.folder / "gone"), 5.0)
    rig.store.db.connection.execute("UPDATE job SET resume_from = ?", (saved.to_json(),))
    row = rig.tick_until_ended(job)
    assert row.outcome == "failed"
    assert row.reason is not None
    assert f"the checkpoint {saved.path} does not exist" in (row.reason.message or "")
    assert not (rig.folder / "ran").exists()


@pytest.mark.parametrize("by", ["interrupted", "preempted"])
def test_a_release_of_a_job_with_unfinished_work_is_refused(rig: Rig, by: str) -> None:
    job = add_training(rig)
    rig.store.db.connection.execute("UPDATE job SET state = 'held', held_by = ?", (by,))
    request = add_request(rig.store, "release", str(job))
    rig.tick()
    answer = request_answer(rig.store, request)
    assert answer is not None
    assert (answer.code, answer.outcome) == ("unfinished work", by)
    assert rig.job(job).state == "held"


def test_only_a_named_checkpoint_resumes_a_completed_job(rig: Rig) -> None:
    job = add_training(rig)
    tick_until_saved(rig, 100)
    end(rig, job)
    saved = {"path": checkpoint(rig, 100), "step": 100.0}
    refused = add_request(rig.store, "resume_job", str(job), checkpoint=saved)
    rig.tick()
    answer = request_answer(rig.store, refused)
    assert answer is not None
    assert answer.code == "already completed"
    add_request(rig.store, "resume_job", str(job), checkpoint=saved, completed=True)
    rig.tick_until_ended(job)
    wait_for(lambda: len(ran(rig)) == 2, "the second attempt")
    assert rig.job(job).outcome == "completed"


@pytest.mark.parametrize("step", ["planned", "recorded", "performed JobChanged queued", "performed Start"])
def test_no_resume_is_lost_or_repeated_if_the_scheduler_ends_at_any_step(rig: Rig, step: str) -> None:
    job = add_training(rig)
    interrupt(rig, job, 100)
    rig.tick_until_ended(job)
    path = checkpoint(rig, 100)
    add_request(rig.store, "resume_job", str(job), checkpoint={"path": path, "step": 100.0})

    def fail(reached: str) -> None:
        if reached == step:
            raise InterruptedError(step)

    crashing = Rig(rig.folder)
    crashing.loop._failpoint = fail
    with pytest.raises(InterruptedError):
        crashing.tick()
    again = Rig(rig.folder)
    tick_until_saved(again, 200)
    assert end(again, job).outcome == "completed"
    assert [one.resumed_from is not None for one in again.store.attempts(job)] == [False, True]
    assert [given for _, given in ran(rig)] == [None, path]


def test_an_attempt_that_saved_nothing_leaves_the_checkpoint_with_which_it_started(rig: Rig) -> None:
    job = add_training(rig, FLAG, "none")
    interrupt(rig, job, 100)
    rig.tick_until_ended(job)
    chosen = rig.folder / "elsewhere-50"
    chosen.mkdir()
    add_request(rig.store, "resume_job", str(job), checkpoint={"path": str(chosen), "step": 50.0})
    interrupt(rig, job, 150)
    (rig.folder / "out/checkpoint-150").rename(rig.folder / "moved")
    row = rig.tick_until_ended(job)
    assert row.checkpoint is not None
    assert row.checkpoint.path == str(chosen)


def test_a_job_whose_command_is_unknown_is_never_launched(tmp_path: Path) -> None:
    """Whatever queues it: the empty command would complete at once."""
    rig = Rig(tmp_path)
    job = rig.store.insert_job(JobSpec("command", "a title", str(tmp_path)), "adopt")
    rig.tick()
    attempts = rig.store.attempts(job)
    assert {attempt.outcome for attempt in attempts} <= {Outcome.NOT_STARTED, Outcome.FAILED}
    assert {attempt.launch_error for attempt in attempts} == {
        f"job {job} cannot be launched: it is not known how to start it"
    }
