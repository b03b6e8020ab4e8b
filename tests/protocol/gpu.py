"""The lock of the GPU, another program that takes it, and the loop's reading of it.

The other program, such as `run`, claims the GPU any number of times, whenever it is free. A runner takes the
lock in `runner`. The kernel releases it if the holder dies (`canonical`).
"""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol.rules import Rules
from tests.protocol.steps import FAULT, OTHER_ENDS, STEP, Steps

FOREIGN = "I12 the loop takes the lock of its own runner for another program's"


def steps_of_gpu(steps: Steps) -> None:
    """Adds the steps of the other program, and the removal of the lock file."""
    if steps.state[st.OTHER]:
        _another_program(steps)
    if steps.state[st.UNLINK]:
        _lock_file_is_removed(steps)


def _another_program(steps: Steps) -> None:
    holder = steps.state[st.GPU_LOCK]
    if holder == st.NO_LOCK:
        steps.add(FAULT, "ANOTHER PROGRAM claims the GPU", {st.GPU_LOCK: st.OTHER_PROGRAM})
    elif holder == st.OTHER_PROGRAM:
        steps.add(OTHER_ENDS, "ANOTHER PROGRAM releases the GPU", {st.GPU_LOCK: st.NO_LOCK})


def _lock_file_is_removed(steps: Steps) -> None:
    """Adds the removal of the GPU's lock file. Locks on a removed file keep nobody from locking a new one."""
    state = steps.state
    if state[st.GPU_LOCK] and steps.rules.excuse_unlinked:
        return
    opened = {
        a + runner: st.LOCK_REMOVED
        for a in st.ATTEMPTS
        for runner in st.RUNNERS
        if state[a + runner] == st.LOCK_GPU
    }
    steps.add(FAULT, "SOMEBODY removes the lock file", {st.UNLINK: 0, st.GPU_LOCK: st.NO_LOCK, **opened})


def read_lock(steps: Steps) -> None:
    """Adds the loop's reading of the lock. While another program holds it, no job starts."""
    lock = steps.state[st.GPU_LOCK]
    if lock == st.OTHER_PROGRAM:
        return
    label = "a runner holds it" if lock else "nobody holds it"
    steps.add(STEP, f"LOOP reads the lock of the GPU: {label}", {st.LOOP: st.OBSERVE, st.OBSERVED_LOCK: lock})


def counts_as_foreign(state: bytes, lock: int, claim: int, rules: Rules) -> bool:
    """Returns whether the loop takes the lock of its own runner for that of another program.

    claim: the observed claim of the open attempt. It names the runner of this attempt. If it was removed, the
    store names the runner.
    """
    holder = st.runner_of(lock)
    if holder is None:
        return False
    a, which = st.attempt(state[st.NEWEST]), holder[1]
    if claim in (st.CLAIM_NONE, st.CLAIM_VOID) or not state[a + st.CLAIM]:
        named = rules.stored_runner and state[st.JOB] in (st.RUNNING, st.STOPPING)
    else:
        named = state[a + st.CLAIM] == which
    return holder[0] != a or not named
