"""Tests the ledger of a GPU after attempts have left it and after jobs have been placed on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts
from tests.core.gpu_world import facts, gpu, ledger, ledgers, running
from tests.core.preemption_world import needs, situations, without_attempts


@settings(deadline=None, max_examples=200)
@given(situations(), st.data())
def test_equals_the_ledger_of_a_machine_that_the_attempts_have_left(
    situation: Facts, data: st.DataObject
) -> None:
    leaving = data.draw(st.sets(st.sampled_from([one.id for one in situation.attempts])))
    left = without_attempts(situation, leaving)
    for before, after in zip(ledgers(situation), ledgers(left), strict=True):
        assert before.minus(leaving) == after


@settings(deadline=None, max_examples=200)
@given(situations(), st.lists(needs(1), max_size=3), st.data())
def test_the_order_in_which_attempts_leave_and_jobs_are_placed_makes_no_difference(
    situation: Facts, placed: list[Need], data: st.DataObject
) -> None:
    leaving = data.draw(st.sets(st.sampled_from([one.id for one in situation.attempts])))
    for before in ledgers(situation):
        first, last = before.minus(leaving), before
        for need in placed:
            first = first.plus(need)
        for need in reversed(placed):
            last = last.plus(need)
        for one in leaving:
            last = last.minus([one])
        assert first == last


UNLISTED = gpu(0, used=20_000, processes=None)


@pytest.mark.parametrize(
    ("vram", "baseline", "committed"), [(20_000, 0, 0), (18_000, 0, 2200), (20_000, 1000, 1100)]
)
def test_memory_beyond_the_allocations_stays_foreign_if_no_processes_are_listed(
    vram: int, baseline: int, committed: int
) -> None:
    attempt = running(1, vram=vram, baseline_mib={"U0": baseline})
    [found] = ledgers(facts(UNLISTED, attempts=(attempt,)))
    assert found.minus([1]).committed_mib == committed


def test_memory_that_a_released_attempt_has_not_freed_yet_becomes_free_too() -> None:
    released = running(1, share=1000, state=AttemptState.RELEASED, released_boot=999.5)
    [found] = ledgers(facts(gpu(0, used=20_000), attempts=(released,)))
    alone = Need(1, 1000, alone=True)
    assert found.obstacle(alone) == GpuObstacle(0, ObstacleKind.AWAITING_MEMORY)
    assert found.minus([1]).accepts(alone)


def test_a_quarantined_gpu_accepts_nothing_until_its_attempt_has_left() -> None:
    released = running(1, share=100, state=AttemptState.RELEASED, released_boot=999.5)
    ended = running(2, share=100, state=AttemptState.ENDED, survivors=(7,))
    [found] = ledgers(facts(gpu(0), attempts=(released, ended, running(3, share=800))))
    quarantined = GpuObstacle(0, ObstacleKind.QUARANTINED, job_id=20, pids=(7,))
    assert found.minus([3]).obstacle(Need(1, 500)) == quarantined
    assert found.minus([1, 3]).obstacle(Need(1, 500)) == quarantined
    assert found.minus([2, 3]).obstacle(Need(1, 500)) == GpuObstacle(0, ObstacleKind.AWAITING_MEMORY)
    assert found.minus([1, 2, 3]).accepts(Need(1, 500))


def test_a_paused_gpu_stays_paused_whoever_leaves_it() -> None:
    ended = running(1, share=100, state=AttemptState.ENDED)
    [found] = ledgers(facts(gpu(0, paused=True), attempts=(ended,)))
    assert found.minus([1]).closed == GpuObstacle(0, ObstacleKind.PAUSED)


def test_the_places_given_in_the_same_round_are_taken() -> None:
    [found] = ledgers(facts(gpu(0), attempts=(running(1, share=1000),)))
    left = found.minus([1]).plus(Need(1, 600))
    assert left.accepts(Need(1, 400))
    assert not left.accepts(Need(1, 500))


def test_memory_given_in_the_same_round_counts_beside_the_memory_in_use() -> None:
    given_away = ledger(used_mib=10_000).plus(Need(1, vram=4000))
    assert given_away.committed_mib == 14_000


def test_a_gpu_that_is_reserved_accepts_only_what_leaves_room_for_each_of_these_jobs() -> None:
    first = Need(1, vram=12_000)
    reserved = ledger().plus(first, reserved_for=7).plus(Need(1, 50), reserved_for=8)
    assert reserved.accepts(Need(1, vram=1000))
    kept = GpuObstacle(0, ObstacleKind.RESERVED, job_id=7)
    assert reserved.obstacle(Need(1, 900)) == kept
    # The memory of a job that declares only a share is of interest to the job that declares memory.
    assert reserved.obstacle(Need(1, 450)) == kept
    assert ledger().plus(first).accepts(Need(1, 450))
