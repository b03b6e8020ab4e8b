"""Decides whether a job that is submitted again becomes a new job, runs again, or is kept."""

from __future__ import annotations

from enum import Enum

from gpu_scheduler.core.model.job_spec import Kind
from gpu_scheduler.core.model.request import JobFact
from gpu_scheduler.core.model.states import JobState, Outcome


class Resubmission(Enum):
    """The effect of submitting a job again.

    KEPT means that the existing job is left unchanged and nothing is queued.
    """

    NEW = "new"
    REQUEUED = "requeued"
    KEPT = "kept"


def decide_resubmission(kind: Kind, newest: JobFact | None, cancel: bool) -> Resubmission:
    """Returns the effect of submitting a job that may have been submitted before.

    A command creates a new job each time; a CSV line has one job, which runs again only if it ended without
    success. newest: the newest job with the same identity, if any; cancel: whether the line also cancels the
    job.
    """
    if kind == "command" or newest is None:
        return Resubmission.NEW
    unsuccessful = newest.state is JobState.FINISHED and newest.outcome is not Outcome.COMPLETED
    return Resubmission.REQUEUED if unsuccessful and not cancel else Resubmission.KEPT
