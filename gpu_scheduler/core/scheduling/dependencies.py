"""Decides whether a parent lets a job start.

The triggers of the store apply the same rule to count the parents of each job (store/migrations).
"""

from __future__ import annotations

from enum import Enum

from gpu_scheduler.core.model.job_spec import DependencyKind, Parent
from gpu_scheduler.core.model.states import JobState, Outcome

#: Outcomes that meet the condition of the kind COMPLETED. `ended` is the outcome of an adopted process.
COMPLETED_OUTCOMES = frozenset({Outcome.COMPLETED, Outcome.ENDED})


class ParentStatus(Enum):
    """The effect of a parent on the job that waits for it."""

    MET = "met"
    PENDING = "pending"
    #: The job is skipped, unless the parent is queued again.
    FAILED = "failed"


def parent_status(kind: DependencyKind, state: JobState | None, outcome: Outcome | None) -> ParentStatus:
    """Returns the effect of a parent in this state. state: None if the parent is unknown."""
    if state is not JobState.FINISHED:
        return ParentStatus.PENDING
    if kind is DependencyKind.FINISHED or outcome in COMPLETED_OUTCOMES:
        return ParentStatus.MET
    return ParentStatus.FAILED


def status_of(parent: Parent) -> ParentStatus:
    """Returns the effect of a parent on the job."""
    return parent_status(parent.kind, parent.state, parent.outcome)
