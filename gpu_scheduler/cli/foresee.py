"""The state that a job will have once its open wishes are carried out, by the rules of core.wishes."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.states import WAITING, JobState

#: The states of jobs that `retry` is for.
ENDED = frozenset({JobState.HELD, JobState.FINISHED})
#: verb -> the states that it changes, and what they become. An active job's cancel changes nothing at once.
_CHANGES = {
    "cancel": (WAITING, JobState.FINISHED),
    "line_removed": (WAITING, JobState.FINISHED),
    "retry": (ENDED, JobState.QUEUED),
    "requeue": (ENDED, JobState.QUEUED),
    "hold": (frozenset({JobState.QUEUED}), JobState.HELD),
    "release": (frozenset({JobState.HELD}), JobState.QUEUED),
}
#: The wishes that are not called as their command is.
COMMANDS = {"set": "priority"}


def foreseen(state: JobState, verbs: Iterable[str]) -> JobState:
    """The state after these wishes, in their order; a verb that does not apply changes nothing."""
    for verb in verbs:
        states, after = _CHANGES.get(verb, (frozenset(), state))
        if state in states:
            state = after
    return state


def refusal(verb: str, job_id: int, state: JobState) -> str | None:
    """Why a job in this state cannot be retried, held, released or set; None if it can."""
    states = WAITING if verb == "set" else _CHANGES[verb][0]
    if state in states:
        return None
    wanted = " or ".join(sorted(str(one) for one in states))
    return f"job {job_id} is {state}; {COMMANDS.get(verb, verb)} is for a job that is {wanted}"
