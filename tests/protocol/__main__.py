"""Runs the model from the command line: python -m tests.protocol [scenarios] [big] [controls] [limits] [WORD
…]

Without arguments it runs the scenarios, the controls (each with one rule off) and the limits. `big` runs the
the large scenarios. Any other word selects runs whose name contains it, and prints their traces. The exit
code is 0 if every scenario holds and every control breaks its invariant.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence

from tests.protocol.redis_claims import (
    REDIS_BIG,
    REDIS_CONTROLS,
    REDIS_SCENARIOS,
    RedisResult,
    RedisRules,
    RedisScenario,
    explore_redis,
)
from tests.protocol.rules import ALL
from tests.protocol.scenarios import BIG, CONTROLS, LIMITS, SCENARIOS, Control, Scenario
from tests.protocol.search import SearchResult, explore
from tests.protocol.turns import TURN_CONTROLS, TURN_SCENARIOS, TurnControl, TurnRules, explore_turns

_KINDS = ("scenarios", "big", "controls", "limits")


def main(argv: Sequence[str]) -> int:
    """Runs the selected scenarios and controls; returns the exit code."""
    words = [word for word in argv if word not in _KINDS]
    kinds = [kind for kind in _KINDS if kind in argv] or (
        [*_KINDS] if words else ["scenarios", "controls", "limits"]
    )
    scenarios = [
        one for kind, some in (("scenarios", SCENARIOS), ("big", BIG)) if kind in kinds for one in some
    ]
    controls = [
        one for kind, some in (("controls", CONTROLS), ("limits", LIMITS)) if kind in kinds for one in some
    ]
    good = [_check_scenario(one) for one in scenarios if all(word in one.name for word in words)]
    good += [
        _check_control(one, bool(words))
        for one in controls
        if all(word in " ".join(one.disabled) for word in words)
    ]
    if "scenarios" in kinds:
        turns = [one for one in TURN_SCENARIOS if all(word in one.name for word in words)]
        for one in turns:
            found = explore_turns(one, TurnRules())
            good.append(_report_turns(one.name, found.states, found.broken or "holds", found.broken is None))
    good += _check_redis(kinds, words)
    if "controls" in kinds:
        good += [_check_turn_control(one) for one in TURN_CONTROLS if not words or one.disabled in words]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(good)} of {len(good)} as expected; {peak} MiB")
    return 0 if good and all(good) else 1


def _check_redis(kinds: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Runs the scenarios and controls of the queue on Redis. With words, prints the traces."""
    good = []
    searched: list[RedisScenario] = []
    searched += REDIS_SCENARIOS if "scenarios" in kinds else ()
    searched += REDIS_BIG if "big" in kinds else ()
    for one in searched:
        if all(word in one.name for word in words):
            started = time.process_time()
            found = explore_redis(one, RedisRules())
            seconds = time.process_time() - started
            text = f"{seconds:6.1f} s CPU  {found.broken or 'holds'}"
            good.append(_report_turns(one.name, found.states, text, found.broken is None))
            _show(found)
    for control in REDIS_CONTROLS if "controls" in kinds else ():
        if all(word in f"redis: {control.disabled}" for word in words):
            found = explore_redis(control.scenario, control.rules, control.breaks)
            text = found.broken or f"{control.breaks} NOT BROKEN"
            name = f"redis: without {control.disabled}"
            good.append(_report_turns(name, found.states, text, found.broken is not None))
            if words:
                _show(found)
    return good


def _check_scenario(scenario: Scenario) -> bool:
    started = time.process_time()
    found = explore(scenario.faults, ALL)
    seconds = time.process_time() - started
    rate = found.states / max(seconds, 0.001)
    print(
        f"{scenario.name:38} {found.states:>9,} states {found.edges:>10,} steps {seconds:6.1f} s CPU"
        f" {rate:>7,.0f}/s  {found.broken or 'holds'}",
        flush=True,
    )
    if found.broken:
        _show(found)
    return found.broken is None


def _check_control(control: Control, traced: bool) -> bool:
    found = explore(control.faults, control.rules, control.breaks)
    name = f"without {' and '.join(control.disabled)}"
    print(
        f"{name:38} {found.states:>9,} states  {found.broken or f'{control.breaks} NOT BROKEN'}",
        flush=True,
    )
    if traced:
        _show(found)
    return found.broken is not None


def _check_turn_control(control: TurnControl) -> bool:
    found = explore_turns(control.scenario, control.rules, control.breaks)
    broken = found.broken or f"{control.breaks} NOT BROKEN"
    return _report_turns(f"turns: without {control.disabled}", found.states, broken, found.broken is not None)


def _report_turns(name: str, states: int, text: str, is_good: bool) -> bool:
    print(f"{name:38} {states:>9,} states  {text}", flush=True)
    return is_good


def _show(found: SearchResult | RedisResult) -> None:
    for number, label in enumerate(found.trace, 1):
        print(f"    {number:3} {label}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
