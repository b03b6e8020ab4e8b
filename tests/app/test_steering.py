"""Requests about jobs and GPUs that are made as function calls. Each call returns the answers as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler.attempts import observe
from gpu_scheduler.attempts.observe import attempts_without_processes, processes_of
from gpu_scheduler.control import job_requests
from gpu_scheduler.control.requests import Answer, AnswerKind, set_paused
from gpu_scheduler.core.model.job import AttemptResult, AttemptStatus
from gpu_scheduler.core.model.request import AnswerCode
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.daemon.restore import refuse_active
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.show.location import Location
from tests import changes
from tests.cli.desk import Desk

SLEEP = "while :; do sleep 0.02; done"


def kinds(answers: tuple[Answer, ...]) -> list[tuple[int, AnswerKind]]:
    return [(answer.target, answer.kind) for answer in answers]


def test_requests_are_carried_out_if_no_scheduler_is_running(desk: Desk, location: Location) -> None:
    first, second = desk.job(), desk.job("echo b", name="b")
    answers = job_requests.change_jobs(location, "hold", [first, "b"])
    assert kinds(answers) == [(first, AnswerKind.CARRIED_OUT), (second, AnswerKind.CARRIED_OUT)]
    assert [one.reply and one.reply.code for one in answers] == [AnswerCode.HELD] * 2
    assert (desk.requests(), desk.state(first), desk.state(second)) == ([], "held", "held")
    assert kinds(set_paused(location, [1], paused=True)) == [(1, AnswerKind.CARRIED_OUT)]
    assert [row.paused for row in desk.store.gpus()] == [0, 1]


def test_a_server_only_records_requests_if_no_scheduler_is_running(desk: Desk, location: Location) -> None:
    queued, running = desk.job(), desk.run_job(SLEEP)
    server = desk.server
    assert kinds(job_requests.change_jobs(server, "hold", [queued])) == [(queued, AnswerKind.RECORDED)]
    assert kinds(job_requests.cancel(server, [running], 1.0)) == [(running, AnswerKind.RECORDED)]
    assert kinds(set_paused(server, [0], paused=True)) == [(0, AnswerKind.RECORDED)]
    assert desk.requests() == [("hold", str(queued)), ("cancel", str(running)), ("pause", "SIM-0")]
    assert (desk.state(queued), desk.state(running)) == ("queued", "running")
    assert processes_of(desk.folders)
    # The next command carries them out.
    assert kinds(job_requests.change_jobs(location, "release", [queued])) == [
        (queued, AnswerKind.CARRIED_OUT)
    ]
    desk.wait_until_processes_end()
    assert desk.requests() == []


def test_each_request_records_who_made_it(desk: Desk, location: Location) -> None:
    job = desk.job()
    job_requests.set_priority(location, [job], 5, by="rest")
    set_paused(location, [0], paused=True, by="rest")
    rows = desk.store.db.rows("SELECT verb, by FROM request ORDER BY id")
    assert [tuple(row) for row in rows] == [("set", "rest"), ("pause", "rest")]


def test_a_running_scheduler_answers_requests(desk: Desk, location: Location) -> None:
    job = desk.job()
    with desk.scheduler():
        (answer,) = job_requests.cancel(location, [job], 1.0)
        assert (answer.kind, answer.has_failed) == (AnswerKind.CARRIED_OUT, False)
        (answer,) = job_requests.cancel(location, [job], 1.0)
        assert (answer.kind, answer.has_failed) == (AnswerKind.REFUSED, True)
        assert [one.kind for one in set_paused(location, None, paused=True)] == [AnswerKind.CARRIED_OUT] * 2


def test_answers_to_requests_list_refusals_first(desk: Desk, location: Location) -> None:
    queued, finished = desk.job(), desk.job("echo done")
    desk.record(changes.finish(finished, Outcome.COMPLETED))
    assert kinds(job_requests.change_jobs(location, "hold", [queued, finished, 99])) == [
        (99, AnswerKind.REFUSED),
        (finished, AnswerKind.REFUSED),
        (queued, AnswerKind.CARRIED_OUT),
    ]


def test_a_request_without_a_job_selection_applies_to_every_job_that_it_can_change(
    desk: Desk, location: Location
) -> None:
    assert job_requests.cancel(location, None, 1.0) == ()
    assert job_requests.retry(location, None).answers == ()
    failed, queued = desk.job(), desk.job("echo b")
    desk.record(changes.finish(failed, Outcome.FAILED))
    assert kinds(job_requests.retry(location, None).answers) == [(failed, AnswerKind.CARRIED_OUT)]
    assert job_requests.retry(location, None).answers == ()  # It has been queued again.
    assert kinds(job_requests.cancel(location, None, 1.0)) == [
        (failed, AnswerKind.CARRIED_OUT),
        (queued, AnswerKind.CARRIED_OUT),
    ]


def test_a_retry_of_every_failed_job_leaves_out_those_with_a_recorded_retry(desk: Desk) -> None:
    failed = desk.job()
    desk.record(changes.finish(failed, Outcome.FAILED))
    assert kinds(job_requests.retry(desk.server, None).answers) == [(failed, AnswerKind.RECORDED)]
    assert job_requests.retry(desk.server, None).answers == ()
    assert desk.requests() == [("retry", str(failed))]


def test_cancel_ends_a_running_job_even_without_a_scheduler(desk: Desk, location: Location) -> None:
    job = desk.run_job(SLEEP)
    (answer,) = job_requests.cancel(location, [job], 5.0)
    assert (answer.kind, answer.has_failed) == (AnswerKind.CARRIED_OUT, False)
    assert answer.reply is not None
    assert answer.reply.code is AnswerCode.CANCELLED
    assert (desk.state(job), desk.requests()) == ("finished", [])
    desk.wait_until_processes_end()


def test_cancel_without_a_scheduler_does_not_end_a_job_on_a_remote_executor(
    desk: Desk, location: Location
) -> None:
    job = desk.run_job(SLEEP)
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'elsewhere'")
    (answer,) = job_requests.cancel(location, [job], 5.0)
    assert (answer.kind, answer.has_failed) == (AnswerKind.NOT_ENDED, True)
    row = desk.store.job(job)
    assert row is not None
    assert row.stop is not None
    assert (desk.requests(), row.state, row.stop.cause) == ([], "running", "cancelled")
    assert attempts_without_processes(desk.store) == frozenset()
    with pytest.raises(SchedulerError, match=f"job {job} is active"):
        refuse_active(desk.store, void_claims=True)
    desk.store.db.connection.execute("UPDATE attempt SET executor = 'direct'")
    job_requests.cancel(location, [job], 5.0)
    row = desk.store.job(job)
    assert row is not None
    assert (row.state, row.outcome) == ("finished", "cancelled")
    desk.wait_until_processes_end()


def test_only_a_runner_with_a_result_does_not_count_as_a_process_of_its_attempt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = desk.attempt(desk.job())
    result = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)
    with monkeypatch.context() as patch:
        for status, alive, has_ended in [
            (AttemptStatus("live", 7), (7,), False),  # it is about to start the command
            (AttemptStatus("live", 7, result=result), (7,), True),
            (AttemptStatus("live", 7, result=result), (7, 8), False),
            (AttemptStatus("dead"), (8,), False),
            (AttemptStatus("dead"), (), True),
        ]:
            patch.setattr(observe, "processes_of", lambda _, alive=alive: {attempt.token: alive})
            patch.setattr(observe, "read_status", lambda *_, status=status: status)
            assert attempts_without_processes(desk.store) == ({attempt.id} if has_ended else set()), status


def test_requests_for_unknown_job_names_or_gpus_raise_errors(desk: Desk, location: Location) -> None:
    with pytest.raises(SchedulerError, match="there is no job named bert"):
        job_requests.change_jobs(location, "release", ["bert"])
    with pytest.raises(SchedulerError, match="GPU 7 is not managed"):
        set_paused(location, [7], paused=False)
    assert desk.requests() == []


def test_a_pause_before_the_first_start_is_written_to_the_state_file(desk: Desk, tmp_path: Path) -> None:
    location = Location(str(tmp_path / "new.json"))
    assert kinds(set_paused(location, [1], paused=False)) == [(1, AnswerKind.NOTHING_TO_DO)]
    assert kinds(set_paused(location, [1, 0, 1], paused=True)) == [
        (0, AnswerKind.IN_STATE_FILE),
        (1, AnswerKind.IN_STATE_FILE),
    ]
    with pytest.raises(SchedulerError, match="not known before the first"):
        set_paused(location, None, paused=True)
