"""Which GPUs are reserved for a waiting job, and when they are expected to be free for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, GpuProcess
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus, StopRequest
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.history import Estimate, GpuTime
from gpu_scheduler.core.scheduling.round_allocations import (
    ExpectedEnd,
    PlannedReservation,
    expected_ends,
    may_begin,
    plan_reservation,
)
from tests.attempts import replace
from tests.core.gpu_world import NOW, facts, gpu, ledgers
from tests.core.preemption_world import needs, situations, without_attempts
from tests.core.queue_world import GivenTimes, exactly, holder

WHOLE, PAIR, HALF = Need(1, 1000), Need(2, 1000), Need(1, 500)
TIMES = GivenTimes({"hour": exactly(3600.0), "two": exactly(7200.0), "limited": Estimate(timeout_s=900.0)})


def planned(
    need: Need, situation: Facts, allowed: tuple[int, ...] | None = None
) -> PlannedReservation | None:
    """Returns the reservation for a job with this need."""
    gpus = ledgers(situation)
    return plan_reservation(need, allowed, gpus, expected_ends(situation))


def box(count: int, *attempts: ActiveAttempt, **values: object) -> Facts:
    """Returns the facts about `count` GPUs with these attempts."""
    return facts(*map(gpu, range(count)), attempts=attempts, **{"run_times": TIMES, **values})


def of_gpus(*gpus: Gpu, attempts: tuple[ActiveAttempt, ...] = ()) -> Facts:
    """Returns the facts about these GPUs and attempts."""
    return facts(*gpus, attempts=attempts, run_times=TIMES)


@pytest.mark.parametrize(
    ("attempt", "in_s", "is_known"),
    [
        (holder(1, runs="hour", age_s=600.0), 3000.0, True),
        (holder(1, runs="hour", age_s=4000.0), 2000.0, True),  # exceeded: half of its age again
        (holder(1, runs="hour", age_s=4000.0, remaining_s=5.0), 5.0, True),
        (holder(1, age_s=100.0), 600.0, False),
        (holder(1, age_s=5000.0), 5000.0, False),
        (holder(1, age_s=-50.0), 600.0, False),  # the clock was set back
        (holder(1, runs="hour", started_at=None), 3600.0, True),
        (holder(1, runs="limited", age_s=500.0), 400.0, False),
        (holder(1, runs="limited", age_s=500.0, remaining_s=9000.0), 400.0, True),
        (holder(1, runs="limited", age_s=2000.0, remaining_s=9000.0), 0.0, True),
        (holder(1, runs="hour", state=AttemptState.RELEASED, released_boot=NOW.boot - 20.0), 40.0, True),
        (holder(1, runs="hour", state=AttemptState.ENDED, swept_boot=NOW.boot - 4.0), 6.0, True),
        (holder(1, runs="hour", state=AttemptState.ENDED, swept_boot=NOW.boot - 900.0), math.inf, True),
        (
            holder(
                1, runs="hour", stop_request=StopRequest("cancelled", 30.0), stopping_boot=NOW.boot - 10.0
            ),
            20.0,
            True,
        ),
        (holder(1, runs="hour", status=AttemptStatus(claim="unlocked")), 3600.0, True),
    ],
)
def test_the_expected_end_of_an_attempt(attempt: ActiveAttempt, in_s: float, is_known: bool) -> None:
    assert expected_ends(box(1, attempt)) == {1: ExpectedEnd(in_s, is_known)}


def test_a_job_waits_for_the_end_of_the_job_on_its_gpu() -> None:
    found = planned(WHOLE, box(1, holder(1, runs="hour")))
    assert found == PlannedReservation(("U0",), 3600.0, frozenset({1}), 0.0)


def test_the_gpus_that_are_free_first_are_reserved_and_listed_by_index() -> None:
    situation = box(
        3,
        holder(1, runs="two"),
        holder(2, "U1", runs="two", age_s=600.0),
        holder(3, "U2", runs="hour"),
    )
    assert planned(PAIR, situation) == PlannedReservation(("U1", "U2"), 6600.0, frozenset({2, 3}), 3000.0)
    assert planned(WHOLE, situation) == PlannedReservation(("U2",), 3600.0, frozenset({3}), 0.0)


def test_a_gpu_that_is_free_now_is_reserved_at_once() -> None:
    found = planned(PAIR, box(2, holder(1, "U1", runs="hour")))
    assert found == PlannedReservation(("U0", "U1"), 3600.0, frozenset({1}), 3600.0)


def test_of_gpus_that_are_free_at_the_same_time_the_emptiest_then_the_first_is_reserved() -> None:
    attempts = holder(1, share=600, runs="hour"), holder(2, "U1", runs="hour", share=500)
    both = holder(3, "U2", "U3", share=500, runs="hour")
    situation = box(4, *attempts, both)
    found = planned(Need(1, 800), situation)
    assert found is not None
    assert found.gpus == ("U1",)
    pair = planned(Need(2, 800), situation)
    assert pair is not None
    assert pair.gpus == ("U1", "U2")


def test_attempts_leave_a_gpu_in_the_order_of_their_ends_until_the_job_fits() -> None:
    here = [holder(n, share=250, runs="hour", age_s=age) for n, age in ((1, 0.0), (2, 900.0), (3, 1800.0))]
    situation = box(1, *here, holder(4, share=250, runs="two"))
    found = planned(HALF, situation)
    assert found == PlannedReservation(("U0",), 2700.0, frozenset({2, 3}), 225.0)
    assert planned(WHOLE, situation) == PlannedReservation(("U0",), 7200.0, frozenset({1, 2, 3, 4}), 3375.0)


def test_both_the_share_and_the_memory_must_suffice() -> None:
    situation = box(
        1, holder(1, share=100, vram=16_000, runs="two"), holder(2, share=800, vram=2000, runs="hour")
    )
    by_share = planned(Need(1, 500, vram=3000), situation)
    by_memory = planned(Need(1, 100, vram=10_000), situation)
    assert (by_share and by_share.start_in_s, by_memory and by_memory.start_in_s) == (3600.0, 7200.0)


def test_a_job_that_wants_a_gpu_for_itself_waits_for_all_attempts_on_it() -> None:
    situation = box(1, holder(1, share=100, runs="two"), holder(2, share=100, runs="hour"))
    for need in (Need(1, 500, exclusive=True), Need(1, 1000, alone=True)):
        found = planned(need, situation)
        assert found is not None
        assert (found.start_in_s, set(found.leaving)) == (7200.0, {1, 2})


def test_foreign_memory_stays() -> None:
    foreign = gpu(0, processes=(GpuProcess(77, 20_000),), owners={77: None})
    situation = of_gpus(foreign, attempts=(holder(1, share=0, vram=1000, runs="hour"),))
    assert planned(Need(1, 100, vram=6000), situation) is None
    assert planned(Need(1, 100, alone=True), situation) is None


def test_claims_of_other_programs_stay() -> None:
    claimed = gpu(0, claims=(GpuClaim(20_000, 8),))
    situation = of_gpus(claimed, attempts=(holder(1, share=0, vram=1000, runs="hour"),))
    assert planned(Need(1, 0, vram=10_000), situation) is None


@pytest.mark.parametrize(
    "closed",
    [
        gpu(0, paused=True),
        replace(gpu(0), sample=replace(gpu(0).sample, fault=LOST)),  # type: ignore[type-var]
        replace(gpu(0), sample=None),
        gpu(0, claims_problem="the lock file is a folder"),
    ],
)
def test_a_gpu_that_accepts_no_jobs_is_never_free(closed: Gpu) -> None:
    situation = of_gpus(closed, gpu(1), attempts=(holder(1, "U1", runs="hour"),))
    assert planned(PAIR, situation) is None
    found = planned(WHOLE, situation)
    assert found is not None
    assert found.gpus == ("U1",)


def test_a_quarantined_gpu_is_never_free() -> None:
    stuck = holder(1, state=AttemptState.ENDED, survivors=(77,), swept_boot=0.0, signalled_boot=0.0)
    assert planned(WHOLE, box(1, stuck)) is None


def test_a_job_waits_for_the_release_of_memory() -> None:
    released = holder(1, state=AttemptState.RELEASED, released_boot=NOW.boot - 20.0)
    found = planned(WHOLE, box(1, released))
    assert found == PlannedReservation(("U0",), 40.0, frozenset({1}), 0.0)


def test_only_the_allowed_gpus_are_reserved() -> None:
    situation = box(3, holder(1, runs="hour"), holder(2, "U1", runs="two"))
    found = planned(WHOLE, situation, (0, 1))
    assert found is not None
    assert found.gpus == ("U0",)
    assert planned(PAIR, situation, (0,)) is None
    assert planned(PAIR, situation, ()) is None


@pytest.mark.parametrize(
    ("attempts", "cost_s"),
    [
        ((holder(1, runs="hour"),), 3600.0),  # the other GPU is free
        ((holder(1, runs="two"),), 7200.0),
        ((holder(1, runs="two"), holder(2, "U1", runs="two")), 0.0),
        ((holder(1, runs="hour"), holder(2, "U1", runs="two")), 3600.0),  # free after an hour
        ((holder(1, runs="two"), *(holder(n, "U1", share=300, runs="hour") for n in (2, 3))), 5040.0),
        ((holder(1, runs="hour"), holder(2, "U1", runs="hour", share=250)), 2700.0),
        ((holder(1, runs="hour"), holder(2, "U1", runs="hour", share=0, vram=12_288)), 1800.0),
        ((holder(1, "U0", "U1", runs="two", share=500),), 7200.0),
        ((holder(1),), 600.0),  # an unknown job runs for 600 s
    ],
)
def test_a_reservation_costs_what_no_attempt_holds_of_its_gpus_until_the_expected_start(
    attempts: tuple[ActiveAttempt, ...], cost_s: float
) -> None:
    found = planned(PAIR, box(2, *attempts))
    assert found is not None
    assert found.cost_s == pytest.approx(cost_s)


@pytest.mark.parametrize(
    ("cost_s", "left_s", "waited_s", "begins"),
    [
        (100.0, 100.0, 0.0, True),
        (100.1, 100.0, 0.0, False),
        (100.1, 100.0, 2002.0, True),
        (100.1, 100.0, 2001.0, False),
        (100.0, 0.0, 2000.0, True),
        (100.0, -0.1, 1e9, False),
        (0.0, 0.0, 0.0, True),
        (0.0, -0.1, 0.0, False),
        (1e9, math.inf, 0.0, True),
    ],
)
def test_when_a_reservation_may_begin(cost_s: float, left_s: float, waited_s: float, begins: bool) -> None:
    assert may_begin(cost_s, left_s, waited_s, 0.05) == begins


SECONDS = st.floats(0, 1e9)
BUDGETS = st.floats(0.001, 1)


@given(SECONDS, SECONDS, SECONDS, SECONDS, BUDGETS)
def test_a_job_that_waits_long_enough_gets_in_unless_the_budget_is_exceeded(
    cost_s: float, delivered_s: float, idle_s: float, more_s: float, budget: float
) -> None:
    left_s = GpuTime(delivered_s, idle_s).budget_left_s(budget)
    waited_s = 1.001 * cost_s / budget
    assert may_begin(cost_s, left_s, waited_s, budget) == (left_s >= 0)
    # A longer wait, more delivered and less idle time never close what was open.
    if may_begin(cost_s, left_s, waited_s, budget):
        later = GpuTime(delivered_s + more_s, idle_s).budget_left_s(budget)
        assert may_begin(cost_s, later, waited_s + more_s, budget)


def test_the_needs_of_other_reservations_are_left_out() -> None:
    situation = box(2, holder(1, runs="hour"), holder(2, "U1", runs="two"))
    first, second = ledgers(situation)
    gpus = [first.plus(HALF, reserved_for=9), second]
    found = plan_reservation(WHOLE, None, gpus, expected_ends(situation))
    assert found is not None
    assert found.gpus == ("U1",)
    beside = plan_reservation(HALF, None, gpus, expected_ends(situation))
    assert beside is not None
    assert beside.gpus == ("U0",)


@settings(deadline=None, max_examples=150)
@given(
    situations(), needs(2), st.lists(st.sampled_from([0.0, 60.0, 300.0, math.inf]), min_size=5, max_size=5)
)
def test_a_gpu_is_free_at_the_first_end_after_which_it_accepts_the_job(
    situation: Facts, need: Need, ends_in: list[float]
) -> None:
    """Compares the reservation with a search through all ends on each GPU."""
    ends = {one.id: ExpectedEnd(ends_in[one.id - 1], is_known=True) for one in situation.attempts}
    free_in: list[float] = []
    for one in situation.gpus:
        times = sorted({0.0, *(end.in_s for end in ends.values() if end.in_s < math.inf)})
        for at in times:
            gone = {key for key, end in ends.items() if end.in_s <= at}
            if at == 0.0 and accepts(one, need, situation):
                break
            later = without_attempts(situation, gone)
            if accepts(next(x for x in later.gpus if x.uuid == one.uuid), need, later):
                break
        else:
            continue
        free_in.append(at)
    gpus = ledgers(situation)
    found = plan_reservation(need, None, gpus, ends)
    if len(free_in) < need.count:
        assert found is None
    else:
        assert found is not None
        assert len(set(found.gpus)) == need.count
        assert found.start_in_s == sorted(free_in)[need.count - 1]


def accepts(one: Gpu, need: Need, situation: Facts) -> bool:
    """Returns whether a GPU accepts a job with this need now."""
    return ledger_of(one, situation.attempts, situation.settings).accepts(need)
