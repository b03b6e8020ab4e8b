"""How the GPU time that attempts got, and that a reservation kept idle, is counted."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.history import GpuTime
from gpu_scheduler.core.scheduling.round_allocations import count_gpu_time
from tests.attempts import replace
from tests.core.gpu_world import NOW, round_of, running
from tests.core.queue_world import PAIR, stored, waiting

RESERVED = stored(waiting(1), PAIR, "U1", "U2")


def counted(*attempts: ActiveAttempt, since_s: float = 100.0, **values: object) -> Facts:
    """Returns the facts of a round on three GPUs, whose time was last counted `since_s` ago."""
    told = GpuTime(0.0, 0.0, NOW.wall - since_s)
    return round_of(3, attempts=attempts, **{"gpu_time": told, **values})


@pytest.mark.parametrize(
    ("attempts", "delivered_s", "idle_s"),
    [
        ((), 0.0, 200.0),
        ((running(1, share=1000),), 100.0, 200.0),
        ((running(1, "U1", share=500),), 50.0, 150.0),
        ((running(1, "U1", "U2", whole=True, share=500),), 200.0, 0.0),
        ((running(1, "U1", vram=12_288),), 50.0, 150.0),
        ((running(1, "U1", share=700), running(2, "U1", vram=20_000)), 100.0, 100.0),  # more than one GPU
        ((running(1, "U1", share=1000, state=AttemptState.ENDED),), 100.0, 100.0),
        ((running(1, "U1", share=1000, state=AttemptState.RELEASED, released_boot=999.0),), 0.0, 200.0),
        ((running(1, "gone", share=1000),), 0.0, 200.0),
    ],
)
def test_gpu_time_is_counted_by_share(
    attempts: tuple[ActiveAttempt, ...], delivered_s: float, idle_s: float
) -> None:
    [recorded] = count_gpu_time(counted(*attempts, queue_reservation=RESERVED), allocations_change=False)
    assert recorded == act.RecordGpuTime(delivered_s, idle_s, NOW.wall)


def test_no_gpu_is_idle_for_a_reservation_without_one() -> None:
    [recorded] = count_gpu_time(counted(running(1, "U1", share=250)), allocations_change=False)
    assert recorded == act.RecordGpuTime(25.0, 0.0, NOW.wall)


def test_gpu_time_is_recorded_every_minute_and_before_allocations_change() -> None:
    short = counted(running(1), since_s=59.0)
    assert count_gpu_time(short, allocations_change=False) == []
    assert count_gpu_time(short, allocations_change=True) == [act.RecordGpuTime(59.0, 0.0, NOW.wall)]
    at_once = counted(running(1), since_s=0.0)
    assert count_gpu_time(at_once, allocations_change=True) == []


def test_the_time_of_an_empty_box_is_left_out_when_its_first_job_starts() -> None:
    empty = counted(since_s=90_000.0)
    assert count_gpu_time(empty, allocations_change=False) == []
    assert count_gpu_time(empty, allocations_change=True) == [act.RecordGpuTime(0.0, 0.0, NOW.wall)]


@pytest.mark.parametrize("until", [None, NOW.wall + 5.0])
def test_counting_begins_anew_without_a_beginning_or_if_the_clock_was_set_back(until: float | None) -> None:
    facts = replace(counted(running(1)), gpu_time=GpuTime(7.0, 3.0, until))
    assert count_gpu_time(facts, allocations_change=False) == [act.RecordGpuTime(0.0, 0.0, NOW.wall)]


def test_nothing_is_counted_if_the_facts_do_not_tell_the_time() -> None:
    assert count_gpu_time(counted(running(1), gpu_time=None), allocations_change=True) == []


@pytest.mark.parametrize(
    ("delivered_s", "idle_s", "left_s"),
    [(0.0, 0.0, 360.0), (36_000.0, 0.0, 3600.0), (36_000.0, 3600.0, 0.0), (36_000.0, 3600.5, -0.5)],
)
def test_the_budget_is_a_part_of_the_delivered_time_of_which_at_least_one_gpu_hour_counts(
    delivered_s: float, idle_s: float, left_s: float
) -> None:
    assert GpuTime(delivered_s, idle_s).budget_left_s(0.1) == pytest.approx(left_s)
