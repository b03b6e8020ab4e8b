"""The scheduler's loop: starts the job, observes the open attempt, and performs the decisions of `reconcile`.

A round reads the lock of the GPU and then observes the attempt. An observation reads the claim and then the
result. The scan for processes and the commit follow. The loop performs committed actions one at a time, so
that a crash can happen before each of them.

The command `cancel` or `preempt` runs the same rounds while no scheduler runs, but starts nothing.
"""

from __future__ import annotations

from gpu_scheduler.core.scheduling import actions as act
from tests.protocol import state as st
from tests.protocol import stops
from tests.protocol.adopted import next_job_state
from tests.protocol.commits import commit
from tests.protocol.decisions import (
    ObservedAttempt,
    command_round_answers,
    reconcile_answers,
    release_answers,
)
from tests.protocol.gpu import FOREIGN, counts_as_foreign, read_lock
from tests.protocol.observation import finds_process, misread_withdrawal, observe
from tests.protocol.requests import carry_out_request
from tests.protocol.steps import STARTED, STEP, Steps
from tests.protocol.sweep import sweep


def steps_of_loop(steps: Steps) -> None:
    """Adds the next steps of the loop or, if it is down, its start."""
    state = steps.state
    loop = state[st.LOOP]
    if loop == st.DOWN:
        after = bytearray(state)
        after[st.LOOP], after[st.ROUNDS] = st.IDLE, st.SCHEDULER
        for a in st.ATTEMPTS:
            if not steps.rules.release_in_store and after[a + st.STORED_OUTCOME] > st.OPEN:
                after[a + st.RELEASED] = 1
        steps.put(STARTED, "LOOP starts", after)
    elif loop == st.IDLE:
        _idle(steps)
    elif loop == st.OBSERVE:
        _observe_after_locks(steps)
    elif loop == st.READ:
        _read_second(steps)
    elif loop == st.RECONCILE:
        _reconcile(steps, st.attempt(state[st.NEWEST]))
    elif loop in st.LAUNCHING:
        _launch(steps)
    else:
        _perform(steps, st.attempt(state[st.NEWEST]))


def _idle(steps: Steps) -> None:
    state, rules = steps.state, steps.rules
    job, number = state[st.JOB], state[st.NEWEST]
    places = not st.is_command_round(state) or not rules.placing_off
    if state[st.ADOPT] and job == st.QUEUED and rules.requests_wait:
        if number < 2 and places:
            _watch(steps, number + 1)
    elif job in (st.QUEUED, st.HELD) and state[st.CANCEL_REQUEST] == 1:
        is_running = job == st.QUEUED and state[st.ADOPT] and st.process_lives(state)
        broken = "I20 the job is cancelled while its adopted process runs" if is_running else None
        steps.add(STEP, "LOOP commits: job cancelled", {st.JOB: st.FINISHED, st.CANCEL_REQUEST: 2}, broken)
    elif job not in st.ACTIVE and state[st.PREEMPT_REQUESTS]:
        steps.add(STEP, "LOOP commits: the job does not run, preempt refused", {st.PREEMPT_REQUESTS: 0})
    elif job == st.QUEUED and number < 2:
        released = not number or state[st.attempt(number) + st.RELEASED]
        if places and (released or not rules.job_waits_for_processes):
            read_lock(steps)
    elif job == st.HELD and state[st.RETRY_REQUEST] == 1:
        steps.add(STEP, "LOOP commits: retry, queued", {st.JOB: st.QUEUED, st.RETRY_REQUEST: 2})
    elif job in st.ACTIVE and carry_out_request(steps):
        pass  # requests come first
    elif job in st.ACTIVE:
        # A lock of the scheduler's own runner may have been read at any earlier moment. Any other lock makes
        # no difference to an open attempt.
        if places and st.runner_of(state[st.GPU_LOCK]) and rules.locks_first:
            read_lock(steps)
        if rules.claim_first:
            _observe_claim(steps, st.READ)
        else:
            _read_result(steps, st.attempt(number), st.READ)
    for k in (1, 2):
        if state[st.attempt(k) + st.STORED_OUTCOME] > st.OPEN and not state[st.attempt(k) + st.RELEASED]:
            _release(steps, k)


