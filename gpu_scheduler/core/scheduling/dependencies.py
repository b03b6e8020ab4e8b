"""Decides whether a parent lets a job start, and finds jobs that wait for themselves.

The triggers of the store apply the same rule to count the parents of each job (store/migrations).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import TypeVar

from gpu_scheduler.core.model.dependency import DependencyKind, Parent
from gpu_scheduler.core.model.states import JobState, Outcome

#: Outcomes that meet the condition of the kind COMPLETED. `ended` is the outcome of an adopted process.
COMPLETED_OUTCOMES = frozenset({Outcome.COMPLETED, Outcome.ENDED})

_Node = TypeVar("_Node", bound=Hashable)


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


def find_cycles(parents: Mapping[_Node, Iterable[_Node]]) -> set[_Node]:
    """Returns the nodes that lie on a cycle, or on a path from one cycle to another.

    parents: the nodes that each node waits for. Takes time in proportion to the number of edges.
    """
    above = {node: {parent for parent in of if parent in parents} for node, of in parents.items()}
    below: dict[_Node, set[_Node]] = {node: set() for node in above}
    for node, of in above.items():
        for parent in of:
            below[parent].add(node)
    _trim(above, below)
    _trim(below, above)
    return set(above)


def _trim(ahead: dict[_Node, set[_Node]], behind: dict[_Node, set[_Node]]) -> None:
    """Removes every node without nodes ahead, then those that this leaves without nodes ahead, and so on."""
    loose = [node for node, of in ahead.items() if not of]
    while loose:
        node = loose.pop()
        for other in behind.pop(node):
            ahead[other].discard(node)
            if not ahead[other]:
                loose.append(other)
        del ahead[node]
