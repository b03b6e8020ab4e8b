"""The scheduler's loop: starts the job, observes the open attempt, and performs the decisions of `reconcile`.

A round reads the lock of the GPU and then observes the attempt. An observation reads the claim and then the
result. The scan for processes and the commit follow. The loop performs committed actions one at a time, so
that a crash can happen before each of them.
"""

from __future__ import annotations

from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests.protocol import state as st
from tests.protocol.decisions import ObservedAttempt, describe, reconcile_answers, release_answers
from tests.protocol.gpu import FOREIGN, counts_as_foreign, read_lock
from tests.protocol.rules import Rules
from tests.protocol.steps import STARTED, STEP, Steps
from tests.protocol.sweep import sweep

_OUTCOMES = {
    Outcome.COMPLETED: st.COMPLETED,
    Outcome.FAILED: st.FAILED,
    Outcome.CANCELLED: st.CANCELLED,
    Outcome.INTERRUPTED: st.INTERRUPTED,
    Outcome.NOT_STARTED: st.NOT_STARTED,
    Outcome.PREEMPTED: st.PREEMPTED,
}
_JOBS = {
    JobState.QUEUED: st.QUEUED,
    JobState.RUNNING: st.RUNNING,
    JobState.STOPPING: st.STOPPING,
    JobState.HELD: st.HELD,
    JobState.FINISHED: st.FINISHED,
}
#: The step by which the loop performs an action. Without a step, it observes again.
_NEXT = {
    act.Relaunch: st.MAKE,
    act.VoidClaim: st.VOID_CLAIM,
    act.RequestStop: st.WRITE_STOP,
    act.WakeRunner: st.SIGNAL,
    act.KillRunner: st.KILL_RUNNER,
}


def steps_of_loop(steps: Steps) -> None:
    """Adds the next steps of the loop or, if it is down, its start."""
    state = steps.state
    loop = state[st.LOOP]
    if loop == st.DOWN:
        after = bytearray(state)
        after[st.LOOP] = st.IDLE
        if after[st.CLI] == st.CLI_WAITS:
            after[st.CLI] = st.CLI_DONE  # from now on, the loop carries out the cancel
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
    if job in (st.QUEUED, st.HELD) and state[st.CANCEL_REQUEST] == 1:
        steps.add(STEP, "LOOP commits: job cancelled", {st.JOB: st.FINISHED, st.CANCEL_REQUEST: 2})
    elif job == st.QUEUED and number < 2:
        released = not number or state[st.attempt(number) + st.RELEASED]
        if released or not rules.job_waits_for_processes:
            read_lock(steps)
    elif job == st.HELD and state[st.RETRY_REQUEST] == 1:
        steps.add(STEP, "LOOP commits: retry, queued", {st.JOB: st.QUEUED, st.RETRY_REQUEST: 2})
    elif job in st.ACTIVE:
        # A lock of the scheduler's own runner may have been read at any earlier moment. Any other lock makes
        # no difference to an open attempt.
        if st.runner_of(state[st.GPU_LOCK]) and rules.locks_first:
            read_lock(steps)
        if rules.claim_first:
            _observe_claim(steps, st.READ)
        else:
            _read_result(steps, st.attempt(number), st.READ)
    for k in (1, 2):
        if state[st.attempt(k) + st.STORED_OUTCOME] > st.OPEN and not state[st.attempt(k) + st.RELEASED]:
            _release(steps, k)


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
    broken = "I6 a cancelled job is started again" if state[st.CANCEL_EVER_REQUESTED] else None
    if not steps.rules.record_first:
        free = _free_runner(state, a)
        if free:
            spawned = {a + free: st.CHECK_CLAIM, st.LOOP: st.MAKE}
            steps.add(STEP, "LOOP spawns a runner before it records the attempt", spawned)
        return
    opened = {a + st.STORED_OUTCOME: st.OPEN, a + st.BOOTED: state[st.BOOT], a + st.LAUNCHES: 1}
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
        for actions in reconcile_answers(_observe(steps, a, result)):
            _commit(steps, a, actions)
    else:
        steps.add(STEP, "LOOP observes: no result", {st.LOOP: otherwise})


def _observe(steps: Steps, a: int, result: int = st.NONE) -> ObservedAttempt:
    state, rules = steps.state, steps.rules
    return ObservedAttempt(
        number=state[st.NEWEST],
        job=state[st.JOB],
        claim=state[st.OBSERVED_CLAIM],
        result=result,
        stop=state[a + st.STOP],
        cancel=state[st.CANCEL_REQUEST] == 1,
        old_boot=state[a + st.BOOTED] != state[st.BOOT],
        folder_exists=bool(state[a + st.FOLDER]),
        folder_complete=state[a + st.FOLDER] == st.MADE,
        launches=state[a + st.LAUNCHES],
        process_found=_finds(state, a, rules),
        swept=state[a + st.SWEPT],
    )


def _finds(state: bytes, a: int, rules: Rules, *, chains: bool = True) -> bool:
    """Returns whether a scan finds a process of the attempt. chains: the scan catches fork chains."""
    left = st.finds_other_process(state, a, rules) and (
        chains or state[a + st.OTHER_PROCESS] not in (st.FORK_CHAIN, st.LOOSE_CHAIN)
    )
    mine = left or st.finds_command(state, a, rules) or st.scan_finds_runner(state, a)
    return mine or st.finds_foreign_process(state, a, rules)


