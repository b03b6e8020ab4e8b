"""How a round places jobs while GPUs are reserved."""

from __future__ import annotations

from gpu_scheduler.core.model.job import ActiveAttempt, StopRequest
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob, ReservedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.show.wait_text import wait_text
from tests.attempts import replace
from tests.core.decisions import stops_in
from tests.core.gpu_world import NOW, group, round_of, running

HALF, WHOLE = ResourceSpec(share=500), ResourceSpec(share=1000)
URGENT = replace(WHOLE, preempt=True)
RESERVED = ReservedJob(QueuedJob(9, 100, 1), URGENT, ("U0",))
STOP = StopRequest("preempted", 60.0, stop_id="for job 9", preemptor=9)
LEAVING = running(1, "U0", share=1000, state=AttemptState.STOPPING, preempted_for=9, stop_request=STOP)


def starts(actions: list[act.Action]) -> dict[int, tuple[str, ...]]:
    return {one.job_id: one.gpus for one in actions if isinstance(one, act.Start)}


def low(attempt_id: int, *uuids: str, **values: object) -> ActiveAttempt:
    return running(attempt_id, *uuids, **{"share": 1000, "priority": 300, "started_at": 0.0, **values})


def test_a_reserved_gpu_is_kept_until_the_job_fits_on_it() -> None:
    waiting = round_of(2, group(HALF, (2, 50)), reserved_jobs=(RESERVED,), attempts=(LEAVING,))
    assert starts(place_jobs(waiting)) == {2: ("U1",)}
    free = replace(waiting, attempts=())
    assert starts(place_jobs(free)) == {9: ("U0",), 2: ("U1",)}


def test_a_job_waits_for_its_reserved_gpu_even_if_another_one_is_free() -> None:
    assert starts(place_jobs(round_of(2, reserved_jobs=(RESERVED,), attempts=(LEAVING,)))) == {}


def test_a_wait_reason_names_the_job_for_which_a_gpu_is_reserved() -> None:
    [wait] = place_jobs(round_of(1, group(HALF, 2), reserved_jobs=(RESERVED,), attempts=(LEAVING,)))
    assert isinstance(wait, act.SetWaitReason)
    assert wait_text(wait.reason) == "needs 0.5 of a GPU, 0 free (GPU 0: reserved for job 9)"


def test_a_reservation_without_victims_is_dropped_if_its_job_cannot_start() -> None:
    busy = running(2, "U0", share=1000)
    for blocked in (
        round_of(1, reserved_jobs=(RESERVED,), attempts=(busy,)),
        round_of(1, reserved_jobs=(replace(RESERVED, may_start=False),)),
        round_of(1, reserved_jobs=(replace(RESERVED, gpus=("gone",)),)),
    ):
        assert place_jobs(blocked) == [act.DropReservation(9)]


def test_only_one_job_of_a_round_preempts_others() -> None:
    queue = group(URGENT, (5, 100)), group(replace(URGENT, exclusive=True), (6, 100))
    actions = place_jobs(round_of(2, *queue, attempts=(low(1), low(2, "U1"))))
    assert [one for one in actions if isinstance(one, act.Reserve)] == [act.Reserve(5, ("U1",), (2,))]


def test_the_gpus_of_a_preemption_are_kept_from_the_jobs_behind_in_the_same_round() -> None:
    pair = ResourceSpec(share=1000, gpus=2, preempt=True)
    actions = place_jobs(round_of(2, group(pair, (5, 100)), group(HALF, (6, 200)), attempts=(low(1),)))
    assert act.Reserve(5, ("U0", "U1"), (1,)) in actions
    assert starts(actions) == {}


def test_a_second_preemptor_takes_other_gpus_than_those_reserved() -> None:
    situation = round_of(
        2, group(URGENT, (5, 50)), reserved_jobs=(RESERVED,), attempts=(LEAVING, low(2, "U1"))
    )
    assert act.Reserve(5, ("U1",), (2,)) in place_jobs(situation)


def test_a_priority_preempts_only_at_the_limit_of_the_scheduler() -> None:
    def preempts(settings: Settings) -> bool:
        situation: Facts = round_of(1, group(WHOLE, (5, 100)), attempts=(low(1),), settings=settings)
        return any(isinstance(one, act.Reserve) for one in place_jobs(situation))

    assert not preempts(Settings())
    assert not preempts(Settings(preempt_at_priority=99))
    assert preempts(Settings(preempt_at_priority=100))


def test_a_victim_gets_its_own_signal_and_the_grace_period_of_the_scheduler() -> None:
    situation = round_of(
        1, group(URGENT, (5, 100)), attempts=(low(1, preempt_signal="USR1"),),
        settings=Settings(preempt_grace_s=7.0),
    )  # fmt: skip
    [(_, stop)] = stops_in(place_jobs(situation))
    assert stop is not None
    assert (stop.cause, stop.grace_s, stop.on_timeout, stop.signal) == ("preempted", 7.0, "kill", "USR1")
    assert (stop.next_state, stop.preemptor) == ("queued", 5)


