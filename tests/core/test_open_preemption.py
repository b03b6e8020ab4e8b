"""Tests of an open preemption: how it is recorded, carried out, withdrawn and replaced."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AttemptResult,
    AttemptStatus,
    Checkpoint,
    Job,
    OnTimeout,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.request import AnswerCode, Request
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s, reconcile
from gpu_scheduler.core.scheduling.requests import answer_requests
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.core.decisions import end_in

NOW = Now(1000.0, 5000.0, "boot")
SETTINGS = Settings()
FIRST = StopRequest("preempted", 60.0, "withdraw", "first")
SECOND = StopRequest("preempted", 60.0, "withdraw", "second")
CANCEL = StopRequest("cancelled", 3.0)
LIVE = make_attempt(
    1, 7, "t" * 32, "boot", AttemptState.STOPPING, ("U0",), 500, stop_request=FIRST, stopping_boot=990.0
)


def live(**values: Any) -> AttemptStatus:
    return AttemptStatus(claim="live", pid=5, **values)


def result(**values: Any) -> AttemptStatus:
    ended = AttemptResult("preempted", 0, None, True, None, (), 4000.0, 4999.0)
    return AttemptStatus(claim="dead", result=replace(ended, **values))


def end_of(attempt: ActiveAttempt) -> ActiveAttempt:
    return end_in(reconcile(attempt, NOW, SETTINGS))


def without_stop(attempt: ActiveAttempt) -> ActiveAttempt:
    return replace(attempt, job=replace(attempt.job, stop=None))


def test_a_withdrawal_clears_its_own_preemption_and_the_job_runs_again() -> None:
    withdrawn = replace(LIVE, status=live(withdrawn=FIRST))
    again = without_stop(withdrawn).running(NOW)
    assert reconcile(withdrawn, NOW, SETTINGS) == [act.AttemptChanged(withdrawn, again)]


def test_the_grace_period_of_a_stop_after_a_withdrawal_begins_anew() -> None:
    withdrawn = replace(LIVE, status=live(withdrawn=FIRST))
    [change] = reconcile(withdrawn, NOW, SETTINGS)
    assert isinstance(change, act.AttemptChanged)
    again = replace(change.new, stop_request=CANCEL)
    assert departure_s(again, NOW, SETTINGS) == CANCEL.grace_s


def test_the_withdrawal_of_an_earlier_preemption_does_not_clear_a_later_one() -> None:
    again = replace(LIVE, stop_request=SECOND, status=live(withdrawn=FIRST))
    assert reconcile(again, NOW, SETTINGS) == [act.RequestStop(1, SECOND)]


def test_a_cancel_is_not_cleared_by_the_withdrawal_of_a_preemption() -> None:
    cancelled = replace(LIVE, stop_request=CANCEL, status=live(withdrawn=replace(FIRST, stop_id="")))
    assert reconcile(cancelled, NOW, SETTINGS) == [act.RequestStop(1, CANCEL)]


def test_a_runner_that_died_after_a_withdrawal_leaves_an_interrupted_job() -> None:
    dead = replace(LIVE, status=AttemptStatus(claim="dead", withdrawn=FIRST), survivors=())
    assert end_of(dead).outcome is Outcome.INTERRUPTED


def test_a_stop_of_a_weaker_cause_does_not_replace_the_file_of_a_cancel() -> None:
    by_hand = replace(LIVE, status=live(stop=CANCEL), signalled_boot=900.0)
    assert not any(isinstance(one, act.RequestStop) for one in reconcile(by_hand, NOW, SETTINGS))


@pytest.mark.parametrize(
    ("values", "saved", "outcome"),
    [
        ({"exit_code": 0}, None, Outcome.PREEMPTED),
        ({"exit_code": 0}, SavedWork(is_complete=False), Outcome.PREEMPTED),
        ({"exit_code": 0}, SavedWork(is_complete=True), Outcome.COMPLETED),
        ({"exit_code": 1}, SavedWork(is_complete=True), Outcome.PREEMPTED),
        ({"exit_code": None, "signal": 15}, SavedWork(is_complete=True), Outcome.PREEMPTED),
        ({"cause": None, "exit_code": 0}, None, Outcome.COMPLETED),
        ({"cause": None, "exit_code": 3}, None, Outcome.FAILED),
    ],
)
def test_the_outcome_of_a_preempted_attempt_depends_on_how_its_command_ended(
    values: dict[str, Any], saved: SavedWork | None, outcome: Outcome
) -> None:
    assert end_of(replace(LIVE, status=result(**values), saved_work=saved)).outcome is outcome


def test_a_job_that_ends_after_a_withdrawal_has_completed_only_if_it_did_all_its_work() -> None:
    late = replace(LIVE, stop_request=None, status=replace(result(cause=None), withdrawn=FIRST))
    assert end_of(late).outcome is Outcome.COMPLETED
    assert end_of(replace(late, saved_work=SavedWork(is_complete=True))).outcome is Outcome.COMPLETED
    part = end_of(replace(late, saved_work=SavedWork(is_complete=False)))
    assert (part.outcome, part.job.state) == (Outcome.PREEMPTED, JobState.HELD)


def test_a_job_that_is_preempted_while_its_launch_fails_is_not_launched_again() -> None:
    failed = end_of(replace(LIVE, status=result(cause=None, exit_code=1, began=False)))
    assert (failed.outcome, failed.job.state) == (Outcome.PREEMPTED, JobState.HELD)


def test_a_preemption_that_may_be_withdrawn_is_cleared_if_the_runner_is_unknown() -> None:
    unknown = replace(LIVE, status=AttemptStatus(claim="invalid"), survivors=(44,))
    assert reconcile(unknown, NOW, SETTINGS) == [act.AttemptChanged(unknown, without_stop(unknown))]
    by_hand = replace(unknown, stop_request=None, status=AttemptStatus(claim="invalid", stop=FIRST))
    assert reconcile(by_hand, NOW, SETTINGS) == []


def test_a_withdrawal_does_not_clear_a_preemption_that_has_become_stricter() -> None:
    stricter = replace(LIVE, stop_request=replace(FIRST, on_timeout="kill"), status=live(withdrawn=FIRST))
    assert reconcile(stricter, NOW, SETTINGS) == [act.RequestStop(1, replace(FIRST, on_timeout="kill"))]


def test_a_preempted_job_is_held_or_queued_again_as_its_preemption_says() -> None:
    held = end_of(replace(LIVE, status=result()))
    assert (held.job.state, held.job.outcome) == (JobState.HELD, None)
    for_job = replace(FIRST, next_state=JobState.QUEUED, preemptor=9)
    queued = end_of(replace(LIVE, stop_request=for_job, status=result(), oom_retries_used=2))
    assert (queued.job.state, queued.job.outcome, queued.job.oom_retries_used) == (JobState.QUEUED, None, 2)


def test_the_end_of_an_attempt_records_the_newest_checkpoint_of_its_job() -> None:
    old, new = Checkpoint("/out/checkpoint-100", 100), Checkpoint("/out/checkpoint-200", 200)
    attempt = replace(LIVE, status=result(), checkpoint=old)
    assert end_of(attempt).job.checkpoint == old
    assert end_of(replace(attempt, saved_work=SavedWork(new))).job.checkpoint == new


@pytest.mark.parametrize(
    ("new", "old", "is_newer"),
    [
        (Checkpoint("b", 200), None, True),
        (Checkpoint("b", 200), Checkpoint("a", 100), True),
        (Checkpoint("b", 100, 20.0), Checkpoint("a", 100, 10.0), False),
        (Checkpoint("b", None, 20.0), Checkpoint("a", None, 10.0), True),
        (Checkpoint("a", None, 20.0), Checkpoint("a", None, 10.0), False),
    ],
)
def test_a_checkpoint_is_newer_if_the_job_has_progressed(
    new: Checkpoint, old: Checkpoint | None, is_newer: bool
) -> None:
    assert new.is_newer_than(old) is is_newer


def test_a_checkpoint_saved_again_at_the_same_path_is_progress_only_of_a_job_that_resumed() -> None:
    old, new = Checkpoint("last.ckpt", None, 10.0), Checkpoint("last.ckpt", None, 20.0)
    attempt = replace(LIVE, status=live(), checkpoint=old, saved_work=SavedWork(new), recoveries=2)
    dead = replace(attempt, status=replace(attempt.status, claim="dead"), survivors=())
    assert end_of(dead).job.recoveries == 2
    assert end_of(replace(dead, resumed_from=old)).job.recoveries == 0
    assert end_of(replace(dead, resumed_from=old, saved_work=SavedWork(old))).job.recoveries == 2


def preempted(job: Job, attempt: ActiveAttempt = LIVE, **args: Any) -> list[act.Action]:
    made = {"stop_id": "second", "grace_s": 30.0, "on_timeout": "withdraw", **args}
    requests = (Request(1, "preempt", "7", made),)
    return answer_requests(
        Facts(NOW, SETTINGS, LlmConfig(), attempts=(attempt,), requests=requests, jobs={7: job})
    )


def test_a_preemption_is_recorded_with_the_signal_of_its_job() -> None:
    job = Job(7, JobState.RUNNING, spec_json='{"preempt_signal": "USR1"}')
    stop, answer = preempted(job, on_timeout="kill")
    assert stop == act.stopped(job, StopRequest("preempted", 30.0, "kill", "second", "USR1"))
    assert isinstance(answer, act.AnswerRequest)
    assert answer.answer.code is AnswerCode.STOPPING


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (Job(7, JobState.QUEUED), AnswerCode.WRONG_STATE),
        (Job(7, JobState.FINISHED, Outcome.COMPLETED), AnswerCode.WRONG_STATE),
        (Job(7, JobState.STOPPING, stop=CANCEL), AnswerCode.BEING_CANCELLED),
    ],
)
def test_a_preemption_is_refused_for_a_job_that_does_not_run_or_is_being_cancelled(
    job: Job, code: AnswerCode
) -> None:
    [answer] = preempted(job)
    assert isinstance(answer, act.AnswerRequest)
    assert answer.answer.code is code
    assert answer.answer.is_refusal


def test_a_preemption_that_the_runner_has_already_withdrawn_is_not_recorded() -> None:
    withdrawn = replace(LIVE, stop_request=None, status=live(withdrawn=SECOND))
    [answer] = preempted(Job(7, JobState.RUNNING), withdrawn)
    assert isinstance(answer, act.AnswerRequest)
    assert answer.answer.code is AnswerCode.WITHDRAWN


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((10.0, "kill"), (30.0, "withdraw"), (10.0, "kill")),
        # A withdrawal never shortens the time that a command has until SIGKILL.
        ((30.0, "kill"), (10.0, "withdraw"), (30.0, "kill")),
        ((10.0, "withdraw"), (30.0, "kill"), (30.0, "kill")),
        ((30.0, "kill"), (10.0, "kill"), (10.0, "kill")),
        ((10.0, "withdraw"), (30.0, "withdraw"), (10.0, "withdraw")),
    ],
)
def test_the_stricter_of_two_preemptions_counts(
    first: tuple[float, OnTimeout], second: tuple[float, OnTimeout], expected: tuple[float, OnTimeout]
) -> None:
    for_job = StopRequest("preempted", *first, "first", next_state=JobState.QUEUED, preemptor=9)
    job = Job(7, JobState.STOPPING, stop=for_job)
    stop, _ = preempted(job, grace_s=second[0], on_timeout=second[1])
    assert stop == act.stopped(
        job, StopRequest("preempted", *expected, "second", next_state=JobState.HELD, preemptor=9)
    )


def test_a_cancel_replaces_an_open_preemption() -> None:
    facts = Facts(
        NOW, SETTINGS, LlmConfig(), attempts=(replace(LIVE, status=live(stop=FIRST)),),
        requests=(Request(1, "cancel", "7", {"grace_s": 3.0}),),
        jobs={7: Job(7, JobState.STOPPING, stop=FIRST)},
    )  # fmt: skip
    assert answer_requests(facts)[0] == act.stopped(facts.jobs[7], CANCEL)
