"""The states of a job and the only allowed changes between them.

Nothing else in the program decides which state may follow which. What became of an attempt, its *outcome*, is
kept apart from the life cycle, so that "timed out" or "interrupted" never multiplies the states.
"""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """Where a job is in its life."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"

    def __str__(self) -> str:
        return self.value


class Outcome(str, Enum):
    """What became of an attempt, or of a job as a whole."""

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


#: States in which an attempt of the job is open.
ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})

#: States in which the job waits for something.
WAITING = frozenset({JobState.QUEUED, JobState.HELD})

#: Outcomes of a job that failed, whichever way.
FAILED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED})

_H, _Q, _S, _R, _P, _F = JobState
#: from -> the states that may follow. The end of an attempt sends its job to FINISHED, to QUEUED (a launch
#: that failed, a retry) or to HELD (interrupted, preempted).
CHANGES: dict[JobState, frozenset[JobState]] = {
    _H: frozenset({_Q, _F}),
    _Q: frozenset({_H, _S, _F}),
    _S: frozenset({_R, _P, _Q, _H, _F}),
    _R: frozenset({_P, _Q, _H, _F}),
    _P: frozenset({_R, _Q, _H, _F}),
    _F: frozenset({_Q}),
}


class IllegalTransitionError(RuntimeError):
    """A change that the table does not allow: a fault of ours, told with the job's history."""

    def __init__(self, job_id: int, old: JobState, new: JobState, history: tuple[str, ...] = ()) -> None:
        story = "; ".join(history) or "none recorded"
        super().__init__(f"job {job_id}: {old} -> {new} is not allowed (history: {story})")
        self.job_id = job_id
        self.old = old
        self.new = new


def check_change(job_id: int, old: JobState, new: JobState, history: tuple[str, ...] = ()) -> None:
    """Return quietly if `old -> new` is allowed (staying is), else raise IllegalTransitionError."""
    if new is not old and new not in CHANGES[old]:
        raise IllegalTransitionError(job_id, old, new, history)