def _watch(steps: Steps, number: int) -> None:
    """Adds the start of a watcher of the adopted process, or the end of its job after a reboot.

    Requests about the job wait until the process is watched.
    """
    state = steps.state
    stop = state[st.STOP_REQUEST] if steps.rules.stop_outlives_boot else 0
    job = next_job_state(stop, old_boot=bool(state[st.BOOT]))
    if job == st.STARTING:
        _start(steps, number)
    else:
        ended = {st.JOB: job, st.ADOPT: 0, st.PROCESS_WITHDRAWN: 0, st.STOP_REQUEST: 0}
        name = "held" if job == st.HELD else "cancelled"
        steps.add(STEP, f"LOOP commits: the machine has restarted, {name}", ended)


def _observe_after_locks(steps: Steps) -> None:
    state = steps.state
    if state[st.JOB] in st.ACTIVE:
        _observe_claim(steps, st.READ)
    elif state[st.CANCEL_REQUEST] == 1:
        steps.add(STEP, "LOOP finds a request, which comes first", {st.LOOP: st.IDLE})
    elif state[st.OBSERVED_LOCK]:
        steps.add(STEP, "LOOP waits for the GPU", {st.LOOP: st.IDLE}, FOREIGN)
    else:
        _start(steps, state[st.NEWEST] + 1)


def _observe_claim(steps: Steps, then: int) -> None:
    state, rules, a = steps.state, steps.rules, st.attempt(steps.state[st.NEWEST])
    seen = st.observed_claim(state, a, rules)
    broken = FOREIGN if counts_as_foreign(state, state[st.OBSERVED_LOCK], seen, rules) else None
    label = f"LOOP observes: claim {st.CLAIMS[seen]}"
    steps.add(STEP, label, {st.LOOP: then, st.OBSERVED_CLAIM: seen}, broken)


def _start(steps: Steps, number: int) -> None:
    state, a = steps.state, st.attempt(number)
    cancelled = state[st.CANCEL_EVER_REQUESTED] and not state[st.ADOPT]
    broken = "I6 a cancelled job is started again" if cancelled else None
    if not steps.rules.record_first:
        free = _free_runner(state, a)
        if free:
            spawned = {a + free: st.CHECK_CLAIM, st.LOOP: st.MAKE}
            steps.add(STEP, "LOOP spawns a runner before it records the attempt", spawned)
        return
    opened = {a + st.STORED_OUTCOME: st.OPEN, a + st.BOOTED: state[st.BOOT], a + st.LAUNCHES: 1}
    opened[a + st.WATCHES] = state[st.ADOPT]
    steps.add(
        STEP,
        f"LOOP commits starting: attempt {number}",
        {st.LOOP: st.MAKE, st.JOB: st.STARTING, st.NEWEST: number, **opened},
        broken,
    )


def _free_runner(state: bytes, a: int) -> int:
    return next((runner for runner in st.RUNNERS if not state[a + runner]), 0)


def _launch(steps: Steps) -> None:
    state = steps.state
    loop, number = state[st.LOOP], state[st.NEWEST]
    a = st.attempt(number or 1)
    if not steps.rules.record_first:
        opened = {st.JOB: st.STARTING, st.NEWEST: 1, a + st.STORED_OUTCOME: st.OPEN, a + st.FOLDER: st.MADE}
        steps.add(STEP, "LOOP commits starting", {st.LOOP: st.IDLE, **opened})
    elif loop == st.MAKE:
        made = state[a + st.FOLDER] == st.MADE
        to = {st.LOOP: st.SPAWN if made else st.WRITE_SPEC, a + st.FOLDER: st.MADE if made else st.HALF_MADE}
        steps.add(STEP, "LOOP finds the folder" if made else "LOOP makes the folder", to)
    elif loop == st.WRITE_SPEC:
        steps.add(STEP, "LOOP writes spec.json", {st.LOOP: st.SPAWN, a + st.FOLDER: st.MADE})
    elif not state[st.MACHINE_ENDING]:
        free = _free_runner(state, a)
        name = "a runner" if free == st.RUNNER1 else "another runner"
        spawned = {a + free: st.CHECK_CLAIM} if free else {}
        steps.add(STEP, f"LOOP spawns {name} of attempt {number}", {st.LOOP: st.IDLE, **spawned})


def _read_second(steps: Steps) -> None:
    state, a = steps.state, st.attempt(steps.state[st.NEWEST])
    if not steps.rules.claim_first:
        _observe_claim(steps, st.RECONCILE)
    elif not steps.rules.locks_first and counts_as_foreign(
        state, state[st.GPU_LOCK], state[st.OBSERVED_CLAIM], steps.rules
    ):
        steps.add(STEP, "LOOP reads the lock of the GPU: a runner holds it", {st.LOOP: st.IDLE}, FOREIGN)
    else:
        _read_result(steps, a, st.RECONCILE)


