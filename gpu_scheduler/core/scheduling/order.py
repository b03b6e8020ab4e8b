"""Orders waiting jobs by priority and queue position. Everything that reads the queue uses this order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob


def queue_key(job: QueuedJob) -> tuple[int, int, int]:
    """Returns the key by which waiting jobs are sorted."""
    return job.priority, job.position, job.job_id


def order(groups: Sequence[PendingGroup]) -> Iterator[tuple[QueuedJob, PendingGroup]]:
    """Yields every waiting job with its group: lowest priority number first, then lowest queue position."""

    def with_group(group: PendingGroup) -> Iterator[tuple[QueuedJob, PendingGroup]]:
        for job in group.jobs:
            yield job, group

    streams: Iterable[Iterator[tuple[QueuedJob, PendingGroup]]] = [with_group(group) for group in groups]
    yield from heapq.merge(*streams, key=lambda item: queue_key(item[0]))
