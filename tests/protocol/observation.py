"""Observes an attempt as a round does: its folder, its processes and its last progress."""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol import stops
from tests.protocol.decisions import ObservedAttempt
from tests.protocol.rules import Rules
from tests.protocol.steps import Steps


def observe(steps: Steps, a: int, result: int = st.NONE) -> ObservedAttempt:
    state, rules = steps.state, steps.rules
    stop, withdrawn = stops.observed_stop(state, a, rules)
    return ObservedAttempt(
        number=state[st.NEWEST],
        job=state[st.JOB],
        claim=state[st.OBSERVED_CLAIM],
        result=result,
        stop=stop,
        withdrawn=withdrawn,
        stop_request=state[st.STOP_REQUEST],
        old_boot=state[a + st.BOOTED] != state[st.BOOT],
        folder_exists=bool(state[a + st.FOLDER]),
        folder_complete=state[a + st.FOLDER] == st.MADE,
        launches=state[a + st.LAUNCHES],
        process_found=finds_process(state, a, rules),
        swept=state[a + st.SWEPT],
        watches=bool(state[a + st.WATCHES]) and rules.watched_again,
        complete=_last_progress(state[a + st.ACTUAL_END]) if result and rules.excuse_no_progress else None,
    )


def _last_progress(truth: int) -> bool | None:
    """Returns whether the last progress of a command that exited 0 was N of N; None if it did not exit 0."""
    return truth == st.EXIT_0 if truth in (st.EXIT_0, st.EXIT_SAVED) else None


def finds_process(state: bytes, a: int, rules: Rules, *, chains: bool = True) -> bool:
    """Returns whether a scan finds a process of the attempt. chains: the scan catches fork chains."""
    left = st.finds_other_process(state, a, rules) and (
        chains or state[a + st.OTHER_PROCESS] not in (st.FORK_CHAIN, st.LOOSE_CHAIN)
    )
    mine = left or st.finds_command(state, a, rules) or st.scan_finds_runner(state, a)
    mine = mine or st.sweeps_process(state, a, rules)
    if st.is_blind(state, rules):
        return False
    return mine or st.finds_foreign_process(state, a, rules)


def misread_withdrawal(view: ObservedAttempt, rules: Rules) -> ObservedAttempt:
    """Returns the observation as the simpler rules about withdrawals, if any is on, take it."""
    if not rules.withdrawal_closes or (view.claim == st.CLAIM_DEAD and not rules.withdrawal_outlives_runner):
        return view._replace(withdrawn=0)
    number = stops.preemption_id(view.stop_request)
    if number is None or not view.withdrawn:
        return view
    if not rules.withdrawal_by_id:
        return view._replace(withdrawn=view.stop_request)
    if not rules.kill_stays_open and stops.preemption_id(view.withdrawn) == number:
        return view._replace(stop_request=stops.preemption(number))
    return view
