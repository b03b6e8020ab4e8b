"""The actions of users: `cancel`, `preempt` and `retry`, and the commands `cancel` and `preempt`.

Each records its request. The two commands then wait until the request is answered and the attempt has ended.
If nobody runs rounds, they take the scheduler's lock and run rounds themselves, which end attempts but start
none (`loop`). A scheduler that starts, and a second command, wait for the lock, which the kernel releases.
"""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol import stops
from tests.protocol.steps import FAULT, STEP, Steps


def steps_of_users(steps: Steps) -> None:
    """Adds the actions that a user can take now, and the next steps of the commands that run."""
    state = steps.state
    waits = state[st.CLI] in (st.CLI_WAITS, st.CLI_FREE)
    if state[st.CANCEL] and state[st.JOB] != st.FINISHED and not waits:
        wished = {st.CANCEL_EVER_REQUESTED: 1, st.CANCEL_REQUEST: 1, st.CLI: st.CLI_WAITS}
        steps.add(FAULT, "USER cancels: the request is recorded", {st.CANCEL: state[st.CANCEL] - 1, **wished})
    if waits:
        _cancel(steps)
    if (
        state[st.RETRY]
        and state[st.JOB] == st.HELD
        and state[st.NEWEST] < 2
        and not state[st.CANCEL_EVER_REQUESTED]
    ):
        steps.add(FAULT, "USER retries: the request is recorded", {st.RETRY: 0, st.RETRY_REQUEST: 1})
    if state[st.JOB] in st.ACTIVE:
        _request_preemption(steps)
    if state[st.PREEMPT_CLI]:
        _preempt(steps)


def _request_preemption(steps: Steps) -> None:
    """Adds the request of `preempt`, whose first and second use have different ids."""
    state, pending = steps.state, steps.state[st.PREEMPT_REQUESTS]
    number = st.FIRST_ID if not state[st.EVER_PREEMPTED] else st.SECOND_ID
    asked = {st.EVER_PREEMPTED: 1, st.PREEMPT_REQUESTS: pending | 1 << number}
    name = stops.name_of(stops.preemption(number))
    if state[st.PREEMPT]:
        label = f"USER preempts ({name}): the request is recorded"
        steps.add(FAULT, label, {st.PREEMPT: state[st.PREEMPT] - 1, **asked})
    # One attempt is enough for the command `preempt`, and each of its steps multiplies the states.
    if state[st.OFFLINE] and not state[st.PREEMPT_CLI] and state[st.NEWEST] == 1:
        begun = {st.OFFLINE: state[st.OFFLINE] - 1, st.PREEMPT_CLI: 1 + number}
        steps.add(FAULT, f"USER runs `preempt` ({name}): the request is recorded", {**asked, **begun})
    if state[st.FORCE]:
        label = "USER preempts with --force: the request is recorded"
        steps.add(FAULT, label, {st.FORCE: 0, st.PREEMPT_REQUESTS: pending | 1 << st.FORCE_ID})


def _cancel(steps: Steps) -> None:
    state, gone = steps.state, {st.CLI: st.CLI_NONE}
    if state[st.JOB] == st.FINISHED and all(_is_released(steps, a) for a in st.ATTEMPTS):
        _wait(steps, "CANCEL", st.CANCEL_ROUNDS, gone, {st.CLI: st.CLI_REPORTED})
    elif steps.rules.rounds_locked:
        _wait(steps, "CANCEL", st.CANCEL_ROUNDS, gone)
    elif state[st.CLI] == st.CLI_FREE:
        begun = {st.CLI: st.CLI_WAITS, st.LOOP: st.IDLE, st.ROUNDS: state[st.ROUNDS] | st.CANCEL_ROUNDS}
        steps.add(STEP, "CANCEL runs rounds", begun)
    elif not state[st.ROUNDS]:
        steps.add(STEP, "CANCEL sees that nobody runs rounds", {st.CLI: st.CLI_FREE})


def _preempt(steps: Steps) -> None:
    state, gone = steps.state, {st.PREEMPT_CLI: 0}
    is_answered = not state[st.PREEMPT_REQUESTS] & 1 << state[st.PREEMPT_CLI] - 1
    # Without an open request, the attempt has ended or its runner has withdrawn the preemption.
    is_over = not state[st.STOP_REQUEST] or state[st.NEWEST] != 1 or state[st.JOB] not in st.ACTIVE
    reported = is_answered and is_over and _is_released(steps, st.FIRST)
    _wait(steps, "PREEMPT", st.PREEMPT_ROUNDS, gone, gone if reported else None)


def _is_released(steps: Steps, a: int) -> bool:
    """Returns whether the attempt is open, or no process of it is left."""
    is_open = steps.state[a + st.STORED_OUTCOME] <= st.OPEN
    return is_open or bool(steps.state[a + st.RELEASED]) or not steps.rules.waits_for_processes


def _wait(
    steps: Steps, name: str, bit: int, gone: dict[int, int], reported: dict[int, int] | None = None
) -> None:
    """Adds the next steps of a command that waits, with or without running rounds.

    bit: its bit of ROUNDS; gone: the change if it ends early; reported: the change if what it waits for has
    happened.
    """
    state, rules, rounds = steps.state, steps.rules, steps.state[st.ROUNDS]
    released = {st.ROUNDS: rounds & ~bit, st.LOOP: st.DOWN} if rounds & bit else {}
    steps.add(FAULT, f"{name} is killed", {**released, **gone})
    if rounds & bit and state[st.LOOP] != st.IDLE:
        return  # it looks only between its rounds
    a = st.attempt(state[st.NEWEST] or 1)
    if reported is not None:
        steps.add(STEP, f"{name} reports the end", {**released, **reported})
    elif not rounds:
        steps.add(STEP, f"{name} takes the lock and runs rounds", {st.ROUNDS: bit, st.LOOP: st.IDLE})
    elif rounds & bit and rules.ends_unwatched and _needs_launch(state, a):
        steps.add(STEP, f"{name} leaves the process to the next scheduler", {**released, **gone})
    elif rounds & bit and rules.ends_unlocked and st.observed_claim(state, a, rules) == st.CLAIM_UNLOCKED:
        steps.add(STEP, f"{name} reports that it cannot observe the runner", {**released, **gone})


def _needs_launch(state: bytes, a: int) -> bool:
    """Returns whether only another launch can end the job: nobody watches its adopted process."""
    return bool(state[st.ADOPT]) and (state[st.JOB] == st.QUEUED or not state[a + st.CLAIM])
