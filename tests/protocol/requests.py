"""The loop carries out the requests about a job with an open attempt, and preempts it for another job."""

from __future__ import annotations

from tests.protocol import decisions, stops
from tests.protocol import state as st
from tests.protocol.observation import observe
from tests.protocol.steps import FAULT, STEP, Steps


def carry_out_request(steps: Steps) -> bool:
    """Adds the commits of requests about a job with an open attempt; returns whether they come first.

    A request waits until the end of an attempt is recorded, if the round observes that end.
    """
    state, a = steps.state, st.attempt(steps.state[st.NEWEST])
    pending = state[st.PREEMPT_REQUESTS]
    claim = st.observed_claim(state, a, steps.rules)
    is_over = decisions.is_over(observe(steps, a, state[a + st.RESULT])._replace(claim=claim))
    # Only a round that has observed the attempt before its end carries out a request then.
    kind = FAULT if is_over else STEP
    if state[st.CANCEL_REQUEST] == 1:
        told = {st.CANCEL_REQUEST: 2, st.STOP_REQUEST: st.STOP_CANCEL}
        steps.add(kind, "LOOP commits the cancel", told)
    if pending:
        number = (pending & -pending).bit_length() - 1
        _preempt(steps, kind, a, number, {st.PREEMPT_REQUESTS: pending & ~(1 << number)})
    may_preempt = state[st.VICTIM] and not st.is_command_round(state)
    if may_preempt and state[st.JOB] == st.RUNNING and not state[st.STOP_REQUEST] and a == st.FIRST:
        victim = stops.preemption(st.VICTIM_ID, kill=True, queued=True)
        steps.add(FAULT, "LOOP commits a preemption for another job", {st.VICTIM: 0, st.STOP_REQUEST: victim})
    return bool(pending or state[st.CANCEL_REQUEST] == 1) and not is_over


def _preempt(steps: Steps, kind: int, a: int, number: int, answered: dict[int, int]) -> None:
    state, rules = steps.state, steps.rules
    _, withdrawn = stops.observed_stop(state, a, rules)
    is_open = state[st.STOP_REQUEST]
    hidden = is_open == st.STOP_CANCEL and not rules.cancel_outranks
    wanted = stops.preempt_answer(state[st.JOB], 0 if hidden else is_open, withdrawn, number)
    name = stops.name_of(stops.preemption(number, kill=number == st.FORCE_ID))
    if wanted is None:
        steps.add(kind, f"LOOP answers the preempt ({name}), which changes nothing", answered)
    else:
        label = f"LOOP commits the preempt ({name}): {stops.name_of(wanted)}"
        steps.add(kind, label, {**answered, st.STOP_REQUEST: wanted})