def _reconcile(steps: Steps, a: int) -> None:
    state, rules = steps.state, steps.rules
    view = _observe(steps, a)
    waits = view.claim == st.CLAIM_LIVE and not view.stop and not view.cancel
    if waits and state[st.PREEMPT_REQUEST] == 1:
        told = {st.JOB: st.STOPPING, st.PREEMPT_REQUEST: 2, st.PENDING_STOP: st.STOP_PREEMPT}
        steps.add(STEP, "LOOP commits stopping: preempted", {st.LOOP: st.WRITE_STOP, **told})
        return
    for actions in reconcile_answers(view):
        if not rules.void_first and actions and isinstance(actions[-1], act.VoidClaim):
            actions = reconcile_answers(view._replace(claim=st.CLAIM_VOID))[0]
        _commit(steps, a, actions)


def _commit(steps: Steps, a: int, actions: tuple[act.Action, ...]) -> None:
    state, after, broken = steps.state, bytearray(steps.state), []
    after[st.LOOP] = st.IDLE
    for action in actions:
        if isinstance(action, act.FinishAttempt):
            broken += _finish_attempt(after, a, action)
        elif isinstance(action, act.ReleaseAllocation):
            after[a + st.RELEASED] = 1
        elif isinstance(action, act.Transition):
            after[st.JOB] = _JOBS[action.state]
        elif isinstance(action, act.Sweep):
            after[st.LOOP] = st.KILL_ALL if action.kill else st.TERM_ALL
            after[a + st.SWEPT] = 2 if action.kill else 1
        else:
            after[st.LOOP] = _NEXT.get(type(action), after[st.LOOP])
        if isinstance(action, act.RequestStop):
            after[st.PENDING_STOP] = st.STOP_CANCEL
            if not steps.rules.cancel_until_end and after[st.CANCEL_REQUEST] == 1:
                after[st.CANCEL_REQUEST] = 2
        elif isinstance(action, act.Relaunch):
            after[a + st.LAUNCHES] = min(3, state[a + st.LAUNCHES] + 1)
        elif isinstance(action, act.ResetLaunchCount):
            after[a + st.LAUNCHES] = 0
    steps.put(STEP, f"LOOP {describe(actions)}", after, broken[0] if broken else None)


def _finish_attempt(after: bytearray, a: int, end: act.FinishAttempt) -> list[str]:
    """Commits the end of an attempt and its effect on the job. Returns the invariants that it breaks."""
    outcome, truth = _OUTCOMES[end.outcome], after[a + st.ACTUAL_END]
    broken = []
    if outcome == st.COMPLETED and truth != st.EXIT_0:
        broken.append("I3 completed, but the command did not exit 0")
    if outcome == st.FAILED and truth not in (st.EXIT_7, st.BY_TERM, st.BY_KILL):
        broken.append("I3 failed without a code")
    if outcome in (st.FAILED, st.NOT_STARTED) and after[a + st.MACHINE_ENDED]:
        broken.append(f"I3 ended by the machine, recorded as {end.outcome.value}")
    if outcome == st.INTERRUPTED and not after[st.FAULTED]:
        broken.append("I3 interrupted though nothing killed runner, command or machine")
    failed = end.job_outcome is Outcome.FAILED and (outcome == st.NOT_STARTED or truth == st.BY_KILL)
    if failed and after[st.CANCEL_EVER_REQUESTED]:
        broken.append("I6 a cancelled job ends as failed")
    if after[a + st.RESULT] == st.GPU_LOST:
        broken += _check_lost_gpu(after, end)
        outcome = st.GPU_LOST
    after[a + st.STORED_OUTCOME] = outcome
    after[st.JOB] = _JOBS[end.state]
    if after[st.CANCEL_REQUEST] == 1 and end.state is JobState.FINISHED:
        after[st.CANCEL_REQUEST] = 2
    return broken


def _check_lost_gpu(after: bytearray, end: act.FinishAttempt) -> list[str]:
    """Returns the invariants that the end of an attempt breaks whose GPU another program claimed first."""
    if end.outcome is not Outcome.NOT_STARTED:
        return [f"I3 the GPU was claimed, recorded as {end.outcome.value}"]
    if end.state is not JobState.QUEUED:
        return [] if after[st.CANCEL_EVER_REQUESTED] else ["I11 a job that lost its GPU is not queued again"]
    counted = end.launch_failures != after[st.NEWEST] - 1
    return ["I11 the loss of a GPU counts as a failed launch"] if counted else []


def _release(steps: Steps, number: int) -> None:
    """Adds the release of an ended attempt's GPUs or, if processes are left, a sweep that ends them."""
    state, rules, a = steps.state, steps.rules, st.attempt(number)
    found = _finds(state, a, rules)
    missed = state[a + st.OTHER_PROCESS] in (st.FORK_CHAIN, st.LOOSE_CHAIN) and not _finds(
        state, a, rules, chains=False
    )
    if not found or missed:
        steps.add(
            STEP, f"LOOP finds no process of attempt {number} and releases its GPUs", {a + st.RELEASED: 1}
        )
    if not found or not rules.release_sweep:
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
        written = {a + st.STOP: state[st.PENDING_STOP]} if state[a + st.FOLDER] else {}
        steps.add(STEP, "LOOP writes stop", {st.LOOP: st.SIGNAL, **written})
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