def test_a_job_does_not_take_what_is_reserved_for_another_job_with_a_reservation() -> None:
    """Job 9 counts on the free half of GPU 0, and job 5, which comes first, on the other half."""
    half = replace(HALF, preempt=True)
    reserved = (
        ReservedJob(QueuedJob(9, 100, 1), replace(half, gpus=2), ("U0", "U1")),
        ReservedJob(QueuedJob(5, 50, 2), WHOLE, ("U2",)),
    )
    of_5 = replace(LEAVING, id=2, gpus=("U2",), preempted_for=5)
    attempts = (replace(LEAVING, gpus=("U1",)), running(3, "U0", share=500))
    situation = round_of(3, group(HALF, 7), reserved_jobs=reserved, attempts=(*attempts, of_5))
    assert starts(place_jobs(situation)) == {}
    both = (reserved[0], replace(reserved[1], resources=half, gpus=("U0",)))
    # Job 5 would fit on GPU 0 now, but then job 9 would find no place there.
    later = replace(situation, pending_groups=(), reserved_jobs=both, attempts=(*attempts, of_5))
    assert starts(place_jobs(later)) == {}


def test_a_reservation_waits_for_a_cancelled_attempt_on_which_it_counts() -> None:
    pair = ReservedJob(QueuedJob(9, 100, 1), replace(URGENT, gpus=2), ("U0", "U1"))
    cancelled = replace(LEAVING, preempted_for=None, stop_request=StopRequest("cancelled", 10.0))
    assert place_jobs(round_of(2, reserved_jobs=(pair,), attempts=(cancelled,))) == []


def test_a_small_job_starts_beside_a_leaving_attempt_if_it_also_fits_beside_the_reservation() -> None:
    half = replace(HALF, preempt=True)
    attempts = replace(LEAVING, share=500), running(2, "U0", share=250)
    reserved = ReservedJob(QueuedJob(9, 100, 1), half, ("U0",))
    small = group(ResourceSpec(share=250), 2, 3)
    situation = round_of(1, small, reserved_jobs=(reserved,), attempts=attempts)
    assert starts(place_jobs(situation)) == {2: ("U0",)}


def killed(signalled_s_ago: float, **values: object) -> ActiveAttempt:
    """Returns an attempt on GPU 0 whose process outlives SIGKILL, which it has got for minutes."""
    values |= {"survivors": (77,), "swept_boot": 100.0, "signalled_boot": NOW.boot - signalled_s_ago}
    return low(1, "U0", state=AttemptState.ENDED, **values)


def test_a_job_preempts_another_one_if_the_processes_on_a_gpu_cannot_be_killed() -> None:
    situation = round_of(2, group(URGENT, (5, 100)), attempts=(killed(0.5), low(2, "U1")))
    assert act.Reserve(5, ("U1",), (2,)) in plan(situation)


def test_a_reservation_ends_if_the_processes_of_a_victim_cannot_be_killed() -> None:
    pair = ReservedJob(QueuedJob(9, 100, 1), replace(URGENT, gpus=2), ("U0", "U1"))
    situation = round_of(
        2, group(HALF, (2, 300)), reserved_jobs=(pair,), attempts=(killed(0.5, preempted_for=9),)
    )
    actions = plan(situation)
    assert act.DropReservation(9) in actions
    assert starts(actions) == {2: ("U1",)}


def test_a_reservation_waits_for_processes_that_have_just_got_sigkill() -> None:
    dying = replace(killed(0.5, preempted_for=9), swept_boot=NOW.boot - Settings().grace_s - 1.0)
    assert plan(round_of(1, reserved_jobs=(RESERVED,), attempts=(dying,))) == []


#: Accepts a job that declares no memory beside it, but is not accepted beside one of more than 3/20 of a GPU.
LARGE = ReservedJob(QueuedJob(9, 100, 1), ResourceSpec(share=100, vram=20_000, preempt=True), ("U0",))


def test_a_job_does_not_take_the_memory_that_a_job_with_a_reservation_declares() -> None:
    situation = round_of(
        1, group(ResourceSpec(share=250), 2), reserved_jobs=(LARGE,), attempts=(replace(LEAVING, share=500),)
    )
    [wait] = place_jobs(situation)
    assert isinstance(wait, act.SetWaitReason)
    assert "GPU 0: reserved for job 9" in wait_text(wait.reason)


def test_a_preemption_does_not_take_the_memory_that_a_job_with_a_reservation_declares() -> None:
    attempts = replace(LEAVING, share=500), low(2, share=500), low(3, "U1")
    urgent = group(ResourceSpec(share=250, preempt=True), (5, 200))
    situation = round_of(2, urgent, reserved_jobs=(LARGE,), attempts=attempts)
    assert act.Reserve(5, ("U1",), (3,)) in place_jobs(situation)
