"""Which running attempts a job of higher priority preempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.gpu import LOST, Gpu, GpuClaim, GpuProcess
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus, StopRequest
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.placement import place
from gpu_scheduler.core.scheduling.plan import next_deadline
from gpu_scheduler.core.scheduling.preemption import (
    Candidate,
    Preemption,
    choose_victims,
    find_preemption,
)
from gpu_scheduler.core.scheduling.reconcile_attempt import leaving_attempts
from tests.attempts import replace
from tests.core.gpu_world import NOW, facts, gpu, ledgers, running
from tests.core.preemption_world import needs, situations, without_attempts

WHOLE, HALF, PAIR = Need(1, 1000), Need(1, 500), Need(2, 1000)


def candidate(attempt_id: int, priority: int = 200, lost_work_s: float = 60.0) -> Candidate:
    return Candidate(attempt_id, priority, lost_work_s)


def on(attempt_id: int, *gpus: int, share: int = 1000, **values: object) -> ActiveAttempt:
    return running(attempt_id, *(f"U{index}" for index in gpus), share=share, **values)


def full(count: int, *attempts: ActiveAttempt) -> Facts:
    return facts(*map(gpu, range(count)), attempts=attempts)


def chosen(
    need: Need,
    situation: Facts,
    *candidates: Candidate,
    allowed: tuple[int, ...] | None = None,
    leaving: Collection[int] = (),
    given: Mapping[str, Sequence[Need]] = MappingProxyType({}),
) -> Preemption | None:
    """Returns the choice. given: the needs of the jobs to which the round has given each GPU already."""
    gpus = ledgers(situation)
    for at, one in enumerate(gpus):
        for placed in given.get(one.uuid, ()):
            gpus[at] = gpus[at].plus(placed)
    found = choose_victims(need, allowed, candidates, leaving, gpus)
    return found if isinstance(found, Preemption) else None


def test_a_job_takes_the_place_of_a_running_job() -> None:
    assert chosen(WHOLE, full(1, on(1, 0)), candidate(1)) == Preemption((1,), ("U0",))


def test_the_least_important_job_is_chosen_before_one_that_loses_less_work() -> None:
    situation = full(2, on(1, 0), on(2, 1))
    found = chosen(WHOLE, situation, candidate(1, 200, 0.0), candidate(2, 300, 9000.0))
    assert found == Preemption((2,), ("U1",))


def test_two_less_important_jobs_are_chosen_before_a_more_important_one() -> None:
    situation = full(2, on(1, 0), on(2, 1, share=500), on(3, 1, share=500))
    found = chosen(WHOLE, situation, candidate(1, 200), candidate(2, 300), candidate(3, 300))
    assert found == Preemption((2, 3), ("U1",))


def test_one_job_is_chosen_before_two_that_lose_less_work() -> None:
    situation = full(2, on(1, 0), on(2, 1, share=500), on(3, 1, share=500))
    found = chosen(WHOLE, situation, candidate(1, 200, 500.0), candidate(2, 200, 1.0), candidate(3, 200, 1.0))
    assert found == Preemption((1,), ("U0",))


def test_the_job_that_loses_the_least_work_is_chosen_among_equal_ones() -> None:
    situation = full(3, on(1, 0), on(2, 1), on(3, 2))
    found = chosen(
        WHOLE, situation, candidate(1, 200, 30.0), candidate(2, 200, 10.0), candidate(3, 200, 20.0)
    )
    assert found == Preemption((2,), ("U1",))


def test_the_newest_of_jobs_that_lose_the_same_is_chosen() -> None:
    found = chosen(HALF, full(1, on(1, 0, share=500), on(2, 0, share=500)), candidate(1), candidate(2))
    assert found == Preemption((2,), ("U0",))


def test_one_job_on_two_gpus_is_chosen_before_two_jobs_on_one_gpu_each() -> None:
    situation = full(4, on(1, 0), on(2, 1), on(3, 2, 3))
    found = chosen(PAIR, situation, candidate(1), candidate(2), candidate(3, 200, 600.0))
    assert found == Preemption((3,), ("U2", "U3"))


def test_a_free_gpu_is_used_together_with_a_freed_one() -> None:
    assert chosen(PAIR, full(2, on(1, 0)), candidate(1)) == Preemption((1,), ("U0", "U1"))


def test_only_as_many_jobs_as_necessary_are_chosen() -> None:
    situation = full(1, *(on(one, 0, share=200) for one in range(1, 6)))
    found = chosen(Need(1, 400), situation, *map(candidate, range(1, 6)))
    assert found == Preemption((4, 5), ("U0",))


def test_only_allowed_gpus_count() -> None:
    situation = full(2, on(1, 0), on(2, 1))
    assert chosen(WHOLE, situation, candidate(1), candidate(2), allowed=(1,)) == Preemption((2,), ("U1",))
    assert chosen(WHOLE, situation, candidate(1), allowed=(1,)) is None


def test_nobody_is_chosen_if_that_would_not_suffice() -> None:
    assert chosen(PAIR, full(2, on(1, 0), on(2, 1)), candidate(1)) is None
    assert chosen(PAIR, full(1, on(1, 0)), candidate(1)) is None


@pytest.mark.parametrize(
    "blocked",
    [
        gpu(0, paused=True),
        gpu(0, sample=None),
        replace(gpu(0), sample=replace(gpu(0).sample, fault=LOST)),  # type: ignore[type-var]
        gpu(0, processes=(GpuProcess(7, 21_000),)),
        gpu(0, processes=(GpuProcess(7, 1000),), foreign_loads=(95.0, 95.0)),
        gpu(0, claims=(GpuClaim(None, 7),)),
        gpu(0, claims_problem="the lock file is a link"),
    ],
    ids=["paused", "not sampled", "lost", "foreign memory", "foreign load", "claim", "claims unknown"],
)
def test_nobody_is_chosen_if_something_else_keeps_the_job_off(blocked: Gpu) -> None:
    situation = facts(blocked, attempts=(on(1, 0, share=500), on(2, 0, share=500)))
    assert chosen(WHOLE, situation, candidate(1), candidate(2)) is None


def test_the_memory_of_a_victim_becomes_free() -> None:
    busy = gpu(0, processes=(GpuProcess(7, 20_000),), owners={7: 1})
    attempts = (running(1, vram=10_000, peaks={"U0": 20_000}),)
    found = chosen(Need(1, 1000, alone=True), facts(busy, attempts=attempts), candidate(1))
    assert found == Preemption((1,), ("U0",))


@pytest.mark.parametrize("state", [AttemptState.STOPPING, AttemptState.ENDED, AttemptState.RELEASED])
def test_a_place_that_becomes_free_anyway_is_waited_for(state: AttemptState) -> None:
    situation = full(2, on(1, 0, state=state), on(2, 1))
    assert chosen(WHOLE, situation, candidate(2), leaving={1}) is None
    assert chosen(PAIR, situation, candidate(2), leaving={1}) == Preemption((2,), ("U0", "U1"))


def test_a_place_that_was_given_away_in_the_same_round_does_not_count() -> None:
    situation = full(2, on(1, 0), on(2, 1))
    both = (candidate(1, 200, 0.0), candidate(2))
    assert chosen(WHOLE, situation, *both, given={"U0": [HALF]}) == Preemption((2,), ("U1",))


def test_many_small_jobs_on_a_gpu_are_reduced_to_as_few_as_necessary() -> None:
    small = [on(one, 0, share=10) for one in range(1, 101)]
    found = chosen(HALF, full(1, *small), *(candidate(one, 200, one) for one in range(1, 101)))
    assert found == Preemption(tuple(range(1, 51)), ("U0",))


@pytest.mark.parametrize("gpus", [8, 64])
def test_a_search_beyond_its_budget_finds_a_set_without_spare_victims(gpus: int) -> None:
    sizes = [1000, 2000, 3000, 5000, 700, 900, 1100, 4000]
    attempts = [
        running(8 * index + at, f"U{index}", *([f"U{(index + 1) % gpus}"] if at < 2 else []), vram=size)
        for index in range(gpus)
        for at, size in enumerate(sizes)
    ]
    situation, need = full(gpus, *attempts), Need(gpus // 2, vram=14_000)
    found = chosen(need, situation, *(candidate(one.id, 200, one.id % 7) for one in attempts))
    assert found is not None
    assert fits(need, None, without_attempts(situation, found.victims)) is not None
    for one in found.victims:
        assert fits(need, None, without_attempts(situation, {*found.victims} - {one})) is None


def fits(need: Need, allowed: tuple[int, ...] | None, situation: Facts) -> tuple[str, ...] | None:
    answer = place(need, allowed, ledgers(situation))
    return None if isinstance(answer, WaitReason) else answer


def price(victims: Collection[Candidate]) -> tuple[int, int, float]:
    return -min(one.priority for one in victims), len(victims), sum(one.lost_work_s for one in victims)


def best_by_brute_force(
    need: Need, allowed: tuple[int, ...] | None, situation: Facts, candidates: Sequence[Candidate]
) -> tuple[int, int, float] | None:
    """Returns the lowest price of any set of victims; None if none helps or none is necessary."""
    if fits(need, allowed, situation) is not None:
        return None
    prices = [
        price(some)
        for number in range(1, len(candidates) + 1)
        for some in combinations(candidates, number)
        if fits(need, allowed, without_attempts(situation, {one.attempt_id for one in some})) is not None
    ]
    return min(prices, default=None)


CANDIDATES = st.lists(
    st.tuples(
        st.sampled_from([200, 200, 300]),
        st.sampled_from([0.0, 1.0, 5.0]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=5,
    max_size=5,
)


@settings(deadline=None, max_examples=200)
@given(situations(), needs(3), st.sampled_from([None, None, None, (0,), (1, 2)]), CANDIDATES)
def test_the_choice_is_as_good_as_the_best_of_all_sets(
    situation: Facts, need: Need, allowed: tuple[int, ...] | None, drawn: list[tuple[int, float, bool]]
) -> None:
    candidates = [
        Candidate(attempt.id, priority, lost)
        for attempt, (priority, lost, may) in zip(situation.attempts, drawn, strict=False)
        if may
    ]
    found = chosen(need, situation, *candidates, allowed=allowed)
    expected = best_by_brute_force(need, allowed, situation, candidates)
    assert (found is None) == (expected is None)
    if found is not None:
        assert price([one for one in candidates if one.attempt_id in found.victims]) == expected
        assert found.gpus == fits(need, allowed, without_attempts(situation, found.victims))


def found_for(need: Need, situation: Facts) -> Preemption | None:
    """Returns what a job of priority 100 preempts."""
    gpus = ledgers(situation)
    job = QueuedJob(99, 100, 1)
    found = find_preemption(job, need, None, situation, leaving_attempts(situation), gpus)
    return found if isinstance(found, Preemption) else None


def test_nobody_is_preempted_who_must_be_spared() -> None:
    """One attempt for each reason to spare it, next to one that may be preempted."""
    old = {"started_at": 0.0, "priority": 300}
    spared = [
        on(1, 0, share=100, **{**old, "priority": 100}),
        on(2, 0, share=100, **old, state=AttemptState.STARTING),
        on(3, 0, share=100, **old, stop_request=StopRequest("preempted", 60.0, "withdraw", "x")),
        on(4, 0, share=100, **old, status=AttemptStatus(claim="live", stop=StopRequest("cancelled", 9.0))),
        on(5, 0, share=100, **old, status=AttemptStatus(claim="unlocked")),
        on(6, 0, share=100, **old, watched_pid=77),
        on(7, 0, share=100, priority=300, follows_preemption=True, started_at=NOW.wall - 59.0),
    ]
    situation = full(1, *spared, on(8, 0, share=300, **old))
    assert found_for(Need(1, 300), situation) == Preemption((8,), ("U0",))
    # The cancelled attempt leaves too.
    assert found_for(Need(1, 400), situation) == Preemption((8,), ("U0",))
    assert found_for(Need(1, 500), situation) is None


@pytest.mark.parametrize("ran_s", [60.0, -1000.0])
def test_a_job_is_preempted_again_after_a_while_and_after_the_clock_was_set_back(ran_s: float) -> None:
    again = on(1, 0, priority=300, follows_preemption=True, started_at=NOW.wall - ran_s)
    situation = full(1, again)
    assert found_for(WHOLE, situation) is not None


def test_a_round_takes_place_when_a_job_may_be_preempted_again() -> None:
    ordinary = on(1, 0, started_at=NOW.wall - 20.0)
    protected = replace(ordinary, follows_preemption=True)
    assert next_deadline(full(1, protected), None) == NOW.boot + 40.0
    assert next_deadline(full(1, ordinary), None) is None


@pytest.mark.parametrize(
    ("leaving", "waits"),
    [
        ({"state": AttemptState.RELEASED}, True),
        ({"state": AttemptState.ENDED, "survivors": (7,)}, True),
        ({"state": AttemptState.ENDED, "survivors": (7,), "swept_boot": 10.0, "signalled_boot": 20.0}, False),
        ({"state": AttemptState.ORPHANED}, True),
        ({"state": AttemptState.STOPPING, "stop_request": StopRequest("cancelled", 10.0)}, True),
        (
            {"status": AttemptStatus(claim="unlocked"), "stop_request": StopRequest("cancelled", 10.0)},
            False,
        ),
        (
            {"state": AttemptState.STOPPING, "stop_request": StopRequest("preempted", 9.0, "withdraw", "x")},
            False,
        ),
        ({"state": AttemptState.STOPPING, "stop_request": StopRequest("preempted", 3600.0, "kill")}, False),
        (
            {
                "state": AttemptState.STOPPING,
                "stop_request": StopRequest("cancelled", 100.0),
                "stopping_boot": NOW.boot - 50.0,
            },
            True,
        ),
        (
            {
                "state": AttemptState.STOPPING,
                "stop_request": StopRequest("cancelled", 10.0),
                "stopping_boot": NOW.boot - 50.0,
            },
            False,
        ),
    ],
    ids=[
        "memory",
        "swept",
        "cannot be killed",
        "no runner",
        "cancelled",
        "in a copied folder",
        "may continue",
        "long grace period",
        "most of the grace period is over",
        "overdue",
    ],
)
def test_a_job_waits_for_attempts_that_leave_anyway(leaving: dict[str, Any], waits: bool) -> None:
    situation = full(2, on(1, 0, **leaving), on(2, 1, priority=300))
    assert found_for(WHOLE, situation) == (None if waits else Preemption((2,), ("U1",)))
