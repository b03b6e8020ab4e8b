"""Requests to stop an attempt: the codes that represent them in a state, and their meaning.

A request is a cancel or a preemption. A code consists of the id of the preemption, of what follows the grace
period, and of where the job goes then.
"""

from __future__ import annotations

from functools import cache
from itertools import product

from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus, Job, Observed, StopRequest
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.states import AttemptState, JobState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import JobChanged
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.requests import answer_requests
from gpu_scheduler.core.scheduling.settings import Settings
from tests.protocol import state as st
from tests.protocol.rules import Rules

_JOBS = {
    st.QUEUED: JobState.QUEUED, st.STARTING: JobState.STARTING, st.RUNNING: JobState.RUNNING,
    st.STOPPING: JobState.STOPPING, st.HELD: JobState.HELD, st.FINISHED: JobState.FINISHED,
}  # fmt: skip


def preemption(number: int, *, kill: bool = False, queued: bool = False) -> int:
    """Returns the code of a preemption. number: its id; queued: whether the job is queued again after it."""
    return st.STOP_CANCEL + 1 + number * 4 + kill * 2 + queued


def preemption_id(stop: int) -> int | None:
    """Returns the id of a preemption; None for a cancel or no request."""
    return (stop - st.STOP_CANCEL - 1) // 4 if stop > st.STOP_CANCEL else None


def is_kill(stop: int) -> bool:
    """Returns whether a request ends in SIGKILL after its grace period."""
    return stop == st.STOP_CANCEL or (stop > st.STOP_CANCEL and (stop - st.STOP_CANCEL - 1) & 2 > 0)


def was_withdrawn(state: bytes | bytearray, a: int, stop: int) -> bool:
    """Returns whether the runner of this attempt has ever withdrawn the preemption."""
    number = preemption_id(stop)
    return (
        number is not None
        and not is_kill(stop)
        and bool((state[a + st.EVER_WITHDRAWN] | state[st.PROCESS_WITHDRAWN]) & 1 << number)
    )


def observed_stop(state: bytes | bytearray, a: int, rules: Rules) -> tuple[int, int]:
    """Returns the request in the folder and the withdrawn preemption, as `observe` returns them."""
    stop, withdrawn = state[a + st.STOP], state[a + st.WITHDRAWN]
    if not stop and is_kill(withdrawn):
        return withdrawn, 0  # the runner obeys the request that it has taken
    if is_kill(withdrawn):
        return stop, 0
    if rules.withdrawn_stop_ignored and stop and stop == withdrawn:
        stop = 0
    return stop, withdrawn


def is_asked_to_stop(state: bytes | bytearray, a: int, rules: Rules) -> bool:
    """Returns whether a command's round may act on this attempt.

    A request to stop it is open, or in its folder, or waits until its end is recorded.
    """
    waits = state[st.CANCEL_REQUEST] == 1 or state[st.PREEMPT_REQUESTS]
    is_open = state[st.STOP_REQUEST] or observed_stop(state, a, rules)[0]
    return bool(is_open or (waits and rules.waiting_counts))


#: The id of each preemption. The fourth one is for the job 9.
IDS = ("first", "second", "forced", "victim")
REQUESTS: dict[int, StopRequest | None] = {
    0: None,
    st.STOP_CANCEL: StopRequest("cancelled", 10.0),
    **{
        preemption(number, kill=kill, queued=queued): StopRequest(
            "preempted",
            10.0,
            "kill" if kill else "withdraw",
            IDS[number],
            next_state=JobState.QUEUED if queued else JobState.HELD,
        )
        for number, kill, queued in product(range(4), (False, True), (False, True))
    },
}


@cache
def preempt_answer(job: int, stop_request: int, withdrawn: int, number: int) -> int | None:
    """Returns the open request after a round has carried out `preempt`; None if it changes nothing.

    withdrawn: the withdrawn preemption that the round has observed; number: the id of the preemption.
    """
    on_timeout = "kill" if number == st.FORCE_ID else "withdraw"
    args = {"stop_id": IDS[number], "grace_s": 10.0, "on_timeout": on_timeout}
    row = Job(1, _JOBS[job], stop=REQUESTS[stop_request])
    observed = Observed(AttemptStatus("live", withdrawn=REQUESTS[withdrawn]))
    attempt = ActiveAttempt(1, 1, "", "", AttemptState.RUNNING, job=row, observed=observed)
    facts = Facts(
        Now(0.0, 0.0, ""), Settings(), LlmConfig(), attempts=(attempt,), jobs={1: row},
        requests=(Request(1, "preempt", "1", args),),
    )  # fmt: skip
    changes = (one for one in answer_requests(facts) if isinstance(one, JobChanged))
    return next((code_of(one.new.stop) for one in changes if one.new.stop not in (None, one.old.stop)), None)


@cache
def replaced_by(stop: int, earlier: int) -> int:
    """Returns the `stop` that is written over an earlier one; 0 if the earlier one is stronger."""
    request, there = REQUESTS[stop], REQUESTS[earlier]
    assert request is not None
    return code_of(request.combined_with(there)) if request.may_replace(there) else 0


def is_queued_after(stop: int) -> bool:
    """Returns whether the job is queued again after this preemption."""
    request = REQUESTS[stop]
    return request is not None and request.next_state is JobState.QUEUED


def code_of(stop: StopRequest) -> int:
    """Returns the code of a request to stop."""
    if stop.cause == "cancelled":
        return st.STOP_CANCEL
    kill, queued = stop.on_timeout == "kill", stop.next_state is JobState.QUEUED
    return preemption(IDS.index(stop.stop_id), kill=kill, queued=queued)


def name_of(stop: int) -> str:
    """Returns a short description of a request to stop."""
    request = REQUESTS[stop]
    if request is None:
        return "none"
    if request.cause == "cancelled":
        return "cancel"
    return f"{request.stop_id}, {request.on_timeout}" + (", queued" * (request.next_state is JobState.QUEUED))
