"""The rules in docs/design.md, Reconciling, applied to one attempt at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_scheduler.core.model.job import (
    ActiveAttempt,
    AttemptResult,
    AttemptStatus,
    FailureContext,
    RunnerIdentity,
    StopRequest,
)
from gpu_scheduler.core.model.reasons import FailureKind
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.actions import AttemptChanged
from gpu_scheduler.core.scheduling.reconcile_attempt import (
    check_memory_release,
    needs_process_scan,
    reconcile,
    release_allocation,
)
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace
from tests.core.decisions import changed_attempts, end_in
from tests.reasons import words

NOW = Now(1_700_000_000.0, 1000.0, "boot")
SETTINGS = Settings()
OPEN = make_attempt(1, 7, "t" * 32, "boot", AttemptState.RUNNING, ("U0",), 500, launch_deadline_boot=1010.0)
STARTING = replace(OPEN, state=AttemptState.STARTING)
RESULT = AttemptResult(None, 0, None, True, None, (), 1.0, 2.0)
CANCEL = StopRequest("cancelled", 3.0)
CANCELLED = replace(OPEN, stop_request=CANCEL)


def status(**values: object) -> AttemptStatus:
    return AttemptStatus(**values)  # type: ignore[arg-type]


def only_action(actions: Sequence[act.Action]) -> act.Action:
    assert len(actions) == 1, actions
    return actions[0]


def finished(attempt: ActiveAttempt, settings: Settings = SETTINGS) -> ActiveAttempt:
    """Returns the attempt after its end, which must be the only action."""
    return end_in([only_action(reconcile(attempt, NOW, settings))])


def test_each_change_of_an_attempt_has_its_time() -> None:
    stopping = OPEN.stopping(NOW)
    assert (stopping.state, stopping.job.state) == (AttemptState.STOPPING, JobState.STOPPING)
    assert stopping.stopping_boot == NOW.boot
    running = stopping.running(NOW)
    assert (running.state, running.job.state) == (AttemptState.RUNNING, JobState.RUNNING)
    assert (running.stopping_boot, running.started_at) == (None, NOW.wall)
    assert replace(running, started_at=1.0).running(NOW).started_at == 1.0
    orphaned = OPEN.orphaned(NOW)
    assert (orphaned.state, orphaned.runner_died_boot) == (AttemptState.ORPHANED, NOW.boot)
    released = replace(OPEN, state=AttemptState.ENDED).released(NOW)
    assert (released.state, released.released_boot) == (AttemptState.RELEASED, NOW.boot)
    assert released.closed() == replace(released, state=AttemptState.CLOSED)


@pytest.mark.parametrize(
    ("result", "outcome", "state"),
    [
        (RESULT, Outcome.COMPLETED, JobState.FINISHED),
        (replace(RESULT, exit_code=7), Outcome.FAILED, JobState.FINISHED),
        (replace(RESULT, exit_code=None, signal=9), Outcome.FAILED, JobState.FINISHED),
        (replace(RESULT, cause="cancelled", exit_code=0), Outcome.CANCELLED, JobState.FINISHED),
        (replace(RESULT, cause="timed_out", exit_code=None, signal=15), Outcome.TIMED_OUT, JobState.FINISHED),
        (replace(RESULT, cause="machine", exit_code=None, signal=15), Outcome.INTERRUPTED, JobState.HELD),
        (replace(RESULT, cause="preempted", exit_code=1), Outcome.PREEMPTED, JobState.HELD),
        (
            replace(RESULT, began=False, exit_code=1, message="no such environment"),
            Outcome.NOT_STARTED,
            JobState.QUEUED,
        ),
    ],
)
def test_the_result_file_decides_the_outcome_of_an_attempt(
    result: AttemptResult, outcome: Outcome, state: JobState
) -> None:
    seen = status(claim="dead", result=result)
    end = finished(replace(OPEN, status=seen, survivors=(77,), launch_failures=1))
    assert (end.outcome, end.job.state) == (outcome, state)
    # Only launches that fail one after the other count.
    assert end.job.launch_failures == (0 if result.began else 2)
    expected = (result.exit_code, result.signal) if result.began else (None, None)
    assert (end.exit_code, end.signal) == expected


def test_an_unreadable_attempt_folder_changes_nothing() -> None:
    blind = replace(OPEN, status=status(claim="unknown"), stop_request=CANCEL, launch_deadline_boot=0.0)
    assert reconcile(blind, NOW, SETTINGS) == []
    assert not needs_process_scan(blind, NOW)


@pytest.mark.parametrize("state", [AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING])
@pytest.mark.parametrize("cancel", [None, CANCEL])
def test_a_runner_process_that_lost_its_lock_does_not_count_as_dead(
    state: AttemptState, cancel: StopRequest | None
) -> None:
    sighting = status(claim="unlocked", pid=5, stop=StopRequest("cancelled", 0.0))
    attempt = replace(OPEN, state=state, stop_request=cancel, status=sighting, launch_deadline_boot=0.0)
    assert reconcile(attempt, NOW, SETTINGS) == []
    assert not needs_process_scan(attempt, NOW)
    assert finished(replace(attempt, status=replace(sighting, result=RESULT))).outcome is Outcome.COMPLETED


def test_a_command_that_ended_before_its_cancel_keeps_its_result() -> None:
    end = finished(replace(CANCELLED, status=status(claim="live", result=RESULT)))
    assert (end.outcome, end.job.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)


def test_a_result_releases_the_gpus_at_once_only_if_no_process_is_left() -> None:
    ended = replace(OPEN, status=status(claim="dead", result=RESULT))
    assert needs_process_scan(ended, NOW)
    end, release = changed_attempts(reconcile(replace(ended, survivors=()), NOW, SETTINGS))
    assert (end.state, release) == (AttemptState.ENDED, end.released(NOW))
    for survivors in (None, (77,)):
        assert finished(replace(ended, survivors=survivors)).state is AttemptState.ENDED
    assert not needs_process_scan(replace(ended, status=status(claim="live", result=RESULT)), NOW)


def test_an_attempt_with_a_void_claim_is_not_started() -> None:
    end = finished(replace(OPEN, state=AttemptState.STARTING, status=status(claim="void")))
    assert (end.outcome, end.job.state) == (Outcome.NOT_STARTED, JobState.QUEUED)
    end = finished(replace(CANCELLED, status=status(claim="void")))
    assert end.job.outcome is Outcome.CANCELLED


def test_a_stop_request_before_the_claim_voids_the_claim() -> None:
    for attempt in (
        replace(STARTING, stop_request=CANCEL),
        replace(STARTING, status=status(stop=StopRequest("cancelled", 3.0))),
        replace(STARTING, stop_request=CANCEL, boot_id="another"),
    ):
        assert only_action(reconcile(attempt, NOW, SETTINGS)) == act.VoidClaim(1)


def test_voiding_a_claim_is_attempted_once_a_second() -> None:
    wanted = replace(STARTING, stop_request=CANCEL)
    overdue = replace(STARTING, launch_count=3, launch_deadline_boot=0.0)
    for attempt in (wanted, overdue):
        assert reconcile(replace(attempt, signalled_boot=999.5), NOW, SETTINGS) == []
        assert reconcile(replace(attempt, signalled_boot=999.0), NOW, SETTINGS) == [
            act.VoidClaim(1, gives_up=attempt is overdue)
        ]
    of_another_boot = replace(wanted, boot_id="another", signalled_boot=90_000.0)
    assert reconcile(of_another_boot, NOW, SETTINGS) == [act.VoidClaim(1)]


def test_a_live_claim_changes_the_job_to_running_only_once() -> None:
    starting = replace(OPEN, state=AttemptState.STARTING, status=status(claim="live", pid=5))
    assert reconcile(starting, NOW, SETTINGS) == [AttemptChanged(starting, starting.running(NOW))]
    assert reconcile(replace(starting, state=AttemptState.RUNNING), NOW, SETTINGS) == []


def test_a_cancel_writes_the_stop_file_then_sends_sigterm_and_finally_kills_the_runner() -> None:
    live = replace(CANCELLED, status=status(claim="live", pid=5))
    assert reconcile(live, NOW, SETTINGS) == [
        AttemptChanged(live, live.stopping(NOW)),
        act.RequestStop(1, StopRequest("cancelled", 3.0)),
    ]
    stopping = replace(live, state=AttemptState.STOPPING, stopping_boot=995.0)
    assert reconcile(stopping, NOW, SETTINGS) == [act.RequestStop(1, StopRequest("cancelled", 3.0))]
    notified = replace(
        stopping, status=status(claim="live", stop=StopRequest("cancelled", 3.0)), signalled_boot=999.5
    )
    assert reconcile(notified, NOW, SETTINGS) == []
    assert reconcile(replace(notified, signalled_boot=998.0), NOW, SETTINGS) == [act.WakeRunner(1)]
    late = replace(notified, signalled_boot=998.0, stopping_boot=1000.0 - 13.0)
    assert reconcile(late, NOW, SETTINGS) == [act.KillRunner(1)]


def test_a_job_stays_in_stopping_until_its_stop_request_is_withdrawn() -> None:
    stopped = replace(OPEN, status=status(claim="live", stop=StopRequest("cancelled", 3.0)))
    assert reconcile(stopped, NOW, SETTINGS) == [AttemptChanged(stopped, stopped.stopping(NOW))]
    withdrawn = replace(OPEN, state=AttemptState.STOPPING, status=status(claim="live"))
    assert reconcile(withdrawn, NOW, SETTINGS) == [AttemptChanged(withdrawn, withdrawn.running(NOW))]


def test_sweeps_the_processes_of_a_dead_runner_and_interrupts_its_job() -> None:
    dead = replace(OPEN, status=status(claim="dead"))
    assert needs_process_scan(dead, NOW)
    assert reconcile(dead, NOW, SETTINGS) == []  # The attempt's processes have not been scanned yet.
    left = replace(dead, survivors=(44,))
    assert reconcile(left, NOW, SETTINGS) == [
        AttemptChanged(left, left.orphaned(NOW)),
        act.Sweep(1, kill=False),
    ]
    swept = replace(
        left, state=AttemptState.ORPHANED, runner_died_boot=985.0, swept_boot=985.0, signalled_boot=998.0
    )
    assert reconcile(swept, NOW, SETTINGS) == [act.Sweep(1, kill=True)]
    assert reconcile(replace(swept, signalled_boot=999.5), NOW, SETTINGS) == []
    end = finished(replace(swept, runner_died_boot=939.0))
    assert (end.outcome, end.job.state, end.survivors) == (Outcome.INTERRUPTED, JobState.HELD, (44,))
    assert "44" in words(end.reason)
    interrupted = finished(replace(dead, survivors=()))
    assert (interrupted.outcome, interrupted.job.state) == (Outcome.INTERRUPTED, JobState.HELD)
    assert words(interrupted.reason) == "its runner was killed; `retry 7` runs it again"
    restarted = finished(replace(dead, survivors=(), boot_id="another"))
    assert "the machine was restarted" in words(restarted.reason)


@pytest.mark.parametrize("stop", [None, CANCEL])
def test_an_orphaned_attempt_is_supervised_again_when_its_folder_is_back(stop: StopRequest | None) -> None:
    back = replace(OPEN, state=AttemptState.ORPHANED, runner_died_boot=990.0, stop_request=stop)
    back = replace(back, status=status(claim="live", pid=5))
    supervised, *stops = reconcile(back, NOW, SETTINGS)
    assert supervised == AttemptChanged(back, back.stopping(NOW) if stop else back.running(NOW))
    assert stops == ([act.RequestStop(1, stop)] if stop else [])


def test_records_surviving_processes_only_after_sigkill() -> None:
    late = replace(
        OPEN,
        status=status(claim="dead"),
        survivors=(44,),
        state=AttemptState.ORPHANED,
        runner_died_boot=900.0,
    )
    # The scheduler ended after it had sent SIGTERM.
    assert reconcile(replace(late, swept_boot=900.0, signalled_boot=900.0), NOW, SETTINGS) == [
        act.Sweep(1, kill=True)
    ]
    # The grace period of the cancel is longer than 60 s.
    patient = replace(
        late, stop_request=StopRequest("cancelled", 300.0), swept_boot=900.0, signalled_boot=900.0
    )
    assert reconcile(patient, NOW, SETTINGS) == []
    # The SIGKILL has just been sent.
    assert reconcile(replace(late, swept_boot=900.0, signalled_boot=999.9), NOW, SETTINGS) == []
    assert finished(replace(late, swept_boot=900.0, signalled_boot=998.0)).survivors == (44,)


def test_an_attempt_stopped_before_its_runner_died_keeps_the_cause_of_the_stop() -> None:
    for attempt in (
        replace(CANCELLED, status=status(claim="dead"), survivors=()),
        replace(OPEN, status=status(claim="dead", stop=StopRequest("cancelled", 3.0)), survivors=()),
    ):
        end = finished(attempt)
        assert (end.outcome, end.job.outcome) == (Outcome.CANCELLED, Outcome.CANCELLED)


@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.STOPPING])
def test_an_attempt_whose_folder_was_removed_is_not_relaunched(state: AttemptState) -> None:
    removed = status(folder_exists=False, folder_complete=False)
    lost = replace(OPEN, state=state, launch_deadline_boot=0.0, status=removed)
    assert needs_process_scan(lost, NOW)
    left = replace(lost, survivors=(44,))
    assert reconcile(left, NOW, SETTINGS) == [
        AttemptChanged(left, left.orphaned(NOW)),
        act.Sweep(1, kill=False),
    ]
    end = finished(replace(lost, survivors=()))
    assert (end.outcome, end.job.state) == (Outcome.INTERRUPTED, JobState.HELD)
    assert "folder was removed" in words(end.reason)


RUNNER = RunnerIdentity(44, 5, "boot")
INCOMPLETE = AttemptStatus(folder_complete=False)


def test_records_only_once_which_runner_has_the_claim() -> None:
    live = replace(STARTING, status=status(claim="live", runner=RUNNER))
    assert reconcile(live, NOW, SETTINGS) == [AttemptChanged(live, replace(live, runner=RUNNER).running(NOW))]
    known = replace(live, state=AttemptState.RUNNING, runner=RUNNER)
    assert reconcile(known, NOW, SETTINGS) == []
    other = replace(known, runner=RunnerIdentity(44, 4, "boot"))
    assert reconcile(other, NOW, SETTINGS) == [AttemptChanged(other, known)]


def test_a_runner_whose_claim_was_removed_continues_and_can_be_stopped() -> None:
    running = replace(
        OPEN, runner=RUNNER, status=status(claim="unclaimed", damage="the file claim was removed")
    )
    assert reconcile(running, NOW, SETTINGS) == []
    assert not needs_process_scan(running, NOW)
    cancelled = replace(running, stop_request=CANCEL)
    assert reconcile(cancelled, NOW, SETTINGS) == [
        AttemptChanged(cancelled, cancelled.stopping(NOW)),
        act.RequestStop(1, StopRequest("cancelled", 3.0)),
    ]
    late = replace(running, state=AttemptState.STOPPING, stop_request=CANCEL, stopping_boot=900.0)
    late = replace(late, status=replace(running.status, stop=StopRequest("cancelled", 3.0)))
    assert reconcile(late, NOW, SETTINGS) == [act.KillRunner(1)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (None, "its runner was killed"),
        ("the file claim was removed", "its runner died, and the file claim was removed"),
        ("the file result is a link", "its runner died, and the file result is a link"),
    ],
)
def test_holds_a_job_with_a_dead_runner_and_names_the_damaged_file(damage: str | None, reason: str) -> None:
    end = finished(replace(OPEN, status=status(claim="dead", damage=damage), survivors=()))
    assert (end.outcome, end.job.state) == (Outcome.INTERRUPTED, JobState.HELD)
    assert words(end.reason) == f"{reason}; `retry 7` runs it again"


INVALID = status(claim="invalid", damage="the file claim is a folder")


@pytest.mark.parametrize("sighting", [INVALID, status(claim="none")])
@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.STOPPING])
def test_an_attempt_with_an_unknown_runner_stays_open_while_it_has_processes(
    sighting: AttemptStatus, state: AttemptState
) -> None:
    attempt = replace(OPEN, state=state, status=sighting, launch_deadline_boot=0.0)
    assert needs_process_scan(attempt, NOW)
    assert reconcile(attempt, NOW, SETTINGS) == []
    assert reconcile(replace(attempt, survivors=(44,)), NOW, SETTINGS) == [], (
        "no process is ended without a request"
    )
    end = finished(replace(attempt, survivors=()))
    assert (end.outcome, end.job.state) == (Outcome.INTERRUPTED, JobState.HELD)
    assert finished(replace(attempt, boot_id="another", survivors=())).job.state is JobState.HELD
    assert finished(replace(attempt, status=replace(sighting, result=RESULT))).outcome is Outcome.COMPLETED


def test_cancelling_an_attempt_with_an_unknown_runner_sweeps_its_processes() -> None:
    attempt = replace(
        STARTING, status=INVALID, survivors=(44,), stop_request=CANCEL, launch_deadline_boot=0.0
    )
    request = act.RequestStop(1, StopRequest("cancelled", 3.0))
    assert reconcile(attempt, NOW, SETTINGS) == [AttemptChanged(attempt, attempt.stopping(NOW)), request]
    asked = replace(attempt, signalled_boot=999.9)
    assert reconcile(asked, NOW, SETTINGS) == [AttemptChanged(asked, asked.stopping(NOW))]
    notified = replace(
        attempt, state=AttemptState.STOPPING, status=replace(INVALID, stop=StopRequest("cancelled", 3.0))
    )
    assert reconcile(notified, NOW, SETTINGS) == [act.Sweep(1, kill=False)]
    assert reconcile(replace(notified, swept_boot=990.0), NOW, SETTINGS) == [act.Sweep(1, kill=True)]
    end = finished(replace(notified, survivors=()))
    assert (end.outcome, end.job.outcome) == (Outcome.CANCELLED, Outcome.CANCELLED)


def test_an_attempt_with_an_invalid_claim_is_not_relaunched() -> None:
    overdue = replace(STARTING, status=INVALID, launch_deadline_boot=0.0, survivors=(44,))
    assert reconcile(overdue, NOW, SETTINGS) == []
    end = finished(replace(overdue, survivors=()))
    assert end.job.state is JobState.HELD
    assert "the file claim is a folder" in words(end.reason)


def test_does_not_relaunch_an_attempt_that_has_a_process() -> None:
    overdue = replace(STARTING, launch_deadline_boot=0.0, launch_count=1)
    assert needs_process_scan(overdue, NOW)
    assert not needs_process_scan(replace(overdue, launch_deadline_boot=1010.0), NOW)
    assert not needs_process_scan(replace(overdue, status=INCOMPLETE), NOW)
    assert reconcile(replace(overdue, survivors=(44,)), NOW, SETTINGS) == []
    assert reconcile(replace(overdue, survivors=()), NOW, SETTINGS) == [act.Relaunch(1)]


def test_a_second_cancel_with_a_shorter_grace_period_replaces_the_stop_request() -> None:
    slow = StopRequest("cancelled", 60.0)
    live = replace(OPEN, state=AttemptState.STOPPING, stopping_boot=999.0, stop_request=CANCEL)
    notified = replace(live, status=status(claim="live", stop=slow), signalled_boot=998.0)
    assert reconcile(notified, NOW, SETTINGS) == [act.RequestStop(1, StopRequest("cancelled", 3.0))]
    longer = replace(notified, stop_request=StopRequest("cancelled", 90.0))
    assert reconcile(longer, NOW, SETTINGS) == [act.WakeRunner(1)]


def test_an_attempt_of_an_earlier_boot_is_not_relaunched() -> None:
    end = finished(replace(STARTING, boot_id="another", launch_deadline_boot=0.0))
    assert (end.outcome, end.job.state) == (Outcome.INTERRUPTED, JobState.HELD)


def test_relaunches_an_unclaimed_attempt_at_most_twice() -> None:
    early = replace(OPEN, state=AttemptState.STARTING)
    assert reconcile(early, NOW, SETTINGS) == []
    assert reconcile(replace(early, status=INCOMPLETE), NOW, SETTINGS) == [act.Relaunch(1)]
    late = replace(early, launch_deadline_boot=999.0)
    assert reconcile(late, NOW, SETTINGS) == [act.Relaunch(1)]
    assert reconcile(replace(late, launch_count=2), NOW, SETTINGS) == [act.Relaunch(1)]
    assert reconcile(replace(late, launch_count=3), NOW, SETTINGS) == [act.VoidClaim(1, gives_up=True)]
    assert reconcile(replace(late, launch_error="fork failed"), NOW, SETTINGS) == [act.VoidClaim(1)]


SHORT = replace(RESULT, began=False, exit_code=None, message="no process could be started", shortage=11)


@pytest.mark.parametrize("failures", [0, 4])
def test_a_shortage_does_not_count_as_a_failed_launch(failures: int) -> None:
    failing = replace(OPEN, status=status(result=SHORT), survivors=(77,), launch_failures=failures)
    end = finished(failing)
    assert (end.outcome, end.job.state, end.job.outcome) == (Outcome.NOT_STARTED, JobState.QUEUED, None)
    assert (end.job.launch_failures, end.job.not_before_boot) == (failures, 1005.0)
    assert words(end.reason) == "no process could be started; next try in 5 s, not counted as a failure"


@pytest.mark.parametrize("failures", [0, 4])
def test_an_unusable_lock_file_does_not_count_as_a_failed_launch(failures: int) -> None:
    unusable = replace(SHORT, message="U0 is a link", shortage=None, failure=FailureKind.GPU_CLAIM)
    failing = replace(OPEN, status=status(result=unusable), launch_failures=failures)
    end = finished(failing)
    assert (end.outcome, end.job.state, end.job.launch_failures) == (
        Outcome.NOT_STARTED,
        JobState.QUEUED,
        failures,
    )
    assert end.job.not_before_boot == NOW.boot + SETTINGS.assign_retry_wait_s
    assert words(end.reason).endswith("next try in 5 s, not counted as a failure")


def test_a_shortage_does_not_requeue_a_cancelled_job_or_a_job_without_its_line() -> None:
    failing = replace(OPEN, status=status(result=SHORT), survivors=(77,))
    assert finished(replace(failing, stop_request=CANCEL)).job.outcome is Outcome.CANCELLED
    assert finished(replace(failing, is_line_gone=True)).job.outcome is Outcome.FAILED


LOST_CLAIM = replace(RESULT, began=False, exit_code=None, message="…", claimed_gpu="U0", claimed_by=4711)


@pytest.mark.parametrize("failures", [0, 4])
@pytest.mark.parametrize(
    ("index", "pid", "cause"),
    [
        (1, 4711, "GPU 1 was claimed by pid 4711 first"),
        (1, None, "GPU 1 was claimed by another program first"),
        (None, 4711, "one of its GPUs was claimed by pid 4711 first"),
    ],
)
def test_a_gpu_that_another_program_claimed_first_does_not_count_as_a_failed_launch(
    failures: int, index: int | None, pid: int | None, cause: str
) -> None:
    lost = replace(LOST_CLAIM, claimed_by=pid)
    context = FailureContext(claimed_gpu=index)
    failing = replace(
        OPEN, status=status(result=lost), survivors=(77,), launch_failures=failures, failure_context=context
    )
    end = finished(failing)
    assert (end.outcome, end.job.state, end.job.outcome) == (Outcome.NOT_STARTED, JobState.QUEUED, None)
    assert (end.job.launch_failures, end.job.not_before_boot) == (failures, 1001.0)
    assert words(end.reason) == f"{cause}; next try in 1 s, not counted as a failure"


def test_a_lost_claim_does_not_requeue_a_cancelled_job_or_a_job_without_its_line() -> None:
    failing = replace(OPEN, status=status(result=LOST_CLAIM), survivors=(77,))
    assert finished(replace(failing, stop_request=CANCEL)).job.outcome is Outcome.CANCELLED
    abandoned = finished(replace(failing, is_line_gone=True))
    assert abandoned.job.outcome is Outcome.FAILED
    assert words(abandoned.reason) == "could not be started: one of its GPUs was claimed by pid 4711 first"


def test_the_wait_after_each_failed_launch_grows_until_the_job_fails() -> None:
    failing = replace(
        OPEN,
        status=status(result=replace(RESULT, began=False, exit_code=1, message="why")),
        survivors=(77,),
    )
    waits = []
    for failures in range(4):
        end = finished(replace(failing, launch_failures=failures))
        assert end.job.state is JobState.QUEUED
        assert end.job.launch_failures == failures + 1
        assert end.job.not_before_boot is not None
        waits.append(end.job.not_before_boot - NOW.boot)
    assert waits == [5, 10, 20, 40]
    last = finished(replace(failing, launch_failures=4))
    assert (last.job.state, last.job.outcome) == (JobState.FINISHED, Outcome.FAILED)
    assert "why" in words(last.reason)
    long = finished(replace(failing, launch_failures=8), replace(SETTINGS, max_assign_attempts=20))
    assert long.job.not_before_boot == NOW.boot + 60


def test_does_not_retry_a_job_whose_line_was_removed() -> None:
    failing = replace(OPEN, is_line_gone=True, status=status(result=replace(RESULT, began=False)))
    assert finished(failing).job.outcome is Outcome.FAILED


def test_releases_an_allocation_only_when_no_process_of_the_attempt_is_left() -> None:
    ended = replace(OPEN, state=AttemptState.ENDED)
    assert needs_process_scan(ended, NOW)
    assert release_allocation(ended, NOW, SETTINGS) == []
    assert release_allocation(replace(ended, survivors=(9,)), NOW, SETTINGS) == [act.Sweep(1, kill=False)]
    gone = replace(ended, survivors=())
    assert release_allocation(gone, NOW, SETTINGS) == [AttemptChanged(gone, gone.released(NOW))]
    assert not needs_process_scan(replace(ended, state=AttemptState.RELEASED, released_boot=990.0), NOW)


@pytest.mark.parametrize(
    ("sampled_at", "mib", "cool"),
    [
        (None, 0, False),
        (989.0, 0, False),
        (991.0, 0, True),
        (991.0, 600, True),
        (991.0, 5000, False),
        (991.0, None, True),
    ],
)
def test_a_released_gpu_is_not_used_until_its_memory_is_free(
    sampled_at: float | None, mib: int | None, cool: bool
) -> None:
    attempt = replace(OPEN, state=AttemptState.RELEASED, released_boot=990.0, baseline_mib={"U0": 100})
    assert bool(check_memory_release(attempt, [(sampled_at, mib)], NOW, SETTINGS)) == cool
    late = replace(attempt, released_boot=930.0)
    assert check_memory_release(late, [(sampled_at, mib)], NOW, SETTINGS) == [
        AttemptChanged(late, late.closed())
    ]


def test_a_preempted_runner_that_may_withdraw_is_not_killed_when_it_is_late() -> None:
    stop = StopRequest("preempted", 1.0, "withdraw")
    late = replace(
        OPEN, state=AttemptState.STOPPING, stopping_boot=900.0, status=status(claim="live", stop=stop)
    )
    assert reconcile(late, NOW, SETTINGS) == [act.WakeRunner(1)]


def test_a_sweep_sends_sigkill_only_after_the_grace_period() -> None:
    left = replace(OPEN, state=AttemptState.ENDED, survivors=(9,), swept_boot=995.0, signalled_boot=995.0)
    assert release_allocation(left, NOW, SETTINGS) == []  # The default grace period of 10 s is not over.
    # The cancel's own grace period of 3 s is over.
    assert release_allocation(replace(left, stop_request=CANCEL), NOW, SETTINGS) == [act.Sweep(1, kill=True)]
    assert release_allocation(replace(left, swept_boot=989.0), NOW, SETTINGS) == [act.Sweep(1, kill=True)]


@pytest.mark.parametrize(
    "attempt",
    [
        replace(
            OPEN, stop_request=CANCEL, status=status(result=replace(RESULT, cause="machine", exit_code=1))
        ),
        replace(CANCELLED, status=status(result=replace(RESULT, began=False, exit_code=1))),
        replace(
            OPEN, stop_request=CANCEL, status=status(result=replace(RESULT, cause="preempted", exit_code=1))
        ),
    ],
)
def test_a_cancelled_job_ends_as_cancelled_however_its_attempt_ends(attempt: ActiveAttempt) -> None:
    end = finished(attempt)
    assert (end.job.state, end.job.outcome) == (JobState.FINISHED, Outcome.CANCELLED)


def test_a_preempted_job_is_held_instead_of_cancelled() -> None:
    end = finished(
        replace(OPEN, stop_request=StopRequest("preempted", 3.0), status=status(claim="dead"), survivors=())
    )
    assert (end.outcome, end.job.state, end.job.outcome) == (Outcome.PREEMPTED, JobState.HELD, None)


def test_an_attempt_with_an_unknown_stop_cause_does_not_count_as_completed() -> None:
    end = finished(replace(OPEN, status=status(result=replace(RESULT, cause="something new"))))
    assert end.outcome is Outcome.INTERRUPTED


def test_reports_a_machine_shutdown_and_surviving_processes() -> None:
    machine = replace(RESULT, cause="machine", exit_code=None, signal=15, survivors=(7, 8))
    end = finished(replace(OPEN, status=status(result=machine)))
    assert end.survivors == (7, 8)
    assert (
        words(end.reason) == "the machine was shut down or its login session ended; `retry 7` runs it again"
    )
    assert (end.started_at, end.ended_at) == (1.0, 2.0)


def test_does_not_wait_for_memory_used_before_a_reboot() -> None:
    ended = replace(OPEN, state=AttemptState.RELEASED, released_boot=999.0, boot_id="another")
    assert check_memory_release(ended, [(None, None)], NOW, SETTINGS) == [
        AttemptChanged(ended, ended.closed())
    ]


def test_memory_release_tolerates_memory_that_the_driver_keeps() -> None:
    ended = replace(OPEN, state=AttemptState.RELEASED, released_boot=990.0, baseline_mib={"U0": 100})
    assert check_memory_release(ended, [(991.0, 612)], NOW, SETTINGS) == [
        AttemptChanged(ended, ended.closed())
    ]
    assert check_memory_release(ended, [(991.0, 613)], NOW, SETTINGS) == []


def test_does_not_relaunch_an_attempt_while_starts_are_blocked() -> None:
    late = replace(STARTING, launch_deadline_boot=999.0)
    assert reconcile(late, NOW, SETTINGS) == [act.Relaunch(1)]
    assert reconcile(late, NOW, SETTINGS, starts_blocked=True) == []
    used_up = replace(late, launch_count=SETTINGS.max_launches)
    assert reconcile(used_up, NOW, SETTINGS) == [act.VoidClaim(1, gives_up=True)]
    # The problem that blocks starts explains the missing claim, so the attempt is relaunched after the
    # problem is solved.
    reset = AttemptChanged(used_up, replace(used_up, launch_count=0))
    assert reconcile(used_up, NOW, SETTINGS, starts_blocked=True) == [reset]
    assert reconcile(replace(used_up, launch_count=0), NOW, SETTINGS, starts_blocked=True) == []
    assert reconcile(replace(used_up, launch_count=0), NOW, SETTINGS) == [act.Relaunch(1)]
    # A launch into an incomplete folder never counts as a failed launch.
    assert reconcile(replace(used_up, status=INCOMPLETE), NOW, SETTINGS) == [act.Relaunch(1)]
    failed = replace(late, launch_error="no such script")
    assert reconcile(failed, NOW, SETTINGS, starts_blocked=True) == [act.VoidClaim(1)]
    # All other actions are the same as without the problem.
    ended = replace(OPEN, status=status(claim="dead", result=RESULT))
    assert reconcile(ended, NOW, SETTINGS, starts_blocked=True) == reconcile(ended, NOW, SETTINGS)
    assert reconcile(replace(late, stop_request=CANCEL), NOW, SETTINGS, starts_blocked=True) == [
        act.VoidClaim(1)
    ]


def test_does_not_relaunch_an_attempt_whose_command_began() -> None:
    begun = replace(
        OPEN,
        state=AttemptState.STARTING,
        status=status(claim="none", command_began=True),
        launch_deadline_boot=0.0,
    )
    assert needs_process_scan(begun, NOW)
    assert reconcile(replace(begun, survivors=(77,)), NOW, SETTINGS) == []
    assert finished(replace(begun, survivors=())).outcome is Outcome.INTERRUPTED
    again = only_action(reconcile(replace(begun, status=status(claim="none"), survivors=()), NOW, SETTINGS))
    assert isinstance(again, act.Relaunch)


@pytest.mark.parametrize(
    ("result", "outcome", "text"),
    [
        (
            replace(RESULT, verdict="unfinished", left=("a", "b"), left_count=3),
            Outcome.FAILED,
            "its work was still running in the background; 3 processes were left and then ended: a; b; …",
        ),
        (
            replace(RESULT, left=("tensorboard",), left_count=1),
            Outcome.COMPLETED,
            "1 process was left and then ended: tensorboard",
        ),
        (
            replace(RESULT, exit_code=3, left=("a",), left_count=1),
            Outcome.FAILED,
            "exit code 3; 1 process was left and then ended: a",
        ),
        (
            replace(RESULT, exit_code=141, verdict="closed_pipe", left=("a",), left_count=1, message="note"),
            Outcome.COMPLETED,
            "exit code 141, because a program in its pipe wrote more than the next one read;"
            " 1 process was left and then ended: a; note",
        ),
        (
            replace(RESULT, exit_code=141),
            Outcome.FAILED,
            "exit code 141 (a program it ran was killed by SIGPIPE)",
        ),
        (replace(RESULT, cause="cancelled", verdict="unfinished"), Outcome.CANCELLED, ""),
        (replace(RESULT, verdict="of a later version"), Outcome.COMPLETED, ""),
    ],
)
def test_a_verdict_of_the_runner_comes_before_the_exit_code(
    result: AttemptResult, outcome: Outcome, text: str
) -> None:
    attempt = replace(OPEN, status=status(claim="dead", result=result), failure_context=FailureContext())
    end = finished(attempt, Settings(fail_retries=0, oom_retries=3))
    assert (end.outcome, end.job.state) == (outcome, JobState.FINISHED)
    assert words(end.reason) == text


def test_work_in_the_background_is_not_retried() -> None:
    result = replace(RESULT, verdict="unfinished", left=("a",), left_count=1)
    attempt = replace(OPEN, status=status(claim="dead", result=result), failure_context=FailureContext())
    end = finished(attempt, Settings(fail_retries=5, oom_retries=5))
    assert (end.job.state, end.job.outcome) == (JobState.FINISHED, Outcome.FAILED)
    failed = replace(attempt, status=status(claim="dead", result=replace(RESULT, exit_code=1)))
    assert finished(failed, Settings(fail_retries=5)).job.state is JobState.QUEUED
