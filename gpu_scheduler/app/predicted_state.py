"""Predicts the state of a job once its open requests are carried out, by the rules of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.core.model.request_answer import ACCEPTED_STATES
from gpu_scheduler.core.model.states import JobState

#: The states of jobs that `retry` accepts.
RETRYABLE = frozenset(ACCEPTED_STATES["retry"])
#: Verb -> the new state of a job that it changes. Cancelling an active job changes nothing at once.
_EFFECTS = {
    "cancel": JobState.FINISHED,
    "line_removed": JobState.FINISHED,
    "retry": JobState.QUEUED,
    "requeue": JobState.QUEUED,
    "hold": JobState.HELD,
    "release": JobState.QUEUED,
}


def predicted_state(state: JobState, verbs: Iterable[str]) -> JobState:
    """Returns the state after these requests, in their order; a verb that does not apply changes nothing."""
    for verb in verbs:
        if verb in _EFFECTS and state in ACCEPTED_STATES[verb]:
            state = _EFFECTS[verb]
    return state
