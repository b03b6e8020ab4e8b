"""Decides the effect of submitting a job again (docs/design.md, Jobs file)."""

from __future__ import annotations

from enum import Enum

from gpu_scheduler.core.model.job_spec import Kind
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import JobState, Outcome


class SubmitEffect(Enum):
    """The effect of submitting a job. KEPT: the job exists, is open or completed, and nothing runs."""

    NEW = "new"
    REQUEUED = "requeued"
    KEPT = "kept"


def submit_effect(kind: Kind, newest: JobFact | None, cancel: bool) -> SubmitEffect:
    """Returns the effect of submitting a job.

    A command creates a new job each time; a CSV line has one job, which runs again only if it ended without
    success. newest: the newest job of the same identity; cancel: the job is cancelled as it is submitted.
    """
    if kind == "command" or newest is None:
        return SubmitEffect.NEW
    unsuccessful = newest.state is JobState.FINISHED and newest.outcome is not Outcome.COMPLETED
    return SubmitEffect.REQUEUED if unsuccessful and not cancel else SubmitEffect.KEPT
