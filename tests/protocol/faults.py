"""External faults: kills, crashes, a reboot, a machine shutdown, and copied or removed folders."""

from __future__ import annotations

from itertools import product

from gpu_scheduler.core.scheduling import actions as act
from tests.protocol import decisions
from tests.protocol import state as st
from tests.protocol.decisions import ObservedAttempt
from tests.protocol.steps import FAULT, STEP, Steps, terminate


def steps_of_faults(steps: Steps) -> None:
    """Adds every fault that can still happen in this scenario."""
    state = steps.state
    if state[st.CRASH] and state[st.ROUNDS] & st.SCHEDULER:
        down = {st.LOOP: st.DOWN, st.ROUNDS: state[st.ROUNDS] & ~st.SCHEDULER}
        steps.add(FAULT, "LOOP crashes", {st.CRASH: state[st.CRASH] - 1, **down})
    if state[st.KILL]:
        _kill(steps)
    if state[st.MACHINE] or state[st.MACHINE_ENDING]:
        _machine_ends(steps)
    if state[st.REBOOT]:
        _reboot(steps)
    if state[st.UNLOCK] or state[st.REPLACE] or state[st.UNCLAIM] or state[st.REMOVE]:
        _folder_is_tampered_with(steps)
    if state[st.REUSE]:
        _numbers_are_reused(steps)
    if state[st.COPY] or state[st.COPIED]:
        _copy(steps)


def _kill(steps: Steps) -> None:
    state = steps.state
    for number, a in enumerate(st.ATTEMPTS, 1):
        for which, runner in enumerate(st.RUNNERS, 1):
            if st.is_alive(state[a + runner]) and state[a + runner] != st.EXIT:
                killed = {a + runner: st.RUNNER_GONE, st.KILL: state[st.KILL] - 1, st.FAULTED: 1}
                steps.add(FAULT, f"RUNNER {number}.{which} is killed", killed)


def _machine_ends(steps: Steps) -> None:
    """Adds a machine shutdown, which sends SIGTERM to the runner and to the command in either order."""
    state, a = steps.state, st.attempt(steps.state[st.NEWEST] or 1)
    runner = {a + st.SIGNALS: state[a + st.SIGNALS]}
    for one in st.RUNNERS:
        if state[a + one] == st.CHECK_CLAIM:
            runner[a + one] = st.RUNNER_GONE  # the runner has not blocked SIGTERM yet
        elif st.is_alive(state[a + one]):
            runner[a + st.SIGNALS] |= st.TERM
    begun = {st.MACHINE: 0, st.FAULTED: 1}
    if state[st.MACHINE] and state[st.JOB] in st.ACTIVE and st.has_runner(state, a):
        steps.add(FAULT, "MACHINE ends: SIGTERM to the runner", {**runner, **begun, st.MACHINE_ENDING: 1})
        label = "MACHINE ends: SIGTERM to the command"
        terminate(steps, FAULT, label, a, {**begun, st.MACHINE_ENDING: 2}, machine=True)
    if state[st.MACHINE_ENDING] == 1:
        terminate(steps, STEP, "MACHINE: SIGTERM to the command", a, {st.MACHINE_ENDING: 0}, machine=True)
    elif state[st.MACHINE_ENDING] == 2:
        steps.add(STEP, "MACHINE: SIGTERM to the runner", {**runner, st.MACHINE_ENDING: 0})


def _reboot(steps: Steps) -> None:
    """Adds a reboot, after which all processes and possibly unsynced files of an open attempt are gone."""
    state, a = steps.state, st.attempt(steps.state[st.NEWEST] or 1)
    after = bytearray(state)
    after[st.LOOP], after[st.BOOT], after[st.REBOOT], after[st.FAULTED] = st.DOWN, 1, 0, 1
    after[st.MACHINE_ENDING] = after[st.MACHINE] = after[st.GPU_LOCK] = 0
    after[st.ROUNDS] = after[st.PREEMPT_CLI] = 0
    if after[st.CLI] != st.CLI_REPORTED:
        after[st.CLI] = st.CLI_NONE
    if st.process_lives(after):
        after[st.PROCESS] = st.PROCESS_ENDED + st.BY_MACHINE
    for one in st.ATTEMPTS:
        after[one + st.SIGNALS] = after[one + st.TERMINATION] = after[one + st.OTHER_PROCESS] = after[
            one + st.REUSED
        ] = 0
        for runner in st.RUNNERS:
            after[one + runner] = st.RUNNER_GONE if after[one + runner] else 0
        if after[one + st.COMMAND]:
            after[one + st.COMMAND] = st.GONE
    options = product((False, True), repeat=5) if state[a + st.STORED_OUTCOME] == st.OPEN else [(False,) * 5]
    states = set()
    for folder, spec, claim, stop, result in options:
        left = bytearray(after)
        safe = left[a + st.RESULT] and left[a + st.SYNCED]
        if folder and not safe:
            left[a + st.FOLDER] = left[a + st.CLAIM] = left[a + st.STOP] = left[a + st.RESULT] = 0
            left[a + st.WITHDRAWN] = 0
        if spec and left[a + st.FOLDER] == st.MADE:
            left[a + st.FOLDER] = st.HALF_MADE
        if claim:
            left[a + st.CLAIM] = 0
        if stop:
            left[a + st.STOP] = 0
        if result and not left[a + st.SYNCED]:
            left[a + st.RESULT] = 0
        if stop and not left[a + st.RESULT]:
            left[a + st.WITHDRAWN] = 0  # it was renamed before the result
        if bytes(left) not in states:
            states.add(bytes(left))
            names = [("folder", st.FOLDER), ("claim", st.CLAIM), ("stop", st.STOP), ("result", st.RESULT)]
            there = ", ".join(name for name, field in names if left[a + field]) or "nothing"
            steps.put(FAULT, f"REBOOT, left of the folder: {there}", left)


