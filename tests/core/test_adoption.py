"""Tests what a round decides about adopted processes and the attempts that watch them."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.gpu import GpuProcess
from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AdoptedProcess,
    AttemptResult,
    AttemptStatus,
    Job,
    SavedWork,
    StopRequest,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import is_drained, job_exit_code
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.reconcile_attempt import has_ended, reconcile
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import replace
from tests.core.decisions import changed_attempts, changed_jobs, end_in, stops_in
from tests.core.gpu_world import NOW, facts, gpu, group, running
from tests.reasons import words

PROCESS = AdoptedProcess(4711, 55, "boot", 1_699_999_000.0, ("U0",))
EARLIER = replace(PROCESS, boot_id="earlier")
ALONE = ResourceSpec.of(JobSpec("command", "x", "/", command="x", gpus=1))
MEMORY = ResourceSpec.of(JobSpec("command", "x", "/", command="x", gpus=1, vram=8000))
WATCHING = replace(running(1, "U0"), watched_pid=4711, watched_ticks=55, survivors=())
DEAD = replace(WATCHING, status=AttemptStatus(claim="dead"))
SETTINGS = Settings()
CANCEL = StopRequest("cancelled", 3.0)
#: A watcher has just died, so the next one is not due yet.
NOT_DUE: dict[str, Any] = {"boot_id": "boot", "not_before_boot": 1e9}
RESULT = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)


def starts(world: Facts) -> list[act.Start]:
    return [action for action in plan(world) if isinstance(action, act.Start)]


def adopted(process: AdoptedProcess = PROCESS, resources: ResourceSpec = ALONE, **values: Any) -> Job:
    return Job(10, adopted=process, spec_key=resources.key(), **values)


def test_an_adopted_process_is_watched_at_once_on_its_gpus_whatever_they_hold() -> None:
    others = (running(9, "U0", whole=True), running(8, "U1", share=500))
    [start] = starts(facts(gpu(0, paused=True), gpu(1), attempts=others, adopted_jobs=(adopted(),)))
    assert (start.job_id, start.gpus, start.process) == (10, ("U0",), PROCESS)
    assert (start.whole, start.vram, start.assumed) == (True, None, True)


def test_a_declared_need_leaves_the_rest_of_the_gpu_to_other_jobs() -> None:
    [start] = starts(facts(gpu(0), adopted_jobs=(adopted(resources=MEMORY),)))
    assert (start.whole, start.vram, start.assumed) == (False, 8000, False)


def test_watching_does_not_depend_on_the_gpus() -> None:
    """The driver may not answer, and the GPUs of the process may no longer be managed."""
    [start] = starts(facts(gpu(0), adopted_jobs=(adopted(),), probe_error="no answer", all_sampled=False))
    assert start.gpus == ("U0",)
    [start] = starts(facts(gpu(1), adopted_jobs=(adopted(),)))
    assert start.gpus == ()


def test_other_jobs_are_placed_only_in_a_later_round() -> None:
    waiting = group(ResourceSpec(), 11)
    assert [
        start.job_id for start in starts(facts(gpu(0), adopted_jobs=(adopted(),), pending_groups=(waiting,)))
    ] == [10]


def test_no_watcher_is_started_while_it_could_not_run() -> None:
    assert starts(facts(gpu(0), adopted_jobs=(adopted(),), storage_issue="the disk is full")) == []
    assert starts(facts(gpu(0), adopted_jobs=(adopted(**NOT_DUE),))) == []


@pytest.mark.parametrize("used", [0, 10_000])
@pytest.mark.parametrize("processes", [(), None])
def test_a_process_keeps_its_gpu_until_the_next_watcher_starts(
    used: int, processes: tuple[GpuProcess, ...] | None
) -> None:
    """The last watcher has just died, or could not be launched."""
    unwatched = (adopted(**NOT_DUE),)
    for need in (ResourceSpec(), ALONE, MEMORY):
        jobs = (group(need, 11, 12),)
        world = facts(gpu(0, used, processes), gpu(1), pending_groups=jobs, adopted_jobs=unwatched)
        assert [start.gpus for start in starts(world)][:1] == [("U1",)]
        assert all(start.gpus == ("U1",) for start in starts(world))


def test_a_declared_need_of_an_unwatched_process_leaves_the_rest_of_the_gpu() -> None:
    jobs = (adopted(resources=MEMORY, **NOT_DUE),)
    world = facts(gpu(0, 8000), adopted_jobs=jobs, pending_groups=(group(MEMORY, 11, 12, 13),))
    assert [start.job_id for start in starts(world)] == [11]


def test_no_job_preempts_an_unwatched_process() -> None:
    urgent = replace(ALONE, preempt=True)
    world = facts(gpu(0), adopted_jobs=(adopted(**NOT_DUE),), pending_groups=(group(urgent, (11, 0)),))
    assert not [action for action in plan(world) if isinstance(action, act.JobChanged | act.Reserve)]


def test_a_process_of_an_earlier_boot_is_interrupted() -> None:
    [hold] = changed_jobs(plan(facts(gpu(0), adopted_jobs=(adopted(EARLIER),))))
    assert (hold.id, hold.state) == (10, JobState.HELD)
    assert (hold.held_by, words(hold.reason)) == ("interrupted", "the machine was restarted")


def test_a_process_of_an_earlier_boot_that_had_to_stop_is_cancelled_or_preempted() -> None:
    [end] = changed_jobs(plan(facts(gpu(0), adopted_jobs=(adopted(EARLIER, stop=CANCEL),))))
    assert (end.id, end.state, end.outcome) == (10, JobState.FINISHED, Outcome.CANCELLED)
    stopped = adopted(EARLIER, stop=StopRequest("preempted", 3.0))
    [hold] = changed_jobs(plan(facts(gpu(0), adopted_jobs=(stopped,))))
    assert (hold.id, hold.state, hold.held_by) == (10, JobState.HELD, "preempted")


@pytest.mark.parametrize(("resources", "baseline"), [(ALONE, 0), (MEMORY, 2000)])
def test_unlisted_memory_of_the_process_is_not_part_of_the_baseline(
    resources: ResourceSpec, baseline: int
) -> None:
    [start] = starts(facts(gpu(0, 10_000, None), adopted_jobs=(adopted(resources=resources),)))
    assert start.baseline_mib == (("U0", baseline),)


def end_of(attempt: ActiveAttempt, settings: Settings = SETTINGS) -> ActiveAttempt:
    return end_in(reconcile(attempt, NOW, settings)[:1])


@pytest.mark.parametrize("claim", ["dead", "invalid", "none"])
@pytest.mark.parametrize("recover", [False, True])
def test_the_death_of_a_watcher_counts_neither_as_a_failure_nor_as_an_interruption(
    claim: str, recover: bool
) -> None:
    status = AttemptStatus(claim=claim, folder_exists=False)  # type: ignore[arg-type]
    actions = reconcile(replace(DEAD, status=status, launch_failures=2), NOW, Settings(recover=recover))
    end = end_in(actions)
    assert (end.job.state, end.job.outcome, end.job.adopted is not None) == (JobState.QUEUED, None, True)
    assert (end.job.launch_failures, end.job.recoveries, end.job.not_before_boot) == (2, 0, NOW.boot + 1.0)
    assert changed_attempts(actions) == [end, end.released(NOW)]


def test_a_cancel_applies_to_the_next_watcher_but_a_withdrawn_preemption_does_not() -> None:
    assert end_of(replace(DEAD, stop_request=CANCEL)).job.stop
    assert end_of(replace(DEAD, stop_request=CANCEL)).job.adopted
    assert not end_of(DEAD).job.stop
    preempt = StopRequest("preempted", 3.0, "withdraw", "a")
    withdrawn = replace(DEAD, stop_request=preempt, status=AttemptStatus(claim="dead", withdrawn=preempt))
    assert not end_of(withdrawn).job.stop


def test_the_end_of_the_boot_interrupts_an_adopted_process() -> None:
    end = end_of(replace(DEAD, boot_id="earlier"))
    assert (end.outcome, end.job.state, end.job.adopted is not None) == (
        Outcome.INTERRUPTED,
        JobState.HELD,
        False,
    )


def test_in_a_restored_store_the_job_of_a_dead_watcher_is_held() -> None:
    """The process may still run, so nobody but the user may start its command."""
    end = end_of(replace(DEAD, is_line_gone=True))
    assert (end.job.state, end.job.adopted is not None) == (JobState.HELD, False)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (RESULT, Outcome.COMPLETED),
        (replace(RESULT, exit_code=None), Outcome.ENDED),
        (replace(RESULT, exit_code=3), Outcome.FAILED),
        (replace(RESULT, cause="cancelled", exit_code=None, signal=15), Outcome.CANCELLED),
        (replace(RESULT, cause="cancelled", exit_code=None), Outcome.CANCELLED),
    ],
)
def test_the_end_of_the_process_ends_the_job_which_is_never_retried(
    result: AttemptResult, outcome: Outcome
) -> None:
    ended = replace(WATCHING, status=AttemptStatus(claim="dead", result=result))
    end = end_of(ended, Settings(fail_retries=3, oom_retries=3))
    assert (end.outcome, end.job.state, end.job.adopted is not None) == (outcome, JobState.FINISHED, False)


@pytest.mark.parametrize(
    ("number", "exit_code", "signal", "outcome"),
    [
        (2, None, 15, Outcome.CANCELLED),
        (2, None, None, Outcome.CANCELLED),
        (2, 0, None, Outcome.COMPLETED),
        (1, None, 15, Outcome.FAILED),
    ],
)
def test_a_process_that_ended_between_two_watchers_was_ended_by_the_open_cancel(
    number: int, exit_code: int | None, signal: int | None, outcome: Outcome
) -> None:
    """Otherwise, the jobs that wait for it would start."""
    result = replace(RESULT, exit_code=exit_code, signal=signal)
    ended = replace(
        WATCHING, number=number, stop_request=CANCEL, status=AttemptStatus(claim="dead", result=result)
    )
    assert end_of(ended).outcome is outcome
    assert end_of(replace(ended, stop_request=None)).outcome is not Outcome.CANCELLED


@pytest.mark.parametrize("next_state", [JobState.HELD, JobState.QUEUED])
def test_a_preempted_process_is_no_longer_adopted(next_state: JobState) -> None:
    result = replace(RESULT, cause="preempted", exit_code=None, signal=15)
    stop = StopRequest("preempted", 3.0, "kill", "a", next_state=next_state)
    end = end_of(replace(WATCHING, stop_request=stop, status=AttemptStatus(claim="dead", result=result)))
    assert (end.outcome, end.job.state, end.job.adopted is not None) == (Outcome.PREEMPTED, next_state, False)


def test_a_cancel_waits_for_the_watcher_instead_of_voiding_its_claim() -> None:
    starting = replace(
        WATCHING, state=AttemptState.STARTING, stop_request=CANCEL, launch_deadline_boot=1010.0
    )
    assert reconcile(replace(starting, status=AttemptStatus()), NOW, Settings()) == []
    live = replace(starting, status=AttemptStatus(claim="live"))
    assert act.RequestStop(1, CANCEL) in reconcile(live, NOW, Settings())


def test_a_failed_launch_of_a_watcher_is_tried_again_even_if_the_job_is_being_cancelled() -> None:
    void = replace(WATCHING, status=AttemptStatus(claim="void"), stop_request=CANCEL)
    end = end_of(void)
    assert (end.outcome, end.job.state, end.job.launch_failures) == (Outcome.NOT_STARTED, JobState.QUEUED, 1)
    assert (end.job.adopted is not None, end.job.stop is not None) == (True, True)


@pytest.mark.parametrize("failures", [4, 5000])
def test_a_process_is_never_given_up_because_its_watchers_do_not_start(failures: int) -> None:
    void = replace(WATCHING, status=AttemptStatus(claim="void"), launch_failures=failures)
    end = end_of(void)
    assert (end.job.state, end.job.adopted is not None, end.job.not_before_boot) == (
        JobState.QUEUED,
        True,
        NOW.boot + 60.0,
    )
    assert "another runner watches the adopted process in 60 s" in words(end.reason)


def test_stop_jobs_spares_adopted_processes() -> None:
    stop = Request(1, "stop", args={"jobs": True, "grace_s": 5.0})
    [answer, *_] = [one for one in plan(facts(gpu(0), attempts=(WATCHING,), requests=(stop,))) if one]
    assert isinstance(answer, act.EndScheduler)
    other = running(2, "U1")
    recorded = plan(facts(gpu(0), gpu(1), attempts=(WATCHING, other), requests=(stop,)))
    assert [job_id for job_id, _ in stops_in(recorded)] == [other.job_id]


@pytest.mark.parametrize("verb", ["cancel", "hold"])
def test_requests_about_an_adopted_process_wait_until_it_is_watched(verb: str) -> None:
    request = Request(1, verb, "10", {"grace_s": 5.0})
    jobs = {10: Job(10, JobState.QUEUED)}
    world = facts(gpu(0), adopted_jobs=(adopted(),), requests=(request,), jobs=jobs)
    assert [type(action) for action in plan(world)] == [act.Start]


def test_the_queue_is_not_drained_while_a_process_is_to_be_watched() -> None:
    assert is_drained(facts(gpu(0)), [], has_pending_retries=False)
    assert not is_drained(facts(gpu(0), adopted_jobs=(adopted(),)), [], has_pending_retries=False)


def test_an_ended_job_counts_as_completed_when_the_queue_is_drained() -> None:
    assert job_exit_code(JobState.FINISHED, Outcome.ENDED, None, None, None) == 0


def test_a_preemption_waits_for_the_next_watcher_if_the_launch_of_one_has_failed() -> None:
    """The process was never signalled, so the job must not be held while it runs."""
    stop = StopRequest("preempted", 60.0, "withdraw", "first")
    void = replace(WATCHING, status=AttemptStatus(claim="void"), stop_request=stop)
    end = end_of(void)
    assert (end.outcome, end.job.state) == (Outcome.NOT_STARTED, JobState.QUEUED)
    assert end.job.adopted is not None
    assert end.job.stop is not None


def test_a_request_is_carried_out_before_the_death_of_a_watcher_is_recorded() -> None:
    """Without a scheduler, `cancel` ends the process, and then its watcher is killed."""
    assert not has_ended(DEAD, NOW)
    assert has_ended(replace(DEAD, boot_id="another boot"), NOW)
    assert has_ended(replace(DEAD, status=AttemptStatus(claim="dead", result=RESULT)), NOW)


def test_a_process_that_saved_its_work_for_a_preemption_of_an_earlier_watcher_is_not_complete() -> None:
    stop = StopRequest("preempted", 60.0, "withdraw", "first")
    second = replace(WATCHING, number=2, stop_request=stop, status=AttemptStatus(claim="live", result=RESULT))
    assert end_of(replace(second, saved_work=SavedWork(is_complete=False))).outcome is Outcome.PREEMPTED
    assert end_of(replace(second, saved_work=SavedWork(is_complete=True))).outcome is Outcome.COMPLETED
    assert end_of(second).outcome is Outcome.COMPLETED
