"""Searches a small part of the model. `make model` searches all of it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.rules import ALL, Rules
from tests.protocol.scenarios import CONTROLS, LIMITS, WITHOUT_CONTROL, Control
from tests.protocol.search import explore


@pytest.mark.parametrize(
    "faults",
    [
        {"hide": 1, "kill": 1},
        {"hide": 1, "kill": 1, "unmarked": 1},
        {"unlock": 1},
        {"unclaim": 1},
        {"copy": 1},
        {"other": 1, "kill": 1},
        {"unlink": 1},
        {"preempt": 2},
        {"victim": 1, "crash": 1, "retry": 1},
        {"adopt": 1, "kill": 1, "retry": 1},
        {"adopt": 1, "kill": 1, "preempt": 1},
        {"crash": 1, "offline": 1},
    ],
    ids=str,
)
def test_invariants_hold_in_every_state(faults: dict[str, int]) -> None:
    found = explore(faults, ALL)
    assert found.broken is None, "\n".join([found.broken or "", *found.trace])
    assert found.states > 2000


#: The first disabled rule of each control whose search needs only a few thousand states.
_QUICK = (
    "record_first", "void_first", "claim_first", "dead_needs_runner_gone", "removed_claim_waits",
    "runner_token", "command_recorded", "by_session", "by_descent", "session_checked", "no_children",
    "marked", "gpu_locked", "kernel_lock", "lock_compared", "attempt_first", "locks_first", "stored_runner",
    "release_last", "release_first", "lost_claim_uncounted", "copy_refused", "excuse_lost", "excuse_early",
    "excuse_killed_holder", "excuse_unlinked", "withdrawal_closes", "withdrawal_by_id",
    "withdrawal_outlives_runner", "excuse_no_progress", "watched_again", "process_unswept", "requests_wait",
    "stop_kept", "watcher_leaves", "start_compared", "rounds_locked", "placing_off", "same_namespace",
)  # fmt: skip


@pytest.mark.parametrize(
    "control",
    [one for one in (*CONTROLS, *LIMITS) if one.disabled[0] in _QUICK],
    ids=lambda one: "-".join(one.disabled),
)
def test_disabling_a_rule_breaks_an_invariant(control: Control) -> None:
    found = explore(control.faults, control.rules, control.breaks)
    assert found.broken is not None
    assert len(found.trace) > 2


def test_every_rule_is_disabled_by_a_control_or_limit() -> None:
    assert {name for one in (*CONTROLS, *LIMITS) for name in one.disabled} == {
        one.name for one in fields(Rules)
    } - set(WITHOUT_CONTROL)