def _folder_is_tampered_with(steps: Steps) -> None:
    """Adds removals and replacements of an attempt folder or claim that a runner has already taken."""
    state, a = steps.state, st.attempt(steps.state[st.NEWEST] or 1)
    if not st.owner(state, a) or state[a + st.LINK] or state[a + st.RESULT]:
        return
    late = any(state[a + runner] in (st.CHECK_CLAIM, st.LINK_CLAIM) for runner in st.RUNNERS)
    if state[st.UNLOCK] and state[a + st.CLAIM]:
        steps.add(
            FAULT,
            "SOMEBODY restores the file claim: its lock is lost",
            {st.UNLOCK: 0, a + st.LINK: st.UNLOCKED},
        )
    if state[st.REPLACE] and state[a + st.CLAIM]:
        replaced = {st.REPLACE: 0, a + st.LINK: st.REPLACED, st.FAULTED: 1}
        steps.add(FAULT, "SOMEBODY puts a copy of the folder in its place", replaced)
    if late or (steps.rules.excuse_early and state[st.JOB] not in (st.RUNNING, st.STOPPING)):
        return
    if state[st.UNCLAIM]:
        steps.add(FAULT, "SOMEBODY removes the file claim", {st.UNCLAIM: 0, a + st.CLAIM: 0})
    if state[st.REMOVE]:
        gone = {
            a + st.FOLDER: 0,
            a + st.CLAIM: 0,
            a + st.STOP: 0,
            a + st.WITHDRAWN: 0,
            a + st.COMMAND_RECORDED: 0,
            a + st.LINK: st.REMOVED,
        }
        steps.add(FAULT, "SOMEBODY removes the folder", {st.REMOVE: 0, st.FAULTED: 1, **gone})


def _numbers_are_reused(steps: Steps) -> None:
    """Adds a foreign process that gets the pid or session id of a process that has ended."""
    state = steps.state
    for number, a in enumerate(st.ATTEMPTS, 1):
        claim = state[a + st.CLAIM]
        if state[a + st.STORED_OUTCOME] != st.OPEN or state[a + st.REUSED] or claim in (0, st.VOID):
            continue
        if not st.is_alive(state[a + st.RUNNERS[claim - 1]]):
            reused = {st.REUSE: 0, a + st.REUSED: st.RUNNER_NUMBER}
            steps.add(FAULT, f"ANOTHER PROCESS gets the number of the runner of attempt {number}", reused)
        if state[a + st.COMMAND] == st.GONE and not state[a + st.OTHER_PROCESS]:
            reused = {st.REUSE: 0, a + st.REUSED: st.SESSION_NUMBER}
            steps.add(FAULT, f"ANOTHER SESSION gets the number of the command of attempt {number}", reused)


def _copy(steps: Steps) -> None:
    """Adds a copy of the data directory (without locks), and a scheduler on it, which the rules refuse."""
    state = steps.state
    if state[st.COPY] and state[st.JOB] in st.ACTIVE:
        a = st.attempt(state[st.NEWEST])
        copied = {st.COPIED: state[st.NEWEST], st.COPY_CLAIM: state[a + st.CLAIM], st.COPY_JOB: state[st.JOB]}
        steps.add(FAULT, "SOMEBODY copies the data directory", {st.COPY: 0, **copied})
    if not state[st.COPIED] or steps.rules.copy_refused:
        return
    view, found = _observe_copy(steps)
    for actions in decisions.reconcile_answers(view):
        label = f"COPY comes up and reconciles the attempt: {decisions.describe(actions)}"
        steps.add(STEP, label, {}, _broken_by_copy(actions, found))


def _observe_copy(steps: Steps) -> tuple[ObservedAttempt, bool]:
    state, rules, a = steps.state, steps.rules, st.attempt(steps.state[st.COPIED])
    claim = st.CLAIM_VOID if state[st.COPY_CLAIM] == st.VOID else st.CLAIM_NONE
    if state[st.COPY_CLAIM] in (1, 2):
        lives = st.is_alive(state[a + st.RUNNERS[state[st.COPY_CLAIM] - 1]])
        claim = st.CLAIM_UNLOCKED if lives and rules.dead_needs_runner_gone else st.CLAIM_DEAD
    found = st.finds(state, a, rules) or st.scan_finds_runner(state, a)
    return ObservedAttempt(state[st.COPIED], state[st.COPY_JOB], claim, process_found=found), found


def _broken_by_copy(actions: tuple[act.Action, ...], found: bool) -> str | None:
    for action in actions:
        if isinstance(action, act.Sweep) and found:
            return "I7 a copy signals processes of its original"
        if isinstance(action, act.Relaunch):
            return "I7 a copy starts the command of an attempt that is open in its original"
    return None
