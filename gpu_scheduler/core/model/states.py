"""Defines the states of a job and the allowed transitions between them.

Nothing else in the program decides which state may follow which. The *outcome* of an attempt is kept separate
from the state, so that "timed out" or "interrupted" adds no states.
"""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """The state of a job in its life cycle."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"

    def __str__(self) -> str:
        return self.value


class Outcome(str, Enum):
    """The result of an attempt, or of a job as a whole."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    NOT_STARTED = "not_started"
    ENDED = "ended"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value


#: States of a job with an open attempt.
ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})

#: States of a job that waits for something.
WAITING = frozenset({JobState.QUEUED, JobState.HELD})

#: Outcomes that count as a failure of the job.
FAILED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED})

_H, _Q, _S, _R, _P, _F = JobState
#: State -> the states that may follow it. When an attempt ends, its job moves to FINISHED, to QUEUED (a
#: failed launch, a retry) or to HELD (interrupted, preempted).
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _H: frozenset({_Q, _F}),
    _Q: frozenset({_H, _S, _F}),
    _S: frozenset({_R, _P, _Q, _H, _F}),
    _R: frozenset({_P, _Q, _H, _F}),
    _P: frozenset({_R, _Q, _H, _F}),
    _F: frozenset({_Q}),
}


class IllegalTransitionError(RuntimeError):
    """Raised for a transition that the table does not allow: a bug, reported with the history of the job."""

    def __init__(self, job_id: int, old: JobState, new: JobState, history: tuple[str, ...] = ()) -> None:
        story = "; ".join(history) or "none recorded"
        super().__init__(f"job {job_id}: {old} -> {new} is not allowed (history: {story})")
        self.job_id = job_id
        self.old = old
        self.new = new


def check_transition(job_id: int, old: JobState, new: JobState, history: tuple[str, ...] = ()) -> None:
    """Raises IllegalTransitionError unless `old -> new` is allowed; staying in a state always is."""
    if new is not old and new not in TRANSITIONS[old]:
        raise IllegalTransitionError(job_id, old, new, history)
