"""How the walk through the queue reserves GPUs for a job that has been overtaken too often."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, GpuProcess
from gpu_scheduler.core.model.job import AdoptedProcess, Job, StopRequest
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import ObstacleKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, ReservedJob
from gpu_scheduler.core.scheduling.forecast import judged_gpus, possible_preemption
from gpu_scheduler.core.scheduling.history import GpuTime, Overtakes
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import need_of
from gpu_scheduler.core.scheduling.plan import plan
from gpu_scheduler.core.scheduling.queue_placement import place_jobs, waiting_since
from gpu_scheduler.core.scheduling.settings import QueueOrder, Settings
from tests.attempts import replace
from tests.core.decisions import stops_in
from tests.core.gpu_world import NOW, gpu, round_of
from tests.core.queue_world import (
    HALF,
    HOUR,
    PAIR,
    WHOLE,
    GivenTimes,
    exactly,
    holder,
    jobs_of,
    overtaken,
    reservations,
    starts,
    stored,
    waiting,
)

TIMES = GivenTimes(
    {"hour": exactly(HOUR), "long": exactly(9 * HOUR), "short": exactly(60.0), "nearly": exactly(HOUR - 30.0)}
)
#: An attempt on GPU 0, which ends in an hour.
HOLDER = holder(1, runs="hour")
#: The expected start of a job that waits for it: an hour from now, rounded up to five minutes.
IN_AN_HOUR = math.ceil((NOW.wall + HOUR) / 300) * 300.0
#: The job that has waited longest, and for which GPUs are reserved here.
OLDEST = waiting(1)
NEW_S = 60.0


def queue(*groups: PendingGroup, gpus: int = 2, overtakes: int = 8, **values: object) -> Facts:
    """Returns a round with an attempt on GPU 0, in which the oldest jobs have been overtaken."""
    given = {"attempts": (HOLDER,), "overtakes": overtaken(overtakes), "run_times": TIMES, **values}
    return round_of(gpus, *groups, **given)


def new(job_id: int, runs: str = "unknown", priority: int = 200) -> PendingGroup:
    """Returns a job for one GPU that was submitted a minute ago."""
    return jobs_of(WHOLE, waiting(job_id, priority, ago_s=NEW_S, runs=runs))


def reserved_for(actions: list[act.Action]) -> int | None:
    """Returns the job that gets a new reservation."""
    return next((one.job_id for one in reservations(actions)), None)


def closed_by(actions: list[act.Action], resources: ResourceSpec) -> list[tuple[int, int | None]]:
    """Returns the GPUs that are kept from these jobs, each with the job for which it is reserved."""
    [wait] = [
        one for one in actions if isinstance(one, act.SetWaitReason) and one.spec_key == resources.key()
    ]
    return [(one.gpu, one.job_id) for one in wait.reason.obstacles if one.kind is ObstacleKind.RESERVED]


@pytest.mark.parametrize(("usable", "since"), [(2, 0.0), (1, math.inf), (0, math.inf)])
def test_a_job_for_two_gpus_is_not_overtaken_while_one_of_them_is_usable(usable: int, since: float) -> None:
    job, gpus = waiting(1), tuple(gpu(n, paused=n >= usable) for n in range(3))
    found = waiting_since(job, PAIR, Need(2, share=1000), replace(round_of(3), gpus=gpus))
    assert found == (job.waiting_since if since == 0.0 else since)


def test_gpus_are_reserved_for_a_job_that_has_been_overtaken_often_enough() -> None:
    actions = place_jobs(queue(jobs_of(PAIR, OLDEST), new(2)))
    assert reservations(actions) == [act.SetQueueReservation(1, ("U0", "U1"), IN_AN_HOUR, 8)]
    assert starts(actions) == {}
    assert closed_by(actions, WHOLE) == [(1, 1)]


@pytest.mark.parametrize(
    ("overtakes", "aging", "runs", "is_reserved"),
    [
        (7, 8, "hour", False),
        (8, 8, "hour", True),
        (0, 1, "hour", False),
        (1, 1, "hour", True),
        (0, 0, "hour", True),
        (7, 8, "unknown", False),
        (8, 8, "unknown", True),
    ],
)
def test_the_number_of_overtakes_decides_whatever_is_known_about_the_end_of_a_holder(
    overtakes: int, aging: int, runs: str, is_reserved: bool
) -> None:
    situation = queue(
        jobs_of(PAIR, OLDEST), new(2), overtakes=overtakes, attempts=(holder(1, runs=runs),),
        settings=Settings(aging=aging),
    )  # fmt: skip
    actions = place_jobs(situation)
    assert (reserved_for(actions) == 1) == is_reserved
    assert starts(actions) == ({} if is_reserved else {2: ("U1",)})


def test_a_holder_without_an_estimate_does_not_matter_on_a_gpu_that_is_not_reserved() -> None:
    attempts = HOLDER, holder(2, "U1", age_s=5 * HOUR)
    found = place_jobs(queue(jobs_of(PAIR, OLDEST), gpus=3, attempts=attempts))
    assert reservations(found) == [act.SetQueueReservation(1, ("U0", "U2"), IN_AN_HOUR, 8)]


@pytest.mark.parametrize(("ago_s", "overtakes"), [(2 * HOUR, 8), (2 * HOUR - 1.0, 0)])
def test_a_batch_is_packed_without_reservations(ago_s: float, overtakes: int) -> None:
    """The starting jobs were submitted an hour ago."""
    late = overtaken(8, ago_s=10.0, submitted_ago_s=HOUR)
    job = waiting(1, ago_s=ago_s)
    assert late.count(job.place, job.submitted_at, job.waiting_since) == overtakes
    actions = place_jobs(replace(queue(jobs_of(PAIR, job), new(2)), overtakes=late))
    assert (reserved_for(actions) == 1) == bool(overtakes)


@pytest.mark.parametrize(("since_s", "is_reserved"), [(HOUR, True), (HOUR - 1.0, False)])
def test_overtakes_count_only_since_the_job_was_queued_again(since_s: float, is_reserved: bool) -> None:
    """The starts took place an hour ago. Before, the job was held, or waited for another job."""
    actions = place_jobs(queue(jobs_of(PAIR, waiting(1, since_s=since_s)), new(2)))
    assert (reserved_for(actions) == 1) == is_reserved


@pytest.mark.parametrize(
    ("usable_ago_s", "gpus", "allowed", "is_reserved"),
    [
        ((HOUR - 1.0, 0.0), 2, None, False),
        ((HOUR, HOUR), 2, None, True),
        # A pause of one GPU does not change what happened before.
        ((HOUR, 0.0), 2, None, True),
        ((0.0, HOUR), 3, (0, 1), True),
        ((HOUR - 1.0, HOUR - 1.0), 3, None, True),
        ((HOUR - 1.0, HOUR - 1.0), 3, (0, 1), False),
    ],
)
def test_overtakes_count_since_one_of_the_gpus_was_usable(
    usable_ago_s: tuple[float, float], gpus: int, allowed: tuple[int, ...] | None, is_reserved: bool
) -> None:
    """The starts took place an hour ago. GPU 0 and GPU 1 were resumed at these times."""
    situation = queue(jobs_of(replace(PAIR, allowed=allowed), OLDEST), gpus=gpus)
    resumed = [replace(situation.gpus[n], usable_since=NOW.wall - ago) for n, ago in enumerate(usable_ago_s)]
    busy = tuple(holder(n, f"U{n}", runs="hour") for n in range(gpus))
    situation = replace(situation, gpus=(*resumed, *situation.gpus[2:]), attempts=busy)
    assert (reserved_for(place_jobs(situation)) == 1) == is_reserved


def closed(index: int, how: str) -> Gpu:
    """Returns a GPU that accepts no jobs."""
    base = gpu(index)
    assert base.sample is not None
    if how == "paused":
        return replace(base, paused=True)
    if how == "lost":
        return replace(base, sample=replace(base.sample, fault=LOST))
    return replace(base, claims=(GpuClaim(24_000, 8),))


@pytest.mark.parametrize("how", ["paused", "lost", "claimed"])
def test_nothing_is_reserved_for_a_job_that_will_never_fit(how: str) -> None:
    situation = queue(jobs_of(PAIR, OLDEST), new(2), gpus=3)
    situation = replace(situation, gpus=(situation.gpus[0], closed(1, how), closed(2, how)))
    held = replace(situation, queue_reservation=stored(OLDEST, PAIR, "U0", "U1"))
    assert reservations(place_jobs(situation)) == []
    assert reservations(place_jobs(held)) == [act.SetQueueReservation(None)]


def test_nothing_is_reserved_for_an_infeasible_job() -> None:
    many, large = ResourceSpec(share=1000, gpus=3), ResourceSpec(vram=90_000)
    for resources in (many, large, replace(PAIR, allowed=(0, 7))):
        assert reservations(place_jobs(queue(jobs_of(resources, OLDEST), new(2)))) == []


def test_the_first_aged_job_that_does_not_fit_gets_the_reservation() -> None:
    young, fits = waiting(1, ago_s=HOUR), waiting(4)
    groups = (
        jobs_of(PAIR, young, waiting(3), waiting(5)),
        jobs_of(ResourceSpec(share=1000, gpus=3), waiting(2)),
    )
    situation = queue(*groups, jobs_of(HALF, fits), gpus=3, attempts=(HOLDER, holder(2, "U1", runs="long")))
    # Job 4 starts in this round, and job 2 needs all GPUs.
    assert reserved_for(place_jobs(situation)) == 2
    paused = replace(situation, gpus=(*situation.gpus[:2], replace(situation.gpus[2], paused=True)))
    assert reserved_for(place_jobs(paused)) == 3


def test_jobs_before_the_job_ignore_its_reservation() -> None:
    important = jobs_of(WHOLE, waiting(2, 100, ago_s=NEW_S))
    situation = queue(jobs_of(PAIR, OLDEST), important)
    assert starts(place_jobs(situation)) == {2: ("U1",)}
    held = replace(situation, queue_reservation=stored(OLDEST, PAIR, "U0", "U1"))
    assert starts(place_jobs(held)) == {2: ("U1",)}


def test_a_round_ends_at_the_job_if_it_has_already_started_others() -> None:
    """The next round knows when the started jobs will end."""
    situation = queue(
        jobs_of(ResourceSpec(share=1000, gpus=3), OLDEST), jobs_of(WHOLE, waiting(2, 100), waiting(3)), gpus=3
    )
    held = stored(OLDEST, PAIR, "U0", "U1")
    for facts in (situation, replace(situation, queue_reservation=held)):
        actions = place_jobs(facts)
        assert starts(actions) == {2: ("U1",)}
        assert reservations(actions) == []


def test_a_job_that_ends_before_the_start_uses_a_reserved_gpu() -> None:
    situation = queue(jobs_of(PAIR, OLDEST), new(2, "hour"), new(3, "short"))
    assert starts(place_jobs(situation)) == {2: ("U1",)}
    older = replace(situation, attempts=(holder(1, runs="hour", age_s=1.0),))
    assert starts(place_jobs(older)) == {3: ("U1",)}


def test_the_upper_estimate_decides_whether_a_job_ends_before_the_start() -> None:
    spread = exactly(HOUR / 2)
    for ratios, started in (((0.5, 1.0, 1.0, 1.0, 2.0), {2: ("U1",)}), ((1.0, 1.0, 1.0, 1.0, 2.1), {})):
        times = GivenTimes({**TIMES.of, "spread": replace(spread, ratios=ratios)})
        situation = queue(jobs_of(PAIR, OLDEST), new(2, "spread"), run_times=times)
        assert starts(place_jobs(situation)) == started


def test_a_job_that_fits_beside_the_reserved_one_uses_a_reserved_gpu() -> None:
    both = ResourceSpec(share=700, gpus=2)
    small, large = (
        jobs_of(ResourceSpec(share=300), waiting(2, ago_s=NEW_S)),
        jobs_of(ResourceSpec(share=301), waiting(3, ago_s=NEW_S)),
    )
    attempt = holder(1, runs="hour", share=400)
    situation = queue(jobs_of(both, OLDEST), small, large, attempts=(attempt,))
    # Job 1 finds only GPU 1 free. On GPU 0, what job 2 gets now remains to it after the start.
    actions = place_jobs(situation)
    assert reserved_for(actions) == 1
    assert starts(actions) == {2: ("U0",)}


def test_two_jobs_fit_beside_the_reserved_one_only_together() -> None:
    both, small = ResourceSpec(share=700, gpus=2), ResourceSpec(share=200)
    attempt = holder(1, runs="hour", share=400)
    situation = queue(
        jobs_of(both, OLDEST),
        jobs_of(small, *(waiting(n, ago_s=NEW_S) for n in (2, 3, 4))),
        attempts=(attempt,),
    )
    assert starts(place_jobs(situation)) == {2: ("U0",), 3: ("U1",)}


def test_a_job_that_ends_before_the_start_takes_nothing_from_one_beside_the_reserved_job() -> None:
    both = ResourceSpec(share=700, gpus=2)
    short = jobs_of(ResourceSpec(share=400), waiting(2, ago_s=NEW_S, runs="short"))
    beside = jobs_of(ResourceSpec(share=300), waiting(3, ago_s=NEW_S), waiting(4, ago_s=NEW_S))
    situation = queue(jobs_of(both, OLDEST), short, beside)
    assert starts(place_jobs(situation)) == {2: ("U1",), 3: ("U1",)}


def test_memory_beside_the_reserved_job_counts_like_share() -> None:
    both = ResourceSpec(vram=16_000, gpus=2)
    attempt = holder(1, runs="hour", vram=12_000)
    for mib, started in ((8000, {2: ("U0",)}), (9000, {})):
        small = jobs_of(ResourceSpec(vram=mib), waiting(2, ago_s=NEW_S))
        assert starts(place_jobs(queue(jobs_of(both, OLDEST), small, attempts=(attempt,)))) == started


def test_no_job_fits_beside_one_that_wants_its_gpus_for_itself() -> None:
    small = jobs_of(ResourceSpec(share=100), waiting(2, ago_s=NEW_S))
    for alone in (replace(PAIR, exclusive=True), ResourceSpec(share=300, gpus=2, exclusive=True)):
        assert starts(place_jobs(queue(jobs_of(alone, OLDEST), small))) == {}
    everywhere = Settings(exclusive=True)
    half = ResourceSpec(share=500, gpus=2)
    assert starts(place_jobs(queue(jobs_of(half, OLDEST), small, settings=everywhere))) == {}


def test_only_the_allowed_gpus_of_the_job_are_reserved() -> None:
    attempts = HOLDER, holder(2, "U1", runs="hour")
    pinned = replace(PAIR, allowed=(0, 1))
    actions = place_jobs(queue(jobs_of(pinned, OLDEST), new(2), gpus=3, attempts=attempts))
    assert reserved_for(actions) == 1
    assert starts(actions) == {2: ("U2",)}


def test_jobs_behind_the_job_use_the_gpus_that_are_not_reserved() -> None:
    attempts = HOLDER, holder(2, "U1", runs="hour"), holder(3, "U3", runs="long")
    busy = queue(jobs_of(PAIR, OLDEST), new(2), gpus=4, attempts=attempts)
    actions = place_jobs(busy)
    [found] = reservations(actions)
    assert found.gpus == ("U0", "U2") or found.gpus == ("U1", "U2")
    ended = replace(busy, attempts=attempts[:2])
    assert starts(place_jobs(ended)) == {1: ("U2", "U3")}


@pytest.mark.parametrize(
    ("delivered_s", "idle_s", "waited_s", "is_reserved"),
    [
        # The free GPU will be idle for an hour: 3600 GPU-seconds. It fits into what is left of the budget.
        (100_000.0, 1400.0, 2 * HOUR, True),
        (100_000.0, 1401.0, 2 * HOUR, False),
        # It does not, but it is at most 5 % of the time for which the job has waited for two GPUs.
        (100_000.0, 1401.0, 10 * HOUR, True),
        (100_000.0, 1401.0, 10 * HOUR - 1.0, False),
        (100_000.0, 5000.0, 24 * HOUR, True),
        (100_000.0, 5001.0, 24 * HOUR, False),
        # In a new store, one GPU-hour counts as delivered.
        (0.0, 0.0, 10 * HOUR, True),
        (0.0, 180.0, 10 * HOUR, True),
        (0.0, 180.1, 24 * HOUR, False),
        (0.0, 0.0, 10 * HOUR - 1.0, False),
    ],
)
def test_a_reservation_begins_if_its_cost_fits_into_the_idle_budget_or_the_job_has_waited_long(
    delivered_s: float, idle_s: float, waited_s: float, is_reserved: bool
) -> None:
    job = waiting(1, since_s=waited_s)
    situation = queue(jobs_of(PAIR, job), new(2), gpu_time=GpuTime(delivered_s, idle_s, NOW.wall))
    actions = place_jobs(situation)
    assert (reserved_for(actions) == 1) == is_reserved
    assert starts(actions) == ({} if is_reserved else {2: ("U1",)})
    assert closed_by(actions, PAIR) == []


def test_a_reservation_stays_although_the_idle_budget_is_exceeded() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1", in_s=IN_AN_HOUR - NOW.wall)
    situation = queue(
        jobs_of(PAIR, OLDEST), new(2), gpu_time=GpuTime(0.0, 9000.0, NOW.wall), queue_reservation=held
    )
    actions = place_jobs(situation)
    assert reservations(actions) == []
    assert starts(actions) == {}


def test_a_reservation_stays_although_its_overtakes_are_forgotten() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1", in_s=IN_AN_HOUR - NOW.wall)
    actions = place_jobs(queue(jobs_of(PAIR, OLDEST), new(2), overtakes=0, queue_reservation=held))
    assert reservations(actions) == []
    assert closed_by(actions, WHOLE) == [(1, 1)]


def test_a_reservation_stays_although_a_holder_has_no_estimate_any_more() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    unknown = queue(jobs_of(PAIR, OLDEST), new(2), queue_reservation=held, attempts=(holder(1),))
    [found] = reservations(place_jobs(unknown))
    assert (found.job_id, found.gpus, found.overtakes) == (1, ("U0", "U1"), 9)
    assert starts(place_jobs(unknown)) == {}


def test_the_expected_start_changes_in_steps_of_five_minutes() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1", in_s=IN_AN_HOUR - NOW.wall)
    situation = queue(jobs_of(PAIR, OLDEST), queue_reservation=held)
    assert reservations(place_jobs(situation)) == []
    later = replace(situation, attempts=(replace(HOLDER, remaining_s=IN_AN_HOUR - NOW.wall + 1.0),))
    assert reservations(place_jobs(later)) == [
        act.SetQueueReservation(1, ("U0", "U1"), IN_AN_HOUR + 300.0, 9)
    ]


def test_an_earlier_aged_job_takes_over_the_reservation() -> None:
    held = stored(waiting(3), PAIR, "U0", "U1")
    both = jobs_of(PAIR, OLDEST, waiting(3))
    for told in (None, GpuTime(0.0, 9000.0, NOW.wall)):
        situation = queue(both, queue_reservation=held, gpu_time=told)
        assert reservations(place_jobs(situation)) == [
            act.SetQueueReservation(1, ("U0", "U1"), IN_AN_HOUR, 8)
        ]


def test_a_later_aged_job_does_not_take_over_the_reservation() -> None:
    held = stored(waiting(3), PAIR, "U0", "U1", in_s=IN_AN_HOUR - NOW.wall)
    groups = jobs_of(PAIR, waiting(3), waiting(4))
    assert reservations(place_jobs(queue(groups, queue_reservation=held))) == []


def test_the_reservation_ends_when_its_job_starts() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    actions = place_jobs(queue(jobs_of(PAIR, OLDEST), new(2), attempts=(), queue_reservation=held))
    assert starts(actions) == {1: ("U0", "U1")}
    assert reservations(actions) == [act.SetQueueReservation(None)]


@pytest.mark.parametrize("gone", [(), (jobs_of(WHOLE, waiting(2, ago_s=NEW_S)),)])
def test_the_reservation_of_a_job_that_may_not_start_now_ends(gone: tuple[PendingGroup, ...]) -> None:
    """Its line is malformed, or it waits for other jobs."""
    held = stored(OLDEST, PAIR, "U0", "U1")
    actions = place_jobs(queue(*gone, queue_reservation=held))
    assert reservations(actions) == [act.SetQueueReservation(None)]


def test_backfill_drops_the_reservation() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    backfill = Settings(queue_order=QueueOrder.BACKFILL)
    situation = queue(jobs_of(PAIR, OLDEST), new(2), settings=backfill)
    assert reservations(place_jobs(situation)) == []
    assert starts(place_jobs(situation)) == {2: ("U1",)}
    actions = place_jobs(replace(situation, queue_reservation=held))
    assert reservations(actions) == [act.SetQueueReservation(None)]
    assert starts(actions) == {2: ("U1",)}


@pytest.mark.parametrize(
    "blind", [{"probe_error": "gone"}, {"storage_issue": "full"}, {"all_sampled": False}]
)
def test_the_reservation_stays_while_no_job_can_start(blind: dict[str, Any]) -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    assert reservations(place_jobs(queue(jobs_of(PAIR, OLDEST), queue_reservation=held, **blind))) == []


def test_the_reservation_moves_to_other_gpus_if_one_is_lost() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    situation = queue(
        jobs_of(PAIR, OLDEST), gpus=3, attempts=(HOLDER, holder(2, "U2", runs="long")), queue_reservation=held
    )
    lost = replace(situation, gpus=(situation.gpus[0], closed(1, "lost"), situation.gpus[2]))
    [found] = reservations(place_jobs(lost))
    assert (found.job_id, found.gpus) == (1, ("U0", "U2"))
    claimed = replace(situation, gpus=(situation.gpus[0], closed(1, "claimed"), situation.gpus[2]))
    [found] = reservations(place_jobs(claimed))
    assert (found.job_id, found.gpus) == (1, ("U0", "U2"))


def test_foreign_memory_on_a_reserved_gpu_moves_the_reservation() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    situation = queue(
        jobs_of(PAIR, OLDEST), gpus=3, attempts=(HOLDER, holder(2, "U2", runs="long")), queue_reservation=held
    )
    foreign = gpu(1, processes=(GpuProcess(77, 22_000),), owners={77: None})
    [found] = reservations(
        place_jobs(replace(situation, gpus=(situation.gpus[0], foreign, situation.gpus[2])))
    )
    assert found.gpus == ("U0", "U2")


def test_gpus_that_a_preemption_reserves_are_not_reserved_again() -> None:
    urgent = ReservedJob(waiting(9, 100), replace(WHOLE, preempt=True), ("U1",))
    stop = StopRequest("preempted", 60.0, stop_id="for job 9", preemptor=9)
    leaving = holder(2, "U1", runs="hour", preempted_for=9, state=AttemptState.STOPPING, stop_request=stop)
    situation = queue(jobs_of(PAIR, OLDEST), gpus=3, attempts=(HOLDER, leaving), reserved_jobs=(urgent,))
    [found] = reservations(place_jobs(situation))
    assert found.gpus == ("U0", "U2")


def test_the_job_preempts_others_if_it_may_instead_of_waiting_for_its_reservation() -> None:
    urgent = replace(PAIR, preempt=True)
    held = stored(OLDEST, urgent, "U0", "U1")
    low = replace(HOLDER, priority=300)
    situation = queue(jobs_of(urgent, OLDEST), attempts=(low,), queue_reservation=held)
    actions = place_jobs(situation)
    assert [type(one) for one in actions if not isinstance(one, act.SetWaitReason)] == [
        act.Reserve,
        act.JobChanged,
        act.SetQueueReservation,
    ]
    assert [job_id for job_id, _ in stops_in(actions)] == [low.job_id]
    assert reservations(actions) == [act.SetQueueReservation(None)]


def test_a_job_that_preempts_others_keeps_no_reservation_on_other_gpus() -> None:
    urgent = replace(WHOLE, preempt=True)
    held = stored(OLDEST, urgent, "U1")
    attempts = replace(HOLDER, priority=300), holder(2, "U1", runs="hour")
    actions = place_jobs(queue(jobs_of(urgent, OLDEST), attempts=attempts, queue_reservation=held))
    assert [one for one in actions if isinstance(one, act.Reserve)] == [act.Reserve(1, ("U0",), (1,))]
    assert reservations(actions) == [act.SetQueueReservation(None)]


def preempting(job_id: int, runs: str = "unknown", resources: ResourceSpec = WHOLE) -> PendingGroup:
    """Returns a new job for one GPU that may preempt others."""
    return jobs_of(replace(resources, preempt=True), waiting(job_id, ago_s=NEW_S, runs=runs))


@pytest.mark.parametrize(
    ("runs", "preempts"), [("unknown", False), ("long", False), ("nearly", False), ("short", True)]
)
def test_a_job_behind_preempts_none_on_the_reserved_gpus_unless_it_ends_before_the_start(
    runs: str, preempts: bool
) -> None:
    low = holder(1, runs="hour", priority=300), holder(2, "U1", runs="hour", priority=300)
    situation = queue(jobs_of(PAIR, OLDEST), preempting(2, runs), attempts=low)
    actions = place_jobs(situation)
    assert reserved_for(actions) == 1
    assert any(isinstance(one, act.Reserve) for one in actions) == preempts
    held = replace(situation, queue_reservation=stored(OLDEST, PAIR, "U0", "U1"))
    job, need = situation.pending_groups[1].jobs[0], need_of(WHOLE, situation)
    found = possible_preemption(held, need, job, replace(WHOLE, preempt=True))
    assert hasattr(found, "victims") == preempts


def test_a_job_behind_preempts_others_on_gpus_that_are_not_reserved() -> None:
    pinned = replace(PAIR, allowed=(0, 1))
    low = tuple(holder(n + 1, f"U{n}", runs="hour", priority=300) for n in range(3))
    actions = place_jobs(queue(jobs_of(pinned, OLDEST), preempting(2), gpus=3, attempts=low))
    assert reserved_for(actions) == 1
    assert [one for one in actions if isinstance(one, act.Reserve)] == [act.Reserve(2, ("U2",), (3,))]


def test_a_job_before_the_job_preempts_others_on_reserved_gpus() -> None:
    important = jobs_of(replace(WHOLE, preempt=True), waiting(2, 100, ago_s=NEW_S))
    low = holder(1, runs="hour", priority=300), holder(2, "U1", runs="hour", priority=300)
    held = stored(OLDEST, PAIR, "U0", "U1")
    actions = place_jobs(queue(important, jobs_of(PAIR, OLDEST), attempts=low, queue_reservation=held))
    assert any(isinstance(one, act.Reserve) for one in actions)


def test_the_reservation_stays_behind_many_aged_jobs_whose_reservations_would_cost_too_much() -> None:
    """So many that the round would plan no other reservation."""
    others = [jobs_of(ResourceSpec(share=501 + n, gpus=2, allowed=(0, 1)), waiting(n)) for n in range(1, 25)]
    last = waiting(50)
    held = stored(last, replace(PAIR, allowed=(1, 2)), "U1", "U2")
    attempts = (
        holder(1, age_s=999 * HOUR),
        holder(2, "U1", runs="hour", share=400),
        holder(3, "U2", runs="hour"),
    )
    situation = queue(
        *others, jobs_of(replace(PAIR, allowed=(1, 2)), last), gpus=3, attempts=attempts,
        queue_reservation=held, gpu_time=GpuTime(counted_until=NOW.wall),
    )  # fmt: skip
    assert [one.job_id for one in reservations(place_jobs(situation))] == [50]


def test_the_gpus_are_judged_for_a_job_as_the_next_round_judges_them() -> None:
    held = stored(OLDEST, PAIR, "U0", "U1")
    situation = queue(jobs_of(PAIR, OLDEST), new(2), queue_reservation=held)
    need = need_of(WHOLE, situation)
    behind = judged_gpus(situation, need, waiting(2, ago_s=NEW_S))
    assert behind[1].closed is not None
    assert (behind[1].closed.job_id, behind[1].closed.overtakes) == (1, 9)
    assert judged_gpus(situation, need, waiting(2, ago_s=NEW_S, runs="short"))[1].closed is None
    assert judged_gpus(situation, need, waiting(2, 100))[1].closed is None
    assert judged_gpus(situation, need_of(PAIR, situation), OLDEST)[1].closed is None


def test_the_gpus_are_judged_beside_a_process_that_no_runner_watches() -> None:
    adopted = Job(7, spec_key=HALF.key(), adopted=AdoptedProcess(5, 1, "boot", 0.0, ("U1",)))
    held = stored(OLDEST, PAIR, "U0", "U1")
    situation = queue(jobs_of(PAIR, OLDEST), queue_reservation=held, adopted_jobs=(adopted,))
    judged = judged_gpus(situation, need_of(WHOLE, situation), waiting(2, ago_s=NEW_S))
    assert all(one.allocated_share for one in judged)


def test_nothing_is_reserved_in_a_round_without_overtakes() -> None:
    situation = replace(queue(jobs_of(PAIR, OLDEST), new(2)), overtakes=Overtakes())
    assert starts(plan(situation)) == {2: ("U1",)}


def test_the_gpus_are_in_the_order_of_the_store_whatever_their_indices() -> None:
    waits = queue(jobs_of(PAIR, OLDEST))
    swapped = tuple(replace(one, index=1 - one.index) for one in waits.gpus)
    [made] = reservations(plan(replace(waits, gpus=swapped)))
    assert made.gpus == ("U0", "U1")


def test_jobs_that_can_never_fit_do_not_keep_the_reservation_from_a_job_behind_them() -> None:
    never = tuple(jobs_of(ResourceSpec(vram=900_000 + n), waiting(10 + n)) for n in range(600))
    last = jobs_of(PAIR, waiting(900))
    assert reserved_for(place_jobs(queue(*never, last))) == 900


def test_jobs_whose_reservation_costs_too_much_do_not_keep_it_from_a_job_behind_them() -> None:
    costly = tuple(
        jobs_of(ResourceSpec(share=1000 - n, gpus=2), waiting(10 + n, ago_s=3.5 * HOUR)) for n in range(100)
    )
    last = jobs_of(WHOLE, waiting(900))
    situation = queue(
        *costly, last, attempts=(holder(1, "U0", runs="hour"), holder(2, "U1", runs="short")),
        overtakes=50, gpu_time=GpuTime(0.0, 0.0, NOW.wall),
    )  # fmt: skip
    assert reserved_for(place_jobs(situation)) == 900


def test_a_job_that_can_never_fit_does_not_end_a_round_that_starts_jobs() -> None:
    aged = jobs_of(ResourceSpec(vram=900_000), waiting(1))
    situation = queue(new(2, priority=100), aged, new(3), gpus=3, overtakes=50)
    assert sorted(starts(place_jobs(situation))) == [2, 3]


def test_many_jobs_of_a_group_that_preempting_does_not_help_leave_it_to_a_job_behind_them() -> None:
    groups = [
        PendingGroup(
            ResourceSpec(share=1000 - n, gpus=2), tuple(waiting(10 + 64 * n + m, 100) for m in range(64))
        )
        for n in range(2)
    ]
    situation = queue(
        *groups, jobs_of(WHOLE, waiting(500, 100)), settings=Settings(preempt_at_priority=100),
        attempts=(holder(1, "U0", runs="long", priority=50), holder(2, "U1", runs="long", priority=300)),
        overtakes=0,
    )  # fmt: skip
    assert [one.job_id for one in place_jobs(situation) if isinstance(one, act.Reserve)] == [500]


def test_no_gpus_are_reserved_for_a_retried_job_where_it_has_failed() -> None:
    failed = replace(waiting(1), failed_on=("U1",), fail_retries_used=1, waiting_since=NOW.wall - 20.0)
    situation = replace(queue(jobs_of(WHOLE, failed), new(2)), overtakes=overtaken(50, ago_s=10.0))
    actions = place_jobs(situation)
    assert (reserved_for(actions), sorted(starts(actions))) == (None, [2])


def test_a_job_that_can_never_fit_is_reported_wherever_it_is_in_the_queue() -> None:
    explained = tuple(jobs_of(ResourceSpec(vram=20_000 + n), waiting(10 + n)) for n in range(130))
    never = jobs_of(ResourceSpec(vram=900_000), waiting(900))
    found = {
        one.spec_key: one.reason
        for one in place_jobs(queue(*explained, never, gpus=1))
        if isinstance(one, act.SetWaitReason)
    }
    assert found[never.resources.key()].is_infeasible
    known = replace(never, reason=found[never.resources.key()])
    again = place_jobs(queue(*explained, known, gpus=1))
    assert never.resources.key() not in {one.spec_key for one in again if isinstance(one, act.SetWaitReason)}
