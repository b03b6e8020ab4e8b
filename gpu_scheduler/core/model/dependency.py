"""A dependency: one job, the parent, must end before another job may start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.core.model.states import JobState, Outcome

#: The parent id of a dependency whose reference names no job, or would make the job wait for itself.
UNRESOLVED = 0


class DependencyKind(str, Enum):
    """The condition that a parent must meet. `after` requires COMPLETED, `after-any` requires FINISHED."""

    COMPLETED = "completed"
    FINISHED = "finished"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Dependency:
    """One parent of a job. reference: the id or name that the user gave; a name may mean several jobs."""

    parent_id: int
    kind: DependencyKind
    reference: str


class Parent(NamedTuple):
    """A parent of a job in its current state. Named tuples are fast to create.

    id: UNRESOLVED if the reference could not be resolved; name, state, outcome: those of the parent, None if
    there is no such job; kind, reference: as in `Dependency`.
    """

    id: int
    name: str | None
    state: JobState | None
    outcome: Outcome | None
    kind: DependencyKind
    reference: str
