"""The invariants that hold in every state, and the progress that must remain possible.

I1  the command of an attempt is started at most once, and only one attempt of a job runs at a time
I2  no attempt is recorded as ended while its command lives, unless SIGKILL was sent to it
I3  the recorded outcome is true (`commits`)
I4  from every state the job can end or be held, with its GPUs released
I5  no GPUs are released while a process of the attempt is alive
I6  a cancelled job ends, even with the scheduler down, and is not started again
I7  a copy signals no process of its original, and starts none of its commands (`faults`)
I8  no foreign process is signalled (`sweep`)
I9  processes of an attempt are not ended by a sweep while their runner lives (`sweep`)
I10 while a runner lives, the processes of its attempt run only if it holds the lock of the GPU
I11 a runner loses its GPU only to another program (`runner`), and its job is then queued again, without a
    failed launch (`commits`)
I12 the loop never takes the lock of its own runner for another program's (`loop`), and no runner of an ended
    attempt holds the lock
I13 once the other program has ended, the job can start
I14 a preemption is open until its runner withdraws it, a cancel replaces it or the attempt ends; no `stop` is
    written again for a withdrawn one (`commits`)
I15 a runner never obeys a preemption that it has withdrawn (`runner`)
I16 no attempt is recorded as preempted because of a withdrawn preemption (`commits`)
I17 a preempted job is held, or queued if the scheduler preempted it for another job (`commits`)
I18 no preemption stays open for ever, and a job whose preemption was withdrawn is recorded as running
I19 one runner at a time watches an adopted process, and only a request to stop signals it (`runner`, `sweep`)
I20 the job of an adopted process ends only after the process, and as it ended (`commits`)
I21 at most one process runs rounds at a time
I22 a command's round starts or launches nothing
I23 a command's round acts only on an attempt that was asked to stop (`commits`)
I24 after `cancel` has reported the end, the command of the attempt does not run, and never begins
I25 a command stops running rounds, so that a scheduler can start
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.protocol import adopted, stops, termination
from tests.protocol import state as st
from tests.protocol.rules import Rules
from tests.protocol.steps import OTHER_ENDS, OWN, STARTED, STEP


def broken_invariant(state: bytes, rules: Rules) -> str | None:
    """Returns an invariant that does not hold in this state, or None if all hold."""
    commands = 0
    for a in st.ATTEMPTS:
        if not state[a + st.RUNNER1]:
            continue  # nothing was launched, or everything has ended
        record, command = state[a + st.STORED_OUTCOME], state[a + st.COMMAND]
        commands += st.FORKED <= command <= st.DYING
        if state[a + st.SPAWNS] > 1:
            return "I1 the command of one attempt is started twice"
        if state[a + st.TERMINATION] and _obeys_withdrawn(state, a):
            return "I15 the runner obeys a preemption that the file `withdrawn` names"
        if _is_excused(state, a, rules):
            continue
        if state[st.CLI] == st.CLI_REPORTED and st.command_lives(state, a):
            return "I24 the command of an attempt runs after `cancel` has reported its end"
        if record > st.OPEN and st.command_lives(state, a) and state[a + st.SWEPT] < 2:
            return f"I2 the attempt is recorded as {st.OUTCOMES[record]} while its command lives"
        if state[a + st.RELEASED] and (st.FORKED <= command <= st.DYING or _counts_as_left(state, a, rules)):
            return "I5 the GPUs are released while a process of the attempt lives"
    if state[st.ROUNDS] & (state[st.ROUNDS] - 1):
        return "I21 two processes run rounds"
    if state[st.LOOP] in st.LAUNCHING and st.is_command_round(state):
        return "I22 a command's round starts an attempt"
    if commands and st.process_lives(state):
        return "I1 the command of a job is started while its adopted process runs"
    if sum(adopted.watchers(state, a) for a in st.ATTEMPTS) > 1:
        return "I19 two runners watch the adopted process"
    if commands > 1:
        return "I1 two attempts of one job at the same time"
    return next(filter(None, (_broken_gpu_claim(state, a, rules) for a in st.ATTEMPTS)), None)


def _obeys_withdrawn(state: bytes, a: int) -> bool:
    number = stops.preemption_id(state[a + st.WITHDRAWN])
    if number is None or stops.is_kill(state[a + st.WITHDRAWN]):
        return False
    return bool(termination.ids_in_effect(state[a + st.TERMINATION]) & 1 << number)


def _broken_gpu_claim(state: bytes, a: int, rules: Rules) -> str | None:
    if not state[a + st.RUNNER1]:
        return None
    lock, command = state[st.GPU_LOCK], state[a + st.COMMAND]
    used = st.FORKED <= command <= st.DYING or state[a + st.OTHER_PROCESS] != st.NOBODY
    for which, runner in enumerate(st.RUNNERS, 1):
        if lock == st.runner_id(a, which):
            if state[a + st.STORED_OUTCOME] > st.OPEN:
                return "I12 the runner of an ended attempt holds the lock of the GPU"
        elif used and st.UNBLOCK <= state[a + runner] <= st.END_OTHER_PROCESSES:
            claimed = "on a GPU that another program has claimed"
            how = claimed if lock == st.OTHER_PROGRAM else "without the lock of the GPU"
            return f"I10 processes of an attempt run {how}"
    if used and lock == st.OTHER_PROGRAM and not st.owner(state, a) and not rules.excuse_killed_holder:
        return "I10 processes of a killed runner run on a GPU that another program has claimed"
    return None


def _is_excused(state: bytes, a: int, rules: Rules) -> bool:
    return rules.excuse_unrecorded_command and rules.command_recorded and _is_unrecorded(state, a)


def _is_unrecorded(state: bytes, a: int) -> bool:
    """Returns whether a hidden process cannot be found: it has no mark, and its command is not recorded."""
    if not state[st.UNMARKED] or state[a + st.COMMAND_RECORDED] or st.owner(state, a):
        return False
    return bool(state[a + st.HIDDEN]) or state[a + st.OTHER_PROCESS] == st.IN_SESSION


def _counts_as_left(state: bytes, a: int, rules: Rules) -> bool:
    left = state[a + st.OTHER_PROCESS]
    if left == st.LOST and state[st.UNMARKED]:
        return not rules.excuse_lost
    if left == st.LOOSE_CHAIN:
        return not rules.excuse_chain
    return left != st.NOBODY


class Progress(NamedTuple):
    """A requirement: from every state for which `must` is true, steps of these kinds can reach a `goal`."""

    name: str
    kinds: frozenset[int]
    goal: Callable[[bytes], bool]
    must: Callable[[bytes], bool]


def _is_complete(state: bytes) -> bool:
    job = state[st.JOB]
    waits = job == st.HELD and state[st.CANCEL_REQUEST] != 1 and state[st.RETRY_REQUEST] != 1
    if job != st.FINISHED and not waits:
        return False
    return all(state[a + st.STORED_OUTCOME] <= st.OPEN or state[a + st.RELEASED] for a in st.ATTEMPTS)


def _is_quiet(state: bytes) -> bool:
    return not any(st.has_runner(state, a) or st.command_lives(state, a) for a in st.ATTEMPTS)


def _has_started(state: bytes) -> bool:
    """Returns whether a command runs or an adopted process is watched, or the job is over."""
    runs = any(state[a + st.COMMAND] in (st.COMMAND_RUNS, st.WATCHED) for a in st.ATTEMPTS)
    return runs or state[st.JOB] in (st.HELD, st.FINISHED)


def _has_no_preemption(state: bytes) -> bool:
    """Returns whether no preemption is requested or open, or is in the state of its job."""
    is_open = state[st.STOP_REQUEST] > st.STOP_CANCEL or state[st.PREEMPT_REQUESTS]
    return not is_open and state[st.JOB] != st.STOPPING


def _may_be_cancelled(state: bytes) -> bool:
    """Returns whether a cancel was requested that can still reach the command.

    It cannot if the folder or the recorded identity of the command was lost.
    """
    if not state[st.CANCEL_EVER_REQUESTED]:
        return False
    return not any(state[a + st.LINK] or _is_unrecorded(state, a) for a in st.ATTEMPTS)


PROGRESS = (
    Progress(
        "I4 stuck: no end with the GPUs released can be reached",
        frozenset((STEP, OWN, STARTED, OTHER_ENDS)),
        _is_complete,
        lambda state: True,
    ),
    Progress(
        "I6 the cancel is lost: the job ends only if its command ends by itself",
        frozenset((STEP, STARTED)),
        lambda state: state[st.JOB] == st.FINISHED,
        _may_be_cancelled,
    ),
    Progress(
        "I6 the cancel has no effect while no scheduler is up: the command runs on",
        frozenset((STEP,)),
        _is_quiet,
        lambda state: (
            state[st.CLI] == st.CLI_WAITS and not state[st.ROUNDS] & st.SCHEDULER and _may_be_cancelled(state)
        ),
    ),
    Progress(
        "I25 a command runs rounds for ever, so that no scheduler can start",
        frozenset((STEP,)),
        lambda state: not st.is_command_round(state),
        st.is_command_round,
    ),
    Progress(
        "I18 the preemption stays open for ever",
        frozenset((STEP, STARTED)),
        _has_no_preemption,
        lambda state: not any(state[a + st.LINK] for a in st.ATTEMPTS),
    ),
    Progress(
        "I13 the job never starts, although the other program has ended",
        frozenset((STEP, STARTED, OTHER_ENDS)),
        _has_started,
        lambda state: True,
    ),
)
