"""Defines the states of jobs and of attempts, and the allowed transitions between them.

Only this module decides which state may follow which. The *outcome* of an attempt is kept separate from its
state, so that results such as "timed out" and "interrupted" need no states of their own.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar


class TextEnum(str, Enum):
    """Base class of enumerations whose members are formatted as their values."""

    def __str__(self) -> str:
        return str(self.value)


class JobState(TextEnum):
    """The state of a job in its life cycle."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(TextEnum):
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


#: States of a job with an open attempt.
ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})

#: States of a job that waits for something.
WAITING = frozenset({JobState.QUEUED, JobState.HELD})

#: Outcomes that count as a failure of the job.
FAILED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_STARTED})

_H, _Q, _S, _R, _P, _F = JobState
#: For each state of a job, the states that may follow it. When an attempt ends, its job moves to FINISHED, to
#: QUEUED (after a failed launch or for a retry) or to HELD (after an interruption or a preemption).
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _H: frozenset({_Q, _F}),
    _Q: frozenset({_H, _S, _F}),
    _S: frozenset({_R, _P, _Q, _H, _F}),
    _R: frozenset({_P, _Q, _H, _F}),
    _P: frozenset({_R, _Q, _H, _F}),
    _F: frozenset({_Q}),
}


class AttemptState(TextEnum):
    """The state of an attempt in its life cycle."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ORPHANED = "orphaned"
    ENDED = "ended"
    RELEASED = "released"
    CLOSED = "closed"

    @property
    def is_open(self) -> bool:
        """True while the attempt has no outcome."""
        return self in OPEN

    @property
    def holds_gpus(self) -> bool:
        """True while the GPUs of the attempt are allocated to it."""
        return self.is_open or self is AttemptState.ENDED


#: States of an attempt without an outcome.
OPEN = frozenset({AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ORPHANED})

_St, _Ru, _Sp, _Or, _En, _Re, _Cl = AttemptState
#: For each state of an attempt, the states that may follow it. An orphaned attempt is supervised again if its
#: folder was moved away and is now back.
ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    _St: frozenset({_Ru, _Sp, _Or, _En}),
    _Ru: frozenset({_Sp, _Or, _En}),
    _Sp: frozenset({_Ru, _Or, _En}),
    _Or: frozenset({_Ru, _Sp, _En}),
    _En: frozenset({_Re}),
    _Re: frozenset({_Cl}),
    _Cl: frozenset(),
}


_State = TypeVar("_State", JobState, AttemptState)


class IllegalTransitionError(RuntimeError):
    """Raised for a change of state that the tables do not allow. It reports a bug, with the job's history."""

    def __init__(self, job_id: int, change: str, history: tuple[str, ...] = ()) -> None:
        story = f" (history: {'; '.join(history)})" if history else ""
        super().__init__(f"{change} is not allowed{story}")
        self.job_id = job_id
        self.change = change


def check_transition(job_id: int, subject: str, old: _State, new: _State) -> None:
    """Raises IllegalTransitionError if a job or its attempt may not change from `old` to `new`."""
    after = TRANSITIONS[old] if isinstance(old, JobState) else ATTEMPT_TRANSITIONS[old]
    if new is not old and new not in after:
        raise IllegalTransitionError(job_id, f"{subject}: the change from {old} to {new}")
