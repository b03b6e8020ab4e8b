"""Searches the smaller part of the model of boxes that share a queue on Redis. `make model` searches more."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.redis_claims import (
    REDIS_CONTROLS,
    REDIS_SCENARIOS,
    RedisControl,
    RedisRules,
    RedisScenario,
    explore_redis,
)

#: Those whose searches take less than three seconds.
_QUICK = REDIS_SCENARIOS[:2]
#: Controls that visit most states of their scenarios.
_SLOW = (
    "cancelled_given_back", "giving_back_waits", "answers_first", "write_back_compares", "waits_for_boxes",
    "confirm_waits",
)  # fmt: skip


@pytest.mark.parametrize("scenario", _QUICK, ids=lambda one: one.name)
def test_an_item_starts_once_and_is_never_lost_in_every_state(scenario: RedisScenario) -> None:
    found = explore_redis(scenario, RedisRules())
    assert found.broken is None, "\n".join([found.broken or "", *found.trace])
    assert found.states > 1000


@pytest.mark.parametrize(
    "control", [one for one in REDIS_CONTROLS if one.disabled not in _SLOW], ids=lambda one: one.disabled
)
def test_disabling_a_rule_of_the_queue_breaks_an_invariant(control: RedisControl) -> None:
    found = explore_redis(control.scenario, control.rules, control.breaks)
    assert found.broken is not None
    assert found.trace


def test_every_rule_of_the_queue_is_disabled_by_a_control() -> None:
    assert {one.disabled for one in REDIS_CONTROLS} == {one.name for one in fields(RedisRules)}
