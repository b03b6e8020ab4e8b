"""The command of an attempt, and the process that it may leave behind.

While the runner waits for the work that a command has left in the background, and obeys requests to stop it,
the command counts as running. OTHER_PROCESS is what the runner no longer waits for.
"""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol.steps import FAULT, OWN, STEP, Steps, end_of_command


def steps_of_command(steps: Steps, a: int, name: str) -> None:
    state, end = steps.state, end_of_command(steps.state, a)
    command = state[a + st.COMMAND]
    if command == st.FORKED:
        steps.add(STEP, f"{name}: command.sh runs", {a + st.COMMAND: st.SCRIPT})
    elif command == st.SCRIPT:
        noted = steps.rules.command_recorded and state[a + st.LINK] not in (st.REPLACED, st.REMOVED)
        begun = {a + st.COMMAND: st.COMMAND_RUNS, a + st.COMMAND_RECORDED: int(noted)}
        steps.add(STEP, f"{name} records its identity and begins", begun)
        failed = {a + st.COMMAND: end, a + st.ACTUAL_END: st.NOT_BEGUN}
        steps.add(OWN, f"{name}: the check of its environment fails", failed)
    elif command == st.DYING:
        steps.add(STEP, f"{name} is finally gone", {a + st.COMMAND: end})
    else:
        if state[a + st.SAVING]:
            saved = {a + st.COMMAND: end, a + st.ACTUAL_END: st.EXIT_SAVED}
            steps.add(OWN, f"{name} has saved its work and exits 0", saved)
            return
        ended = {a + st.COMMAND: end, a + st.ACTUAL_END: st.EXIT_0}
        steps.add(OWN, f"{name} exits 0", ended)
        steps.add(OWN, f"{name} exits 7", {**ended, a + st.ACTUAL_END: st.EXIT_7})
        # In any other state, a scan could not find the process.
        if not state[a + st.OTHER_PROCESS] and state[a + st.STORED_OUTCOME] <= st.OPEN:
            steps.add(OWN, f"{name} exits 0 and leaves a child", {**ended, a + st.OTHER_PROCESS: st.PLAIN})
            steps.add(OWN, f"{name} exits 0 and leaves an orphan", {**ended, a + st.OTHER_PROCESS: st.ORPHAN})
            left = {**ended, a + st.ACTUAL_END: st.EXIT_LEFT, a + st.OTHER_PROCESS: st.PLAIN}
            steps.add(OWN, f"{name} exits 0 and leaves its work, for which the runner waited in vain", left)
            _behave_badly(steps, a, name)
        if state[st.HIDE] and not state[a + st.HIDDEN]:
            hides = {st.HIDE: state[st.HIDE] - 1, a + st.HIDDEN: 1}
            steps.add(FAULT, f"{name} hides its environment", hides)


def _behave_badly(steps: Steps, a: int, name: str) -> None:
    """Adds steps in which a running command starts a child that hides, or a fork chain."""
    state = steps.state
    if state[st.HIDE]:
        fewer = {st.HIDE: state[st.HIDE] - 1}
        steps.add(
            FAULT,
            f"{name} starts a child that hides its environment",
            {**fewer, a + st.OTHER_PROCESS: st.IN_SESSION},
        )
        away = {**fewer, a + st.OTHER_PROCESS: st.OWN_SESSION}
        steps.add(FAULT, f"{name} starts a child that hides its environment and leaves the session", away)
    if state[st.CHAIN]:
        chain = {st.CHAIN: 0, a + st.OTHER_PROCESS: st.FORK_CHAIN}
        steps.add(FAULT, f"{name} starts a fork chain, whose processes end before a scan finds them", chain)


def steps_of_other_process(steps: Steps, a: int, number: int) -> None:
    left = steps.state[a + st.OTHER_PROCESS]
    if left in (st.STUCK, st.FORK_CHAIN, st.LOOSE_CHAIN):
        steps.add(STEP, f"OTHER PROCESS {number} is finally gone", {a + st.OTHER_PROCESS: st.NOBODY})
