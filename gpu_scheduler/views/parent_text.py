"""Formats the parents of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.model.dependency import UNRESOLVED, DependencyKind, Parent
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.scheduling.dependencies import ParentStatus, status_of
from gpu_scheduler.core.text.formatting import and_more
from gpu_scheduler.views.reason_text import parent_end_text

#: Maximum number of parents that one reason names.
_MAX_NAMED = 3
#: The attribute that declares a dependency of each kind.
ATTRIBUTES = {DependencyKind.COMPLETED: "after", DependencyKind.FINISHED: "after-any"}


def parents_wait_text(parents: Sequence[Parent]) -> str:
    """Formats the wait of a queued job for its parents: "after job 3 (running), job 4 (held) and 2 more"."""
    for parent in parents:
        if status_of(parent) is ParentStatus.FAILED:
            return f"{parent_end_text(parent.id, parent.outcome)}, so the job will be skipped"
    return f"after {unmet_parents_text(parents)}"


def unmet_parents_text(parents: Sequence[Parent]) -> str:
    """Names the parents for which a job still waits: "job 3 (running), job 4 (held) and 2 more"."""
    unmet = [parent for parent in parents if status_of(parent) is not ParentStatus.MET]
    named = ", ".join(map(_with_state, unmet[:_MAX_NAMED])) or "jobs whose end is not recorded yet"
    return and_more(named, len(unmet) - _MAX_NAMED)


def _with_state(parent: Parent) -> str:
    if parent.id == UNRESOLVED:
        return f"{parent.reference} (no such job, or it waits for this job)"
    return f"job {parent.id} ({_state_text(parent)})"


def parent_text(parent: Parent) -> str:
    """Formats a parent with the attribute that names it: "after=prep: job 3 (prep) is running"."""
    given = f"{ATTRIBUTES[parent.kind]}={parent.reference}"
    if parent.id == UNRESOLVED:
        return f"{given} names no job, or a job that waits for this one"
    name = f" ({parent.name})" if parent.name else ""
    verb = "has ended:" if parent.state is JobState.FINISHED else "is"
    return f"{given}: job {parent.id}{name} {verb} {_state_text(parent)}"


def _state_text(parent: Parent) -> str:
    """Formats the state of a parent, or its outcome: "held", "timed out"."""
    if parent.state is None:
        return "unknown"
    return str(parent.outcome or parent.state).replace("_", " ")


def parent_objects(parents: Sequence[Parent]) -> list[dict[str, Any]]:
    """Returns the parents of a job as its list "after" in JSON."""
    return [
        {
            "id": None if parent.id == UNRESOLVED else parent.id,
            "name": parent.name,
            "state": parent.state,
            "outcome": parent.outcome,
            "kind": ATTRIBUTES[parent.kind],
            "reference": parent.reference,
        }
        for parent in parents
    ]
