"""Orders waiting jobs by priority and queue position. Everything that reads the queue uses this order."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.facts import QueuedJob


def queue_key(job: QueuedJob) -> tuple[int, int, int]:
    """Returns the key by which waiting jobs are sorted."""
    return job.priority, job.position, job.job_id
