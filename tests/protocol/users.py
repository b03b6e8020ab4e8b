"""The actions of users: `cancel` (also while no scheduler is up), `retry`, and preemption.

`cancel` records its request. If no scheduler is up, it also writes `stop` into the attempt folder, wakes the
runner, waits for the end of the attempt, and ends processes whose runner is gone.
"""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol.steps import FAULT, STEP, Steps
from tests.protocol.sweep import sweep


def steps_of_users(steps: Steps) -> None:
    """Adds the actions that a user can take now, and the next steps of a running `cancel` command."""
    state = steps.state
    if state[st.CANCEL] and state[st.JOB] != st.FINISHED:
        wished = {st.CANCEL: 0, st.CANCEL_EVER_REQUESTED: 1, st.CANCEL_REQUEST: 1, st.CLI: st.CLI_REQUESTS}
        steps.add(FAULT, "USER cancels: the request is recorded", wished)
    if st.CLI_NONE < state[st.CLI] < st.CLI_DONE:
        _cancel(steps)
    if (
        state[st.RETRY]
        and state[st.JOB] == st.HELD
        and state[st.NEWEST] < 2
        and not state[st.CANCEL_EVER_REQUESTED]
    ):
        steps.add(FAULT, "USER retries: the request is recorded", {st.RETRY: 0, st.RETRY_REQUEST: 1})
    if state[st.PREEMPT] and state[st.JOB] == st.RUNNING:
        steps.add(FAULT, "USER preempts: the request is recorded", {st.PREEMPT: 0, st.PREEMPT_REQUEST: 1})


def _cancel(steps: Steps) -> None:
    state, rules, cli = steps.state, steps.rules, steps.state[st.CLI]
    seen, runner = divmod(state[st.CLI_OBSERVED], 4)
    a = st.attempt(seen or state[st.NEWEST] or 1)
    if cli < st.CLI_WAITS:
        steps.add(FAULT, "CLI is killed", {st.CLI: st.CLI_KILLED})
    if cli == st.CLI_REQUESTS:
        if state[st.LOOP] == st.DOWN:
            steps.add(STEP, "CLI: no scheduler is up", {st.CLI: st.CLI_OBSERVES})
        else:
            steps.add(STEP, "CLI: the scheduler is up and will carry out the cancel", {st.CLI: st.CLI_DONE})
    elif cli == st.CLI_OBSERVES:
        if state[st.JOB] in st.ACTIVE and state[a + st.CLAIM] != st.VOID:
            saw = state[st.NEWEST] * 4 + st.reachable_runner(state, a, rules)
            steps.add(STEP, "CLI observes the open attempt", {st.CLI: st.CLI_STOPS, st.CLI_OBSERVED: saw})
        else:
            steps.add(STEP, "CLI: no attempt is open", {st.CLI: st.CLI_DONE})
    elif cli == st.CLI_STOPS:
        written = {a + st.STOP: st.STOP_CANCEL} if state[a + st.FOLDER] else {}
        then = st.CLI_OBSERVES_AGAIN if rules.cli_rechecks_claim else st.CLI_SIGNALS
        steps.add(STEP, "CLI writes `stop`", {st.CLI: then, **written})
    elif cli == st.CLI_OBSERVES_AGAIN:
        saw = seen * 4 + st.reachable_runner(state, a, rules)
        steps.add(STEP, "CLI reads the claim", {st.CLI: st.CLI_SIGNALS, st.CLI_OBSERVED: saw})
    elif cli == st.CLI_SIGNALS:
        lives = runner and st.is_alive(state[a + st.RUNNERS[runner - 1]])
        told = {a + st.SIGNALS: state[a + st.SIGNALS] | st.USR1} if lives else {}
        label = "CLI signals the runner" if runner else "CLI found no runner"
        steps.add(STEP, label, {st.CLI: st.CLI_WAITS, st.CLI_OBSERVED: seen * 4, **told})
    elif cli == st.CLI_WAITS:
        _wait(steps, a)


def _wait(steps: Steps, a: int) -> None:
    state, rules = steps.state, steps.rules
    done = {st.CLI: st.CLI_DONE}
    claim = st.observed_claim(state, a, rules)
    if state[a + st.RESULT] or claim in (st.CLAIM_NONE, st.CLAIM_VOID, st.CLAIM_UNLOCKED):
        steps.add(STEP, "CLI has nothing more to do", done)
    elif claim == st.CLAIM_DEAD and not rules.cli_sweeps:
        steps.add(STEP, "CLI leaves the remaining processes to the next scheduler", done)
    elif claim == st.CLAIM_DEAD:
        sweep(steps, "CLI", a, done, kill=True)
