"""The availability of a GPU once some attempts have left it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.attempt import ActiveAttempt
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import Vacancy, availability
from tests.attempts import replace
from tests.core.gpu_world import TOTAL, facts, gpu, running
from tests.core.preemption_world import situations, without_attempts


@settings(deadline=None, max_examples=200)
@given(situations(), st.data())
def test_equals_the_availability_of_a_machine_that_the_attempts_have_left(
    situation: Facts, data: st.DataObject
) -> None:
    leaving = data.draw(st.sets(st.sampled_from([one.id for one in situation.attempts])))
    left = without_attempts(situation, leaving)
    for before, after in zip(situation.gpus, left.gpus, strict=True):
        assert Vacancy(before, situation).without(leaving) == availability(after, left)


UNLISTED = gpu(0, used=20_000, processes=None)


@pytest.mark.parametrize(
    ("vram", "baseline", "committed"), [(20_000, 0, 0), (18_000, 0, 2200), (20_000, 1000, 1100)]
)
def test_memory_beyond_the_allocations_stays_foreign_if_no_processes_are_listed(
    vram: int, baseline: int, committed: int
) -> None:
    attempt = running(1, vram=vram, baseline_mib={"U0": baseline})
    assert Vacancy(UNLISTED, facts(UNLISTED, attempts=(attempt,))).without([1]).committed_mib == committed


def test_memory_that_a_released_attempt_has_not_freed_yet_becomes_free_too() -> None:
    released = running(1, share=1000, state=AttemptState.RELEASED, released_boot=999.5)
    vacancy = Vacancy(one := gpu(0, used=20_000), facts(one, attempts=(released,)))
    alone = Need(1, 1000, alone=True)
    assert not vacancy.accepts(alone, [])
    assert vacancy.accepts(alone, [1])


def test_a_quarantined_gpu_accepts_nothing_until_its_attempt_has_left() -> None:
    ended = running(1, share=100, state=AttemptState.ENDED, survivors=(7,))
    vacancy = Vacancy(one := gpu(0), facts(one, attempts=(ended, running(2, share=900))))
    assert not vacancy.accepts(Need(1, 500), [2])
    assert vacancy.accepts(Need(1, 500), [1, 2])


def test_the_places_given_in_the_same_round_are_taken() -> None:
    attempts: tuple[ActiveAttempt, ...] = (running(1, share=1000),)
    given_away = Vacancy(one := gpu(0), facts(one, attempts=attempts), [Need(1, 600)])
    assert given_away.accepts(Need(1, 400), [1])
    assert not given_away.accepts(Need(1, 500), [1])
    assert replace(given_away.without([1]), allocated_share=0).total_mib == TOTAL
