"""The table that tells the store writer how to record each action."""

from __future__ import annotations

import inspect

import pytest

from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store import writer

#: The actions that the writer records without the table.
OTHERS = (act.Action, act.AttemptAction, act.Start, act.EndScheduler)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(act, inspect.isclass)
        if issubclass(kind, act.Action) and kind not in OTHERS
    ],
)
def test_each_action_is_recorded(kind: type[act.Action]) -> None:
    is_on_attempt = issubclass(kind, act.AttemptAction)
    assert is_on_attempt is not (kind in writer._RECORD)
    assert not is_on_attempt or kind is act.Relaunch or kind in writer._TIMES
