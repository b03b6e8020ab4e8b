"""Which interrupted jobs are queued again, by the user or by the scheduler itself, and when."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AttemptResult,
    AttemptStatus,
    Checkpoint,
    Job,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import NextKind, ReasonKind, StateReason
from gpu_scheduler.core.model.request import AnswerCode, Request, RequestAnswer, not_interrupted
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.attempt_end import MAX_RECOVERIES, recover_interrupted, recovery
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended, reconcile
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import replace
from tests.core.decisions import changed_jobs, end_in
from tests.core.gpu_world import NOW, facts, gpu, running
from tests.reasons import words

RECOVER = Settings(recover=True)


def interrupted(job_id: int, recoveries: int = 0, **values: Any) -> Job:
    return Job(job_id, JobState.HELD, held_by="interrupted", recoveries=recoveries, **values)


INTERRUPTED = Job(7, JobState.HELD, held_by="interrupted")
BY_USER = StateReason(ReasonKind.RECOVERED)
DEAD = running(status=AttemptStatus(claim="dead"), survivors=(), job_id=7)


def only_end(actions: list[act.Action]) -> ActiveAttempt:
    """Returns the attempt that ends, as it is afterwards. There must be no other action."""
    assert len(actions) == 1, actions
    return end_in(actions)


def round_with(
    *requests: tuple[str, str], attempts: tuple[ActiveAttempt, ...] = (), **values: object
) -> Facts:
    made = tuple(Request(n, verb, target) for n, (verb, target) in enumerate(requests, 1))
    return facts(gpu(0), attempts=attempts, requests=made, **values)


def test_a_recovery_of_all_queues_every_interrupted_job_and_names_it_in_its_answer() -> None:
    held = (interrupted(3), interrupted(7, 3))
    assert plan(round_with(("recover", ""), interrupted=held)) == [
        *(act.JobChanged(job, job.queued_again(NOW), BY_USER) for job in held),
        act.AnswerRequest(1, RequestAnswer(AnswerCode.RECOVERED, jobs=(3, 7))),
    ]


def test_a_recovery_of_all_is_answered_at_once_if_no_job_is_interrupted() -> None:
    live = running()
    assert plan(round_with(("recover", ""), attempts=(live,))) == [
        act.AnswerRequest(1, RequestAnswer(AnswerCode.RECOVERED))
    ]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (INTERRUPTED, RequestAnswer(AnswerCode.QUEUED)),
        (Job(7, JobState.HELD, held_by="user"), not_interrupted(JobState.HELD)),
        (Job(7, JobState.HELD, held_by="copy"), not_interrupted(JobState.HELD)),
        (Job(7, JobState.QUEUED), not_interrupted(JobState.QUEUED)),
        (Job(7, JobState.RUNNING), not_interrupted(JobState.RUNNING)),
        (Job(7, JobState.FINISHED, Outcome.FAILED), not_interrupted(JobState.FINISHED)),
    ],
)
def test_a_recovery_of_one_job_is_refused_unless_the_job_is_interrupted(
    job: Job, expected: RequestAnswer
) -> None:
    *changes, answer = plan(round_with(("recover", "7"), jobs={7: job}))
    assert answer == act.AnswerRequest(1, expected)
    queued = [] if expected.is_refusal else [act.JobChanged(job, job.queued_again(NOW), BY_USER)]
    assert changes == queued


@pytest.mark.parametrize("target", ["", "7"])
def test_a_recovery_waits_until_the_end_of_an_attempt_is_recorded(target: str) -> None:
    asked = round_with(("recover", target), attempts=(DEAD,), interrupted=(interrupted(3),))
    end = only_end(plan(replace(asked, jobs={7: Job(7, JobState.RUNNING)})))
    assert (end.job_id, end.job.state, end.outcome) == (7, JobState.HELD, Outcome.INTERRUPTED)
    closed = replace(DEAD, state=AttemptState.RELEASED)
    then = replace(
        asked, attempts=(closed,), jobs={7: INTERRUPTED}, interrupted=(interrupted(3), interrupted(7))
    )
    queued = [(job.id, job.state) for job in changed_jobs(plan(then))]
    assert queued == [(job_id, JobState.QUEUED) for job_id in ((3, 7) if target == "" else (7,))]


@pytest.mark.parametrize("verb", ["retry", "release", "hold", "cancel", "set"])
def test_a_request_waits_until_the_end_of_its_job_is_recorded(verb: str) -> None:
    asked = round_with((verb, "7"), attempts=(DEAD,), jobs={7: Job(7, JobState.RUNNING)})
    assert only_end(plan(asked)).job_id == 7


def test_the_recovery_of_one_job_does_not_wait_for_the_attempt_of_another() -> None:
    other = running(8, status=AttemptStatus(claim="dead"), survivors=())
    actions = plan(round_with(("recover", "7"), attempts=(other,), jobs={7: INTERRUPTED}))
    assert actions == [
        act.JobChanged(INTERRUPTED, INTERRUPTED.queued_again(NOW), BY_USER),
        act.AnswerRequest(1, RequestAnswer(AnswerCode.QUEUED)),
    ]


@pytest.mark.parametrize("verb", ["cancel", "release", "retry", "recover"])
def test_a_recovery_of_all_shares_no_round_with_another_request_for_the_same_job(verb: str) -> None:
    for first, second in [(("recover", ""), (verb, "7")), ((verb, "7"), ("recover", ""))]:
        held = (interrupted(7),)
        actions = plan(round_with(first, second, jobs={7: INTERRUPTED}, interrupted=held))
        assert [a.request_id for a in actions if isinstance(a, act.AnswerRequest)] == [1]


def test_a_later_request_does_not_overtake_a_recovery_that_waits() -> None:
    asked = round_with(
        ("recover", ""), ("cancel", "3"), attempts=(DEAD,), interrupted=(interrupted(3),),
        jobs={3: Job(3, JobState.HELD, held_by="interrupted")},
    )  # fmt: skip
    assert only_end(plan(asked)).job_id == 7


@pytest.mark.parametrize("used", range(MAX_RECOVERIES + 2))
def test_the_scheduler_itself_recovers_a_job_three_times(used: int) -> None:
    held = (interrupted(7, used),)
    found = recover_interrupted(facts(settings=RECOVER, interrupted=held))
    assert [(job.id, job.recoveries) for job in changed_jobs(found)] == ([(7, used + 1)] if used < 3 else [])
    assert [words(one.because) for one in found] == [f"recovered; recovery {used + 1} of 3"][: used < 3]
    assert recover_interrupted(facts(interrupted=held)) == []


def test_only_the_user_gives_a_recovered_job_all_its_retries_again() -> None:
    held = interrupted(7, oom_retries_used=2, fail_retries_used=1)
    [by_scheduler] = recover_interrupted(facts(settings=RECOVER, interrupted=(held,)))
    by_user = recovery(held, NOW)
    used = [(one.new.oom_retries_used, one.new.fail_retries_used) for one in (by_scheduler, by_user)]
    assert used == [(2, 1), (0, 0)]


def test_recovers_only_in_a_round_that_changes_nothing_else_and_not_while_the_scheduler_ends() -> None:
    held = round_with(interrupted=(interrupted(3),), settings=RECOVER)
    assert [job.state for job in changed_jobs(plan(held))] == [JobState.QUEUED]
    assert only_end(plan(replace(held, attempts=(DEAD,)))).job_id == 7
    ending = replace(held, requests=(Request(1, "stop", args={"jobs": True}),), attempts=(running(),))
    assert not [job for job in changed_jobs(plan(ending)) if job.state is JobState.QUEUED]


@pytest.mark.parametrize(
    ("settings", "used", "expected"),
    [
        (Settings(), 0, "its runner was killed; `retry 7` runs it again"),
        (RECOVER, 0, "its runner was killed; recovery 1 of 3"),
        (RECOVER, 2, "its runner was killed; recovery 3 of 3"),
        (RECOVER, 3, "its runner was killed; recovered 3 times already; `recover 7` runs it again"),
    ],
)
def test_the_end_of_an_interrupted_attempt_says_whether_the_scheduler_recovers_it(
    settings: Settings, used: int, expected: str
) -> None:
    dead = replace(DEAD, status=replace(DEAD.status, folder_exists=True), recoveries=used)
    end = only_end([*reconcile(dead, NOW, settings)])
    assert (end.job.state, words(end.reason)) == (JobState.HELD, expected)


SAVED = Checkpoint("/w/out/checkpoint-150", 150.0)


@pytest.mark.parametrize(
    ("known", "saved", "expected"),
    [
        (None, None, 2),
        (None, SAVED, 0),
        (Checkpoint("/w/out/checkpoint-100", 100.0), SAVED, 0),
        (SAVED, SAVED, 2),
        (Checkpoint("/w/out/checkpoint-200", 200.0), SAVED, 2),
        (Checkpoint("/w/a.pt", None, 5.0), Checkpoint("/w/b.pt", None, 6.0), 0),
        (Checkpoint("/w/a.pt", None, 5.0), Checkpoint("/w/a.pt", None, 6.0), 2),
    ],
)
def test_recoveries_are_counted_anew_after_progress(
    known: Checkpoint | None, saved: Checkpoint | None, expected: int
) -> None:
    dead = replace(DEAD, recoveries=2, checkpoint=known, saved_work=SavedWork(saved))
    end = only_end([*reconcile(dead, NOW, RECOVER)])
    assert (end.job.recoveries, end.job.checkpoint) == (expected, saved)
    assert words(end.reason) == f"its runner was killed; recovery {expected + 1} of 3"


@pytest.mark.parametrize("may_resume", [False, True])
def test_a_recovered_job_gets_its_checkpoint_only_if_its_line_says_how(may_resume: bool) -> None:
    flag = "--resume" if may_resume else None
    spec = JobSpec("command", "", "/w", command="python a.py", resume_flag=flag).to_json()
    held = (interrupted(7, 1, checkpoint=SAVED, spec_json=spec),)
    job = replace(INTERRUPTED, checkpoint=SAVED, spec_json=spec)
    by_user = plan(round_with(("recover", "7"), jobs={7: job}))[0]
    of_all = plan(round_with(("recover", ""), interrupted=held))[0]
    [itself] = recover_interrupted(facts(settings=RECOVER, interrupted=held))
    start = "resumes from step 150"
    if not may_resume:
        start = "starts from its beginning, because it has no resume-flag (newest checkpoint: step 150)"
    for action, said in [(by_user, ""), (of_all, ""), (itself, "recovery 2 of 3; ")]:
        assert isinstance(action, act.JobChanged)
        assert action.new.resume_from == (SAVED if may_resume else None)
        assert words(action.because) == f"recovered; {said}{start}"


def test_the_end_of_a_held_attempt_names_what_continues_it() -> None:
    dead = replace(DEAD, saved_work=SavedWork(SAVED))
    end = only_end([*reconcile(dead, NOW, Settings())])
    assert words(end.reason) == "its runner was killed; `resume --job 7` continues from step 150"
    unknown = replace(dead, saved_work=SavedWork(Checkpoint("/w/a.pt")))
    end = only_end([*reconcile(unknown, NOW, Settings())])
    assert words(end.reason) == "its runner was killed; `resume --job 7` continues from /w/a.pt"
    refused = replace(dead, saved_work=SavedWork(SAVED, has_place=False))
    end = only_end([*reconcile(refused, NOW, Settings())])
    assert end.job.checkpoint == SAVED
    assert words(end.reason) == "its runner was killed; `retry 7` runs it again"


@pytest.mark.parametrize("may_resume", [False, True])
def test_a_victim_resumes_only_if_its_line_says_how(may_resume: bool) -> None:
    stop = StopRequest("preempted", 5.0, next_state=JobState.QUEUED, preemptor=9)
    dead = replace(DEAD, stop_request=stop, saved_work=SavedWork(SAVED, may_resume=may_resume))
    end = only_end([*reconcile(dead, NOW, Settings())])
    assert (end.job.state, end.outcome) == (JobState.QUEUED, Outcome.PREEMPTED)
    assert end.job.resume_from == (SAVED if may_resume else None)
    kind = NextKind.RESUME if may_resume else NextKind.START_OVER
    assert end.reason is not None
    assert [step.kind for step in end.reason.next_steps] == [kind]


def test_a_preempted_attempt_is_not_recovered() -> None:
    end = only_end([*reconcile(replace(DEAD, stop_request=StopRequest("preempted", 5.0)), NOW, RECOVER)])
    assert end.reason is not None
    assert [step.kind for step in end.reason.next_steps] == [NextKind.HELD]


RESULT = AttemptResult(None, 0, None, True, None, (), 960.0, 990.0)


@pytest.mark.parametrize(
    ("status", "values", "expected"),
    [
        (AttemptStatus("live", 5), {}, False),
        (AttemptStatus("live", 5, result=RESULT), {}, True),
        (AttemptStatus("unclaimed", 5), {}, False),
        (AttemptStatus("unknown"), {"boot_id": "before"}, False),
        (AttemptStatus("unlocked", 5), {}, False),
        (AttemptStatus("dead"), {"survivors": (5,)}, True),
        (AttemptStatus("void"), {}, True),
        (AttemptStatus("invalid"), {"survivors": (5,)}, False),
        (AttemptStatus("invalid"), {"survivors": ()}, True),
        (AttemptStatus("invalid"), {"survivors": (5,), "boot_id": "before"}, True),
        (AttemptStatus("none", folder_exists=False), {}, True),
        (AttemptStatus("none"), {"state": AttemptState.STARTING}, False),
        (AttemptStatus("none"), {"state": AttemptState.STARTING, "boot_id": "before"}, True),
        (
            AttemptStatus("none", stop=StopRequest("cancelled", 5.0)),
            {"state": AttemptState.STARTING, "boot_id": "before"},
            False,
        ),
    ],
)
def test_an_attempt_has_ended_if_the_store_will_soon_have_its_end(
    status: AttemptStatus, values: dict[str, object], expected: bool
) -> None:
    assert has_ended(replace(running(status=status), **values), NOW) is expected


def test_a_clear_of_all_answers_with_the_number_of_finished_jobs() -> None:
    assert plan(round_with(("clear", ""), finished_count=5)) == [
        act.ClearFinished(),
        act.AnswerRequest(1, RequestAnswer(AnswerCode.CLEARED, count=5)),
    ]