def _read_result(steps: Steps, a: int, otherwise: int) -> None:
    state = steps.state
    if state[a + st.RESULT]:
        result = state[a + st.RESULT]
        if result == st.GPU_LOST and not steps.rules.lost_claim_uncounted:
            result = st.NOT_STARTED
        for actions in _answers(steps, a, observe(steps, a, result)):
            commit(steps, a, actions)
    else:
        steps.add(STEP, "LOOP observes: no result", {st.LOOP: otherwise})


def _reconcile(steps: Steps, a: int) -> None:
    rules = steps.rules
    view = misread_withdrawal(observe(steps, a), rules)
    for actions in _answers(steps, a, view):
        if not rules.void_first and actions and isinstance(actions[-1], act.VoidClaim):
            actions = reconcile_answers(view._replace(claim=st.CLAIM_VOID))[0]
        commit(steps, a, actions)


def _answers(steps: Steps, a: int, view: ObservedAttempt) -> tuple[tuple[act.Action, ...], ...]:
    if not st.is_command_round(steps.state) or not steps.rules.only_stopped:
        return reconcile_answers(view)
    return command_round_answers(view, stops.is_asked_to_stop(steps.state, a, steps.rules))


def _release(steps: Steps, number: int) -> None:
    """Adds the release of an ended attempt's GPUs or, if processes are left, a sweep that ends them."""
    state, rules, a = steps.state, steps.rules, st.attempt(number)
    found = finds_process(state, a, rules)
    missed = state[a + st.OTHER_PROCESS] in (st.FORK_CHAIN, st.LOOSE_CHAIN) and not finds_process(
        state, a, rules, chains=False
    )
    if not found or missed:
        steps.add(
            STEP, f"LOOP finds no process of attempt {number} and releases its GPUs", {a + st.RELEASED: 1}
        )
    was_asked = state[st.CANCEL_EVER_REQUESTED] or state[st.EVER_PREEMPTED]
    if not found or not rules.release_sweep or (st.is_command_round(state) and not was_asked):
        return
    for actions in release_answers(True, state[a + st.SWEPT]):
        for action in actions:
            if isinstance(action, act.Sweep):
                sweep(steps, f"LOOP (attempt {number})", a, {}, kill=action.kill)


def _perform(steps: Steps, a: int) -> None:
    state, rules, loop = steps.state, steps.rules, steps.state[st.LOOP]
    holder = st.reachable_runner(state, a, rules)
    idle = {st.LOOP: st.IDLE}
    if loop == st.VOID_CLAIM:
        if state[a + st.CLAIM]:
            steps.add(STEP, "LOOP finds a claim", idle)
        else:
            folder = max(st.HALF_MADE, state[a + st.FOLDER])
            steps.add(STEP, "LOOP voids the claim", {**idle, a + st.CLAIM: st.VOID, a + st.FOLDER: folder})
    elif loop == st.WRITE_STOP:
        stop = stops.replaced_by(state[st.PENDING_STOP], state[a + st.STOP])
        written = {a + st.STOP: stop} if stop and state[a + st.FOLDER] else {}
        label = f"LOOP writes stop: {stops.name_of(stop)}" if stop else "LOOP finds a stronger stop"
        steps.add(STEP, label, {st.LOOP: st.SIGNAL, **written})
    elif loop == st.SIGNAL:
        signalled = {a + st.SIGNALS: state[a + st.SIGNALS] | st.USR1} if holder else {}
        steps.add(STEP, "LOOP signals the runner", {**idle, **signalled})
    elif loop == st.KILL_RUNNER and rules.kill_runner_first:
        gone = {a + st.RUNNERS[holder - 1]: st.RUNNER_GONE} if holder else {}
        steps.add(STEP, "LOOP kills the overdue runner", {**idle, **gone})
    elif loop == st.KILL_RUNNER:
        end = {a + st.COMMAND: st.ZOMBIE, a + st.ACTUAL_END: st.BY_KILL} if st.command_lives(state, a) else {}
        steps.add(STEP, "LOOP kills the command of the overdue runner", {**idle, **end})
    else:
        sweep(steps, "LOOP", a, idle, kill=loop == st.KILL_ALL)
