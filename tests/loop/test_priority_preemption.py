"""Jobs that preempt others, with a real loop, store and runners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_scheduler.attempts.executors import LaunchError
from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.show.events import message_of
from gpu_scheduler.show.job_text import reason_text
from gpu_scheduler.show.job_views import context_of, job_view
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.wait_text import job_reason_text
from gpu_scheduler.show.why import diagnose
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import reserved_jobs
from gpu_scheduler.store.requests import add_request
from tests.loop.rig import PREEMPTING, Rig
from tests.waiting import wait_for

SLEEP = "exec sleep 60"
LOW, HIGH = 300, 100


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, gpus=2, settings=PREEMPTING)
    yield made
    made.end_processes()


def start_both(rig: Rig, command: str = SLEEP, **values: object) -> tuple[int, int]:
    """Starts a job of low priority on each of the two GPUs. The second one has lost less work."""
    first = rig.add_job(command, priority=LOW, **values)
    rig.runner_pid(first)
    second = rig.add_job(command, priority=LOW, **values)
    rig.runner_pid(second)
    return first, second


def tick_until_state(rig: Rig, job: int, state: JobState) -> None:
    """Runs rounds until the job is in this state."""
    rig.tick_until(lambda: rig.job(job).state is state, f"job {job} {state}")


def wait_reason(rig: Rig, job: int) -> str | None:
    """Returns why a job waits, as `status` shows it while a scheduler is running."""
    context = context_of(rig.store, [job], rig.store.active_attempts(), is_up=True)
    return job_reason_text(job_view(rig.job(job), None, context))


def test_a_job_takes_the_place_of_one_of_lower_priority_which_is_queued_again(rig: Rig) -> None:
    first, second = start_both(rig, fail_retries=1)
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, urgent, JobState.FINISHED)
    assert rig.job(urgent).outcome is Outcome.COMPLETED
    assert rig.job(first).state is JobState.RUNNING
    [victim, *_] = rig.store.attempts(second)
    assert (victim.outcome, victim.preempted_for) == (Outcome.PREEMPTED, urgent)
    assert victim.reason is not None
    assert reason_text(victim.reason).startswith(f"preempted for job {urgent}")
    assert victim.gpus == rig.store.attempts(urgent)[0].gpus
    tick_until_state(rig, second, JobState.RUNNING)
    assert rig.job(second).fail_retries_used == 0
    assert rig.store.attempts(second)[-1].follows_preemption


def test_a_victim_is_still_protected_after_a_launch_that_failed(rig: Rig) -> None:
    _, second = start_both(rig)
    launch = rig.launcher.launch

    def fail_once(attempt_id: int) -> None:
        if len(rig.store.attempts(second)) == 2 and rig.store.attempts(second)[-1].id == attempt_id:
            raise LaunchError("no more processes")
        launch(attempt_id)

    rig.loop._launch_attempt = fail_once
    tick_until_state(rig, rig.add_job("true", priority=HIGH, preempt=True), JobState.FINISHED)
    rig.tick_until(lambda: len(rig.store.attempts(second)) == 3, "the third attempt")
    _, failed, third = rig.store.attempts(second)
    assert failed.outcome is Outcome.NOT_STARTED
    assert third.follows_preemption


def test_a_job_that_has_just_saved_a_checkpoint_is_preempted_before_one_that_has_not(rig: Rig) -> None:
    first = rig.add_job("python3 -c 'import time; time.sleep(60)' --output_dir out", priority=LOW)
    rig.runner_pid(first)
    second = rig.add_job(SLEEP, priority=LOW)
    rig.runner_pid(second)
    saved = rig.folder / "out/checkpoint-5/trainer_state.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, urgent, JobState.FINISHED)
    assert [rig.store.attempts(job)[0].preempted_for for job in (first, second)] == [urgent, None]


def test_jobs_of_equal_priority_are_not_preempted(rig: Rig) -> None:
    start_both(rig)
    equal = rig.add_job("true", priority=LOW, preempt=True)
    assert {attempt.state for attempt in rig.tick().attempts} == {AttemptState.RUNNING}
    assert rig.job(equal).state is JobState.QUEUED
    assert not reserved_jobs(rig.store, rig.clock.now())


def test_a_job_preempts_by_its_priority_alone_if_the_scheduler_allows_it(rig: Rig) -> None:
    start_both(rig)
    urgent = rig.add_job("true", priority=HIGH)
    assert rig.tick().reserved_jobs == ()
    rig.loop.settings = replace(rig.loop.settings, preempt_at_priority=HIGH)
    tick_until_state(rig, urgent, JobState.FINISHED)


def test_a_victim_that_ignores_the_signal_is_killed_after_the_grace_period(rig: Rig) -> None:
    rig.loop.settings = replace(rig.loop.settings, preempt_grace_s=0.3)
    _, second = start_both(rig, "trap '' TERM; while :; do sleep 0.05; done")
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, urgent, JobState.FINISHED)
    [victim, *_] = rig.store.attempts(second)
    assert (victim.outcome, victim.signal) == (Outcome.PREEMPTED, 9)


def test_the_freed_gpu_is_kept_from_other_jobs_until_the_last_victim_has_left(rig: Rig) -> None:
    save = f"trap 'until [ -e {rig.folder}/go ]; do sleep 0.02; done; exit 0' TERM; sleep 60 & wait"
    slow = rig.add_job(save, priority=LOW)
    rig.runner_pid(slow)
    quick = rig.add_job(SLEEP, priority=LOW)
    rig.runner_pid(quick)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    backfill = rig.add_job("true", share=100)
    tick_until_state(rig, quick, JobState.QUEUED)
    rig.tick_until(lambda: len(rig.tick().attempts) == 1, "the GPU of the quick job is free")
    assert wait_reason(rig, urgent) == f"waiting for job {slow}, which is being preempted for it"
    assert [rig.job(job).state for job in (urgent, backfill, quick)] == [JobState.QUEUED] * 3
    explained = diagnose(Location(str(rig.folder / "state.json")), backfill).waiting
    assert explained is not None
    reserved = [[job for job, _ in gpu.reserved] for gpu in explained.placement.judged]
    assert reserved == [[urgent], [urgent]]
    (rig.folder / "go").touch()
    tick_until_state(rig, urgent, JobState.FINISHED)
    tick_until_state(rig, backfill, JobState.FINISHED)


@pytest.mark.parametrize("verb", ["cancel", "hold"])
def test_a_reservation_ends_with_its_job_and_the_victim_returns_to_the_queue(rig: Rig, verb: str) -> None:
    # The victim lasts until the reservation has been seen.
    save = f"trap 'until [ -e {rig.folder}/go ]; do sleep 0.02; done; exit 0' TERM"
    _, second = start_both(rig, f"{save}; touch {rig.folder}/up-$$; sleep 60 & wait")
    wait_for(lambda: len([*rig.folder.glob("up-*")]) == 2, "both jobs")
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    rig.tick_until(lambda: reserved_jobs(rig.store, rig.clock.now()), "the reservation")
    add_request(rig.store, verb, str(urgent))
    rig.tick_until(lambda: not reserved_jobs(rig.store, rig.clock.now()), "no reservation")
    (rig.folder / "go").touch()
    rig.tick_until(lambda: len(rig.store.attempts(second)) == 2, "the victim runs again")
    assert rig.store.attempts(second)[0].outcome is Outcome.PREEMPTED


def test_a_cancelled_victim_is_not_queued_again(rig: Rig) -> None:
    _, second = start_both(rig, "trap '' TERM; while :; do sleep 0.05; done")
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, second, JobState.STOPPING)
    add_request(rig.store, "cancel", str(second), grace_s=0.1)
    tick_until_state(rig, urgent, JobState.FINISHED)
    assert (rig.job(second).state, rig.job(second).outcome) == (JobState.FINISHED, Outcome.CANCELLED)


def test_a_job_that_has_just_returned_from_a_preemption_is_spared(rig: Rig) -> None:
    _, second = start_both(rig)
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, urgent, JobState.FINISHED)
    tick_until_state(rig, second, JobState.RUNNING)
    both = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    rig.tick()
    assert rig.job(both).state is JobState.QUEUED
    assert not reserved_jobs(rig.store, rig.clock.now())


def test_the_history_of_a_job_names_its_victims_and_their_gpus(rig: Rig) -> None:
    first, second = start_both(rig)
    urgent = rig.add_job("true", priority=HIGH, preempt=True, gpus=2)
    tick_until_state(rig, urgent, JobState.FINISHED)
    [event] = [one for one in events_of_job(rig.store, urgent) if one.kind == EventKind.GPUS_RESERVED]
    said = message_of(event).full_text
    assert said == f"job {urgent} preempts jobs {first}, {second}; GPUs 0, 1 are reserved for it"


def test_a_reservation_is_dropped_if_the_job_cannot_start_after_all(rig: Rig) -> None:
    _, second = start_both(rig, "trap 'sleep 0.3; exit 0' TERM; sleep 60 & wait")
    urgent = rig.add_job("true", priority=HIGH, preempt=True)
    tick_until_state(rig, second, JobState.STOPPING)
    rig.loop.settings = replace(rig.loop.settings, margin_mib=0)
    add_request(rig.store, "set", str(urgent), name="allowed", value=[7])
    rig.tick_until(lambda: len(rig.store.attempts(second)) == 2, "the victim runs again")
    kinds = [one.kind for one in events_of_job(rig.store, urgent)]
    assert EventKind.RESERVATION_DROPPED in kinds
