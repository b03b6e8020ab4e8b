"""The actions of users: `cancel` and `preempt` (also while no scheduler is up), and `retry`.

`cancel` and `preempt` record their request. If no scheduler is up, they also write `stop` into the attempt
folder and wake the runner. `cancel` then waits for the end of the attempt, and ends processes whose runner is
gone. `preempt` leaves them to the next scheduler.
"""

from __future__ import annotations

from tests.protocol import state as st
from tests.protocol import stops
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
    if state[st.JOB] in st.ACTIVE:
        _request_preemption(steps)
    if state[st.PREEMPT_CLI]:
        _preempt(steps)


def _request_preemption(steps: Steps) -> None:
    """Adds the request of `preempt`, whose first and second use have different ids."""
    state, pending = steps.state, steps.state[st.PREEMPT_REQUESTS]
    number = st.FIRST_ID if not state[st.EVER_PREEMPTED] else st.SECOND_ID
    asked = {st.EVER_PREEMPTED: 1, st.PREEMPT_REQUESTS: pending | 1 << number}
    if state[st.PREEMPT]:
        label = f"USER preempts ({stops.name_of(stops.preemption(number))}): the request is recorded"
        steps.add(FAULT, label, {st.PREEMPT: state[st.PREEMPT] - 1, **asked})
    # One attempt is enough for `preempt` without a scheduler, and each of its steps multiplies the states.
    if state[st.OFFLINE] and not state[st.PREEMPT_CLI] and state[st.NEWEST] == 1:
        stop = stops.preemption(number)
        label = f"USER runs `preempt` ({stops.name_of(stop)}): the request is recorded"
        begun = {st.PREEMPT_CLI: st.PREEMPT_OBSERVES, st.PREEMPT_CLI_STOP: stop}
        steps.add(FAULT, label, {st.OFFLINE: state[st.OFFLINE] - 1, **asked, **begun})
    if state[st.FORCE]:
        label = "USER preempts with --force: the request is recorded"
        steps.add(FAULT, label, {st.FORCE: 0, st.PREEMPT_REQUESTS: pending | 1 << st.FORCE_ID})


def _preempt(steps: Steps) -> None:
    state, rules, cli = steps.state, steps.rules, steps.state[st.PREEMPT_CLI]
    a, done = st.attempt(1), {st.PREEMPT_CLI: st.PREEMPT_DONE}
    if cli in (st.PREEMPT_OBSERVES, st.PREEMPT_WAITS):
        steps.add(FAULT, "PREEMPT is killed", done)
        _wait_for_withdrawal(steps, a)
    elif cli == st.PREEMPT_READS_STOP:
        wanted = stops.replaced_by(state[st.PREEMPT_CLI_STOP], state[a + st.STOP])
        if wanted:
            then = {st.PREEMPT_CLI: st.PREEMPT_STOPS, st.PREEMPT_CLI_STOP: wanted}
            steps.add(STEP, "PREEMPT reads `stop`: nothing stronger", then)
        else:
            steps.add(STEP, "PREEMPT reads `stop`: a cancel", {st.PREEMPT_CLI: st.PREEMPT_SIGNALS})
    elif cli == st.PREEMPT_STOPS:
        written = {a + st.STOP: state[st.PREEMPT_CLI_STOP]} if state[a + st.FOLDER] else {}
        steps.add(STEP, "PREEMPT writes `stop`", {st.PREEMPT_CLI: st.PREEMPT_SIGNALS, **written})
    elif st.reachable_runner(state, a, rules):
        told = {a + st.SIGNALS: state[a + st.SIGNALS] | st.USR1, st.PREEMPT_CLI: st.PREEMPT_WAITS}
        steps.add(STEP, "PREEMPT signals the runner", told)
    else:
        steps.add(STEP, "PREEMPT finds no runner", {st.PREEMPT_CLI: st.PREEMPT_WAITS})


def _wait_for_withdrawal(steps: Steps, a: int) -> None:
    """Adds the steps of a `preempt` that waits. It writes `stop` once if no scheduler is up, even later."""
    state, rules = steps.state, steps.rules
    number = stops.preemption_id(state[st.PREEMPT_CLI_STOP]) or 0
    pending = state[st.PREEMPT_REQUESTS] & ~(1 << number)
    done = {st.PREEMPT_CLI: st.PREEMPT_DONE}
    is_open = state[st.JOB] in st.ACTIVE and state[st.NEWEST] == 1
    if not is_open or state[a + st.RESULT] or state[a + st.CLAIM] == st.VOID:
        steps.add(STEP, "PREEMPT: no attempt is open", done)
    elif stops.preemption_id(stops.observed_stop(state, a, rules)[1]) == number:
        steps.add(STEP, "PREEMPT sees that it is withdrawn", {**done, st.PREEMPT_REQUESTS: pending})
    elif state[st.PREEMPT_CLI] == st.PREEMPT_OBSERVES and state[st.LOOP] == st.DOWN:
        saw = {st.PREEMPT_CLI: st.PREEMPT_READS_STOP}
        steps.add(STEP, "PREEMPT: no scheduler is up, and an attempt is open", saw)


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
    stop, _ = stops.observed_stop(state, a, rules)
    lives = claim in (st.CLAIM_LIVE, st.CLAIM_UNCLAIMED) and not state[a + st.RESULT]
    if rules.cli_repeats and lives and stop != st.STOP_CANCEL and state[a + st.FOLDER]:
        steps.add(STEP, "CLI finds that its `stop` was replaced", {st.CLI: st.CLI_STOPS})
    if state[a + st.RESULT] or claim in (st.CLAIM_NONE, st.CLAIM_VOID, st.CLAIM_UNLOCKED):
        steps.add(STEP, "CLI has nothing more to do", done)
    elif claim == st.CLAIM_DEAD and not rules.cli_sweeps:
        steps.add(STEP, "CLI leaves the remaining processes to the next scheduler", done)
    elif claim == st.CLAIM_DEAD:
        sweep(steps, "CLI", a, done, kill=True)
