"""Models a sweep, in which the loop signals every process of an attempt that a scan finds."""

from __future__ import annotations

from itertools import product

from tests.protocol import state as st
from tests.protocol.adopted import SWEPT
from tests.protocol.steps import STEP, Steps, end_of_command

#: Possible effects of the signal on one process: for each, a label and the changed fields of the attempt.
_Ends = tuple[tuple[str, dict[int, int]], ...]


def sweep(steps: Steps, who: str, a: int, changes: dict[int, int], *, kill: bool) -> None:
    """Adds one sweep with SIGTERM or SIGKILL, from which a fork chain may escape."""
    state, rules = steps.state, steps.rules
    broken = None
    if st.finds_foreign_process(state, a, rules):
        broken = "I8 a foreign process is signalled"
    elif st.sweeps_process(state, a, rules):
        broken = SWEPT
    elif state[a + st.STORED_OUTCOME] == st.OPEN and st.owner(state, a) and state[a + st.LINK] != st.REMOVED:
        broken = "I9 processes are ended while their runner lives"
    elif _orphans_an_unfound_child(steps, a):
        broken = "I5 a sweep ends the parents of a process that it does not find"
    ends = [_command_ends(steps, a, kill), _other_process_ends(steps, a, kill)]
    name = "SIGKILL" if kill else "SIGTERM"
    for choice in product(*ends):
        label = "; ".join(text for text, _ in choice if text) or "nothing is left"
        after = {**changes, a + st.SWEPT: 2 if kill else 1}
        for _, fields in choice:
            after.update(fields)
        after.update(_runners_end(steps, a, kill))
        steps.add(STEP, f"{who} sweeps with {name}: {label}", after, broken)


def _orphans_an_unfound_child(steps: Steps, a: int) -> bool:
    """Returns whether the sweep ends the command but misses a child that could be found only through it."""
    state, rules = steps.state, steps.rules
    if state[a + st.OTHER_PROCESS] != st.OWN_SESSION or st.finds_other_process(state, a, rules):
        return False
    return st.command_lives(state, a) and st.finds_command(state, a, rules)


def _command_ends(steps: Steps, a: int, kill: bool) -> _Ends:
    state = steps.state
    if not st.command_lives(state, a) or not st.finds_command(state, a, steps.rules):
        return (("", {}),)
    gone = {a + st.COMMAND: end_of_command(state, a), a + st.ACTUAL_END: st.BY_KILL}
    if kill:
        dying = {a + st.COMMAND: st.DYING, a + st.ACTUAL_END: st.BY_KILL}
        return (("the command is gone", gone), ("the command dies but is not gone yet", dying))
    return (("the command dies", gone), ("the command ignores it", {}))


def _other_process_ends(steps: Steps, a: int, kill: bool) -> _Ends:
    state, left = steps.state, steps.state[a + st.OTHER_PROCESS]
    if left == st.STUCK or not st.finds_other_process(state, a, steps.rules):
        return (("", {}),)
    dies = ("the remaining process dies", {a + st.OTHER_PROCESS: st.NOBODY})
    if left in (st.FORK_CHAIN, st.LOOSE_CHAIN):
        return (dies, ("a fork chain escapes", {}))
    return (dies,) if kill else (dies, ("the remaining process ignores it", {}))


def _runners_end(steps: Steps, a: int, kill: bool) -> dict[int, int]:
    """Returns how the sweep changes the runners, which carry the token as well."""
    state = steps.state
    ends = {}
    for runner in st.RUNNERS:
        if st.CHECK_CLAIM < state[a + runner] < st.RUNNER_GONE:
            if kill:
                ends[a + runner] = st.RUNNER_GONE
            else:
                ends[a + st.SIGNALS] = state[a + st.SIGNALS] | st.TERM
    return ends
