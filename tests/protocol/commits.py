"""Commits the actions of a round, and checks the invariants about what is recorded."""

from __future__ import annotations

from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.scheduling import actions as act
from tests.protocol import adopted, stops
from tests.protocol import state as st
from tests.protocol.decisions import ACTS, Decided, describe
from tests.protocol.rules import ALL, Rules
from tests.protocol.steps import STEP, Steps

_OUTCOMES = {
    Outcome.COMPLETED: st.COMPLETED,
    Outcome.FAILED: st.FAILED,
    Outcome.CANCELLED: st.CANCELLED,
    Outcome.INTERRUPTED: st.INTERRUPTED,
    Outcome.NOT_STARTED: st.NOT_STARTED,
    Outcome.PREEMPTED: st.PREEMPTED,
    Outcome.ENDED: st.ENDED,
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


def commit(steps: Steps, a: int, actions: tuple[act.Action, ...]) -> None:
    state, after, broken = steps.state, bytearray(steps.state), []
    after[st.LOOP] = st.IDLE
    for action in actions:
        if isinstance(action, Decided):
            broken += _change_attempt(after, a, action, steps.rules)
        elif isinstance(action, act.Sweep):
            after[st.LOOP] = st.KILL_ALL if action.kill else st.TERM_ALL
            after[a + st.SWEPT] = 2 if action.kill else 1
        else:
            after[st.LOOP] = _NEXT.get(type(action), after[st.LOOP])
        if isinstance(action, act.RequestStop):
            after[st.PENDING_STOP] = stops.code_of(action.stop)
            if not steps.rules.stop_until_end:
                after[st.STOP_REQUEST] = 0
        elif isinstance(action, act.Relaunch):
            after[a + st.LAUNCHES] = min(3, state[a + st.LAUNCHES] + 1)
    broken += _check_preemption(state, after, a)
    acts = any(isinstance(action, ACTS) for action in actions)
    if acts and st.is_command_round(state) and not stops.is_asked_to_stop(state, a, ALL):
        broken.append("I23 a command's round acts on an attempt that nobody asked to stop")
    steps.put(STEP, f"LOOP {describe(actions)}", after, broken[0] if broken else None)


def _change_attempt(after: bytearray, a: int, change: Decided, rules: Rules) -> list[str]:
    """Commits a change of an attempt. Returns the invariants that it breaks."""
    if change.clears_stop:
        after[st.STOP_REQUEST] = 0
    if change.resets_launches:
        after[a + st.LAUNCHES] = 0
    if change.state is AttemptState.ENDED:
        return _finish_attempt(after, a, change, rules)
    if change.state is AttemptState.RELEASED:
        after[a + st.RELEASED] = 1
    elif change.state in (AttemptState.RUNNING, AttemptState.STOPPING):
        after[st.JOB] = _JOBS[change.job_state]
    return []


def _check_preemption(state: bytes, after: bytearray, a: int) -> list[str]:
    """Returns the invariants that a commit breaks which closes a preemption or requests `stop` again."""
    before = state[st.STOP_REQUEST]
    if stops.preemption_id(before) is None or after[a + st.STORED_OUTCOME] != st.OPEN:
        return []
    if after[st.STOP_REQUEST] != before and not stops.was_withdrawn(state, a, before):
        return [f"I14 a preemption that was not withdrawn is closed: {stops.name_of(before)}"]
    pending = after[st.PENDING_STOP]
    if after[st.LOOP] == st.WRITE_STOP and state[a + st.WITHDRAWN] == pending and not stops.is_kill(pending):
        return ["I14 `stop` is written again for a preemption that was withdrawn"]
    return []


def _finish_attempt(after: bytearray, a: int, end: Decided, rules: Rules) -> list[str]:
    """Commits the end of an attempt and its effect on the job. Returns the invariants that it breaks."""
    assert end.outcome is not None
    outcome, truth = _OUTCOMES[end.outcome], after[a + st.ACTUAL_END]
    broken = []
    is_late = truth == st.EXIT_SAVED and after[st.PROCESS_WITHDRAWN] and rules.excuse_late_save
    if outcome == st.COMPLETED and truth != st.EXIT_0 and not is_late:
        broken.append("I3 completed, but the command did not exit 0")
    if outcome == st.FAILED and truth not in (
        st.EXIT_7, st.EXIT_LEFT, st.BY_TERM, st.BY_KILL, st.BY_MACHINE,
    ):  # fmt: skip
        broken.append("I3 failed without a code")
    if outcome in (st.FAILED, st.NOT_STARTED) and after[a + st.MACHINE_ENDED]:
        broken.append(f"I3 ended by the machine, recorded as {end.outcome.value}")
    broken += _check_adopted(after, a, outcome, end)
    if outcome == st.INTERRUPTED and not after[st.FAULTED] and not end.is_still_adopted:
        broken.append("I3 interrupted though nothing killed runner, command or machine")
    failed = end.job_outcome is Outcome.FAILED and (outcome == st.NOT_STARTED or truth == st.BY_KILL)
    if failed and after[st.STOP_REQUEST] == st.STOP_CANCEL:
        broken.append("I6 a cancelled job ends as failed")
    broken += _check_preempted(after, a, outcome, end, rules)
    if after[a + st.RESULT] == st.GPU_LOST:
        broken += _check_lost_gpu(after, end)
        outcome = st.GPU_LOST
    after[a + st.STORED_OUTCOME] = outcome
    after[st.JOB] = _JOBS[end.job_state]
    stop = after[st.STOP_REQUEST]
    if not (end.keeps_stop and rules.stop_kept):
        after[st.STOP_REQUEST] = 0
        if end.is_still_adopted and stop and not stops.was_withdrawn(after, a, stop):
            broken.append(f"I14 an open request is closed though its process runs: {stops.name_of(stop)}")
    if end.is_still_adopted:
        after[st.PROCESS_WITHDRAWN] |= after[a + st.EVER_WITHDRAWN]
    else:
        after[st.ADOPT] = after[st.PROCESS_WITHDRAWN] = 0
    return broken


def _check_adopted(after: bytearray, a: int, outcome: int, end: Decided) -> list[str]:
    """Returns the invariants about adopted processes that the end of an attempt breaks."""
    if not after[a + st.WATCHES] or end.is_still_adopted:
        return []
    if st.process_lives(after):
        return [f"I20 the job is {end.job_state.value} while its adopted process runs"]
    was_stopped = adopted.end_of_process(after) in (st.BY_TERM, st.BY_KILL)
    if outcome in (st.ENDED, st.COMPLETED) and was_stopped:
        return ["I20 an adopted process that a request ended is recorded as ended by itself"]
    return []


def _check_preempted(after: bytearray, a: int, outcome: int, end: Decided, rules: Rules) -> list[str]:
    """Returns the invariants about preemptions that the end of an attempt breaks."""
    stop = after[st.STOP_REQUEST]
    if outcome == st.PREEMPTED and not after[a + st.RESULT] and after[a + st.BOOTED] == after[st.BOOT]:
        known = [one for one in (stop, after[a + st.STOP], after[a + st.WITHDRAWN]) if one > st.STOP_CANCEL]
        if all(stops.was_withdrawn(after, a, one) for one in known):
            ids = {stops.preemption_id(one) for one in known}
            if len(ids) < 2 or not rules.excuse_last_withdrawn:
                return ["I16 an attempt whose preemption was withdrawn is recorded as preempted"]
    failed_launch = outcome == st.NOT_STARTED and stop > st.STOP_CANCEL and not after[a + st.WATCHES]
    if failed_launch or (outcome == st.PREEMPTED and stop != st.STOP_CANCEL):
        wanted = JobState.QUEUED if stops.is_queued_after(stop) else JobState.HELD
        if end.job_state is not wanted:
            return [f"I17 a preempted job is {end.job_state.value} instead of {wanted.value}"]
    return []


def _check_lost_gpu(after: bytearray, end: Decided) -> list[str]:
    """Returns the invariants that the end of an attempt breaks whose GPU another program claimed first."""
    if after[st.STOP_REQUEST]:
        return []
    assert end.outcome is not None
    if end.outcome is not Outcome.NOT_STARTED:
        return [f"I3 the GPU was claimed, recorded as {end.outcome.value}"]
    if end.job_state is not JobState.QUEUED:
        return ["I11 a job that lost its GPU is not queued again"]
    counted = end.launch_failures != after[st.NEWEST] - 1
    return ["I11 the loss of a GPU counts as a failed launch"] if counted else []
