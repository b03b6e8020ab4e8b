"""Reduces the number of states: returns one representative of all states that are equivalent."""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol.rules import Rules


def canonical(state: bytearray, rules: Rules) -> bytes:
    """Returns the state that represents all states that are equivalent to this one.

    Clears fields that nothing reads any more, and immediately takes steps that affect no other process.
    """
    for a in st.ATTEMPTS:
        if not state[a + st.STORED_OUTCOME] and not state[a + st.RUNNER1]:
            continue
        _normalize_runners(state, a, rules)
        _clear_irrelevant(state, a)
    holder = st.runner_of(state[st.GPU_LOCK])
    if rules.kernel_lock and holder is not None:
        attempt, which = holder
        if not st.is_alive(state[attempt + st.RUNNERS[which - 1]]):
            state[st.GPU_LOCK] = st.NO_LOCK
    if state[st.JOB] == st.FINISHED:  # a request about a finished job is refused
        state[st.CANCEL_REQUEST] = min(state[st.CANCEL_REQUEST] * 2, 2)
        state[st.PREEMPT_REQUESTS] = 0
    if state[st.JOB] == st.QUEUED and state[st.NEWEST]:
        _forget_lost_gpu(state, state[st.NEWEST])
    loop = state[st.LOOP]
    if loop != st.OBSERVE:
        state[st.OBSERVED_LOCK] = st.NO_LOCK
    if loop not in (st.READ, st.RECONCILE):
        state[st.OBSERVED_CLAIM] = 0
    if loop != st.WRITE_STOP:
        state[st.PENDING_STOP] = 0
    return bytes(state)


def _normalize_runners(state: bytearray, a: int, rules: Rules) -> None:
    claim = state[a + st.CLAIM]
    if claim and rules.claims and rules.record_first and rules.attempt_first:
        for number, runner in enumerate(st.RUNNERS, 1):
            if state[a + runner] in (st.CHECK_CLAIM, st.LINK_CLAIM) and claim != number:
                state[a + runner] = st.RUNNER_GONE  # a runner that finds another claim can only exit
        if state[st.LOOP] not in st.LAUNCHING:
            state[a + st.LAUNCHES] = 2
    if not state[st.UNLINK]:  # whether the lock file is open matters only if it can be removed
        for runner in st.RUNNERS:
            if state[a + runner] == st.OPEN_LOCK:
                state[a + runner] = st.LOCK_GPU
    if state[a + st.RESULT]:
        state[a + st.STOP] = state[a + st.TERMINATION] = state[a + st.SIGNALS] = 0
        if state[a + st.ACTUAL_END] != st.EXIT_SAVED:
            state[a + st.WITHDRAWN] = state[a + st.EVER_WITHDRAWN] = 0
        # Whether the folder is synced matters only at a reboot.
        if not state[st.REBOOT] and rules.release_first:
            for runner in st.RUNNERS:
                if state[a + runner] == st.EXIT:
                    state[a + runner] = st.RUNNER_GONE
    if state[a + st.LINK] and not st.has_runner(state, a):
        state[a + st.LINK] = st.INTACT
    if not st.has_runner(state, a):
        state[a + st.SIGNALS] = state[a + st.TERMINATION] = state[a + st.IGNORED] = 0
        if state[a + st.COMMAND] == st.ZOMBIE:
            state[a + st.COMMAND] = st.GONE
        elif state[a + st.COMMAND] == st.WATCHED:
            state[a + st.COMMAND] = st.NO_COMMAND
        if state[a + st.OTHER_PROCESS] == st.OWN_SESSION and not st.command_lives(state, a):
            state[a + st.OTHER_PROCESS] = st.LOST
        elif state[a + st.OTHER_PROCESS] == st.FORK_CHAIN and state[a + st.RESULT] == st.NONE:
            state[a + st.OTHER_PROCESS] = st.LOOSE_CHAIN


def _clear_irrelevant(state: bytearray, a: int) -> None:
    if state[a + st.COMMAND] not in (st.COMMAND_RUNS, st.DYING):
        state[a + st.HIDDEN] = state[a + st.SAVING] = 0
        if state[a + st.OTHER_PROCESS] != st.IN_SESSION:
            state[a + st.COMMAND_RECORDED] = 0
    if _is_over(state, a):
        state[a + 1 : a + st.FIELDS] = bytes(st.FIELDS - 1)
        state[a + st.RELEASED] = 1


def _is_over(state: bytearray, a: int) -> bool:
    """Returns whether an attempt is recorded as ended, its GPUs are released, and no process is left."""
    if state[a + st.STORED_OUTCOME] <= st.OPEN or not state[a + st.RELEASED] or st.has_runner(state, a):
        return False
    return state[a + st.COMMAND] in (st.NO_COMMAND, st.GONE) and not state[a + st.OTHER_PROCESS]


def _forget_lost_gpu(state: bytearray, number: int) -> None:
    """Clears an attempt that lost its GPU, so that a job can lose its GPU any number of times.

    The same holds for the second watcher of an adopted process.

    An attempt that is still named by `preempt` or by a copy is kept.
    """
    a = st.attempt(number)
    again: tuple[int, ...] = (st.GPU_LOST,)
    if state[st.PROCESS] and number == 2:
        again = (st.INTERRUPTED, st.NOT_STARTED, st.PREEMPTED)
    # The command `preempt` concerns only the first attempt.
    named = state[st.COPIED] == number or (number == 1 and state[st.PREEMPT_CLI])
    if state[a + st.STORED_OUTCOME] in again and _is_over(state, a) and not named:
        state[st.NEWEST] = number - 1
        state[a : a + st.FIELDS] = bytes(st.FIELDS)
