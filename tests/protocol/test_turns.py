"""Searches the model of programs that take turns."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.turns import (
    TURN_CONTROLS,
    TURN_SCENARIOS,
    TurnControl,
    TurnRules,
    TurnScenario,
    explore_turns,
)


@pytest.mark.parametrize("scenario", TURN_SCENARIOS, ids=lambda one: one.name)
def test_programs_take_turns_in_every_state(scenario: TurnScenario) -> None:
    found = explore_turns(scenario, TurnRules())
    assert found.broken is None, "\n".join([found.broken or "", *found.trace])
    assert found.states > 100


@pytest.mark.parametrize("control", TURN_CONTROLS, ids=lambda one: one.disabled)
def test_disabling_a_rule_of_the_turns_breaks_an_invariant(control: TurnControl) -> None:
    found = explore_turns(control.scenario, control.rules, control.breaks)
    assert found.broken is not None
    assert found.trace


def test_every_rule_of_the_turns_is_disabled_by_a_control() -> None:
    assert {one.disabled for one in TURN_CONTROLS} == {one.name for one in fields(TurnRules)}
