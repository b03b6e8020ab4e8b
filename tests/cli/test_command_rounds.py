"""Commands that run rounds because no scheduler is running: their lock, and their death at each step."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from gpu_scheduler.attempts.observe import processes_of
from gpu_scheduler.config import StartOptions
from gpu_scheduler.control import job_requests
from gpu_scheduler.control.requests import Answer, AnswerKind
from gpu_scheduler.core.model.request import AnswerCode
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import NotOwnerError
from gpu_scheduler.rounds import command
from gpu_scheduler.rounds.command import CommandRounds
from gpu_scheduler.show.location import Location
from gpu_scheduler.store.requests import add_request
from gpu_scheduler.store.scheduler_lock import scheduler_pid
from tests.cli.desk import Desk
from tests.waiting import wait_for
from tests.warm import Process

LOOP = "echo up; while :; do sleep 0.02; done"
STUBBORN = f"trap '' TERM; {LOOP}"
#: The steps of the rounds in which a cancel ends a running job.
STEPS = (
    "planned", "recorded",
    "performed JobChanged running", "performed AnswerRequest", "performed AttemptChanged stopping",
    "performed RequestStop", "performed AttemptChanged ended", "performed AttemptChanged released",
)  # fmt: skip


def place(desk: Desk) -> Location:
    return Location(str(desk.data_dir.state_file), runs_rounds=True)


@pytest.mark.parametrize("step", STEPS)
def test_a_cancel_that_is_killed_at_a_step_is_finished_by_the_next_command(desk: Desk, step: str) -> None:
    job = desk.run_job(LOOP)
    words = [step, "cancel", str(job)]
    root = Path(__file__).parents[2]
    with open(os.devnull, "w") as null:
        env = {**os.environ, "PYTHONPATH": str(root)}
        dying = Process("tests.cli.crashing_command", words, desk.path, env, null.fileno(), null.fileno())
        assert dying.wait(60) == -signal.SIGKILL
    code, _, err = desk.run("cancel", job)
    record = desk.store.job(job)
    assert record is not None
    assert (record.state, record.outcome) == (JobState.FINISHED, Outcome.CANCELLED), (code, err)
    assert len(desk.store.attempts(job)) == 1
    assert desk.requests() == []
    desk.wait_until_processes_end()


def test_a_scheduler_that_starts_takes_over_from_a_command_that_waits(desk: Desk) -> None:
    job = desk.run_job(STUBBORN)
    log = desk.path / f"job_{job}.log"
    wait_for(lambda: "up" in log.read_text(), "the trap")
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.extend(job_requests.cancel(place(desk), [job], 60.0)))
    thread.start()
    wait_for(lambda: desk.state(job) == JobState.STOPPING, "the cancel")
    with desk.scheduler():
        thread.join(30)  # shorter than the grace
        assert not thread.is_alive()
        assert [one.reply and one.reply.code for one in answers] == [AnswerCode.STOPPING]
        job_requests.cancel(place(desk), [job], 0.0)
        wait_for(lambda: desk.state(job) == JobState.FINISHED, "the end")
    desk.wait_until_processes_end()


def test_nobody_takes_a_command_for_a_scheduler(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    monkeypatch.setattr(command, "failpoint", lambda step: seen.append(scheduler_pid(desk.data_dir.lock)))
    job_requests.change_jobs(place(desk), "hold", [desk.job()])
    assert set(seen) == {None}


def test_the_rounds_of_one_command_answer_the_request_of_another(desk: Desk) -> None:
    stubborn, queued = desk.run_job(STUBBORN), desk.job()
    log = desk.path / f"job_{stubborn}.log"
    wait_for(lambda: "up" in log.read_text(), "the trap")
    first: list[AnswerKind] = []
    grace_s = 3.0
    thread = threading.Thread(
        target=lambda: first.extend(one.kind for one in job_requests.cancel(place(desk), [stubborn], grace_s))
    )
    thread.start()
    try:
        wait_for(lambda: desk.state(stubborn) == JobState.STOPPING, "the cancel")
        began = time.monotonic()
        (answer,) = job_requests.change_jobs(place(desk), "hold", [queued])
        assert answer.kind is AnswerKind.CARRIED_OUT
        assert desk.state(stubborn) == JobState.STOPPING, time.monotonic() - began
    finally:
        thread.join(60)
    assert first == [AnswerKind.CARRIED_OUT]
    assert desk.state(queued) == JobState.HELD


def test_rounds_of_a_command_leave_jobs_alone_that_were_not_asked_to_stop(desk: Desk) -> None:
    left, cancelled = desk.run_job(LOOP), desk.run_job(LOOP, vram=1000)
    (answer,) = job_requests.cancel(place(desk), [cancelled], 5.0)
    assert answer.kind is AnswerKind.CARRIED_OUT
    assert (desk.state(left), desk.state(cancelled)) == (JobState.RUNNING, JobState.FINISHED)


def test_a_command_answers_a_stop_that_was_meant_for_an_earlier_scheduler(desk: Desk) -> None:
    job = desk.run_job(LOOP)
    add_request(desk.store, "stop", jobs=True, grace_s=1.0)
    queued = desk.job()
    job_requests.change_jobs(place(desk), "hold", [queued])
    assert desk.state(job) == JobState.RUNNING
    assert desk.requests() == []


def test_a_server_only_records_a_request(desk: Desk) -> None:
    job = desk.job()
    (answer,) = job_requests.change_jobs(Location(str(desk.data_dir.state_file)), "hold", [job])
    assert answer.kind is AnswerKind.RECORDED
    assert desk.requests() == [("hold", str(job))]
    assert desk.state(job) == JobState.QUEUED


def test_a_command_that_does_not_see_the_runners_only_records_its_request(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = desk.job()
    monkeypatch.setattr("gpu_scheduler.rounds.command.shows_own_pids", lambda: False)
    (answer,) = job_requests.change_jobs(place(desk), "hold", [job])
    assert answer.kind is AnswerKind.RECORDED
    assert desk.state(job) == JobState.QUEUED


def test_rounds_end_when_the_data_directory_is_replaced(desk: Desk) -> None:
    job = desk.job()
    rounds = CommandRounds(desk.store)
    add_request(desk.store, "hold", str(job))
    os.rename(desk.data_dir.folder, desk.path / "moved")
    desk.data_dir.folder.mkdir(mode=0o700)
    with pytest.raises(NotOwnerError):
        rounds.advance()


def test_a_round_of_a_command_never_launches(desk: Desk) -> None:
    job = desk.job()
    row = desk.attempt(job)  # a scheduler died before it launched this attempt
    assert CommandRounds(desk.store).advance()
    assert desk.state(job) == JobState.STARTING
    assert not desk.folder(row).exists()
    (answer,) = job_requests.cancel(place(desk), [job], 5.0)
    assert answer.kind is AnswerKind.CARRIED_OUT
    assert desk.state(job) == JobState.FINISHED


@pytest.mark.parametrize("verb", ["retry", "recover"])
def test_an_interrupted_job_is_queued_again_after_its_processes_have_ended(desk: Desk, verb: str) -> None:
    job, other = desk.run_without_runner(), desk.run_without_runner(vram=1000)
    desk.store.record_options(StartOptions(grace_s=0.2))
    code, out, err = desk.run(verb, job)
    assert (code, out, err) == (0, f"job {job}: queued again\n", "")
    assert desk.state(job) == JobState.QUEUED
    [attempt] = desk.store.attempts(other)
    assert processes_of({attempt.token: desk.folder(attempt)}), "nobody has named this job"
    job_requests.cancel(place(desk), [other], 5.0)
    desk.wait_until_processes_end()
