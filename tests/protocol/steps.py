"""Collects the steps that are possible in one state."""

from __future__ import annotations

from collections.abc import Mapping

from tests.protocol import state as st
from tests.protocol.canonical import canonical
from tests.protocol.rules import Rules

#: Kinds of steps. STEP: a step of the scheduler or the kernel, which happens eventually; OWN: a step of the
#: job's command, which may never happen; STARTED: a start of the scheduler; FAULT: a fault or a user action;
#: OTHER_ENDS: the end of the other program, which claims the GPU.
STEP, OWN, STARTED, FAULT, OTHER_ENDS = range(5)

#: A step: its kind, its label, the resulting state, and the invariant that the step itself breaks.
Step = tuple[int, str, bytes, "str | None"]
_NO_CHANGE: Mapping[int, int] = {}


class Steps:
    """The steps that are possible in `state`."""

    def __init__(self, state: bytes, rules: Rules) -> None:
        self.state = state
        self.rules = rules
        self.found: list[Step] = []

    def add(
        self, kind: int, label: str, changes: Mapping[int, int] = _NO_CHANGE, broken: str | None = None
    ) -> None:
        """Adds a step that sets these fields."""
        after = bytearray(self.state)
        for field, value in changes.items():
            after[field] = value
        self.found.append((kind, label, canonical(after, self.rules), broken))

    def put(self, kind: int, label: str, after: bytearray, broken: str | None = None) -> None:
        """Adds a step whose result is the state `after`."""
        self.found.append((kind, label, canonical(after, self.rules), broken))


def end_of_command(state: bytes | bytearray, a: int) -> int:
    """Returns the state of a command that ends: a zombie if a runner will collect it, otherwise gone."""
    return st.ZOMBIE if st.owner(state, a) else st.GONE


def terminate(
    steps: Steps,
    kind: int,
    label: str,
    a: int,
    changes: Mapping[int, int],
    *,
    machine: bool = False,
    preempts: bool = False,
    broken: str | None = None,
) -> None:
    """Adds SIGTERM to the command, which dies, handles the signal and exits normally, or ignores it.

    preempts: it may also save its work, and exit now or later; broken: the invariant that the signal breaks.
    """
    if steps.state[a + st.WATCHES]:
        _terminate_process(steps, kind, label, changes, machine=machine, preempts=preempts, broken=broken)
        return
    command, end = steps.state[a + st.COMMAND], end_of_command(steps.state, a)
    by_machine = {a + st.MACHINE_ENDED: 1} if machine else {}
    if command in (st.FORKED, st.SCRIPT):
        died = {a + st.COMMAND: end, a + st.ACTUAL_END: st.NOT_BEGUN}
        steps.add(kind, f"{label}: command.sh dies", {**changes, **died, **by_machine}, broken)
    elif command == st.COMMAND_RUNS:
        died = {a + st.COMMAND: end, a + st.ACTUAL_END: st.BY_TERM}
        steps.add(kind, f"{label}: the command dies", {**changes, **died, **by_machine}, broken)
        if preempts or steps.state[a + st.SAVING]:
            saved = {**changes, a + st.COMMAND: end, a + st.ACTUAL_END: st.EXIT_SAVED}
            steps.add(kind, f"{label}: the command saves its work and exits 0", saved, broken)
            steps.add(kind, f"{label}: the command begins to save", {**changes, a + st.SAVING: 1}, broken)
        else:
            done = {**changes, a + st.COMMAND: end, a + st.ACTUAL_END: st.EXIT_0}
            steps.add(kind, f"{label}: the command exits 0", done, broken)
        if not steps.state[a + st.SAVING]:
            steps.add(kind, f"{label}: the command ignores it", changes, broken)
    else:
        steps.add(kind, label, changes, broken)


def _terminate_process(
    steps: Steps,
    kind: int,
    label: str,
    changes: Mapping[int, int],
    *,
    machine: bool,
    preempts: bool,
    broken: str | None,
) -> None:
    """Adds SIGTERM to the adopted process, which reacts like a command."""
    if not st.process_lives(steps.state):
        steps.add(kind, label, changes, broken)
        return
    saves = preempts or steps.state[st.PROCESS] == st.PROCESS_SAVES
    ends = {
        "dies": st.PROCESS_ENDED + (st.BY_MACHINE if machine else st.BY_TERM),
        "exits 0": st.PROCESS_ENDED + (st.EXIT_SAVED if saves else st.EXIT_0),
    }
    goes_on = {"begins to save": st.PROCESS_SAVES} if saves else {}
    if steps.state[st.PROCESS] == st.PROCESS_RUNS:
        goes_on["ignores it"] = st.PROCESS_RUNS
    for reaction, process in {**ends, **goes_on}.items():
        steps.add(kind, f"{label}: the process {reaction}", {**changes, st.PROCESS: process}, broken)
