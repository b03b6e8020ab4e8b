"""A job as requests and the jobs file refer to it: its state and who holds it."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.model.states import JobState, Outcome


@dataclass(frozen=True)
class JobFact:
    """The state of a job named in a request."""

    job_id: int
    state: JobState
    outcome: Outcome | None = None
    held_by: str | None = None
