"""The tables that tell the store writer how to record each action."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store import writer

ACTIONS = [
    kind
    for _, kind in inspect.getmembers(act, inspect.isclass)
    if issubclass(kind, act.Action) and kind not in (act.Action, act.AttemptAction, act.EndScheduler)
]


@pytest.mark.parametrize("kind", ACTIONS)
def test_each_action_is_in_exactly_one_table(kind: type[act.Action]) -> None:
    assert (kind in writer._UPDATES) != (kind in writer._RECORD)


@pytest.mark.parametrize("kind", writer._UPDATES)
def test_the_parameters_of_a_statement_are_fields_of_its_action(kind: Any) -> None:
    names = set(kind.__struct_fields__) | {"boot", "wall"}
    assert set(re.findall(r":(\w+)", writer._UPDATES[kind])) <= names
