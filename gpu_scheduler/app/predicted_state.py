"""Predicts the state of a job once its open requests are carried out, by the rules of core.wishes."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.states import WAITING, JobState

#: The states of jobs that `retry` accepts.
RETRYABLE = frozenset({JobState.HELD, JobState.FINISHED})
#: Verb -> the states that it changes, and the new state. Cancelling an active job changes nothing at once.
_EFFECTS = {
    "cancel": (WAITING, JobState.FINISHED),
    "line_removed": (WAITING, JobState.FINISHED),
    "retry": (RETRYABLE, JobState.QUEUED),
    "requeue": (RETRYABLE, JobState.QUEUED),
    "hold": (frozenset({JobState.QUEUED}), JobState.HELD),
    "release": (frozenset({JobState.HELD}), JobState.QUEUED),
}
#: Verbs of requests that differ from the name of their command.
COMMAND_NAMES = {"set": "priority"}


def predicted_state(state: JobState, verbs: Iterable[str]) -> JobState:
    """Returns the state after these requests, in their order; a verb that does not apply changes nothing."""
    for verb in verbs:
        states, after = _EFFECTS.get(verb, (frozenset(), state))
        if state in states:
            state = after
    return state


def refusal(verb: str, job_id: int, state: JobState) -> str | None:
    """Returns why a job in this state cannot be retried, held, released or set; None if it can."""
    states = WAITING if verb == "set" else _EFFECTS[verb][0]
    if state in states:
        return None
    wanted = " or ".join(sorted(str(one) for one in states))
    return f"job {job_id} is {state}; {COMMAND_NAMES.get(verb, verb)} needs a job that is {wanted}"
