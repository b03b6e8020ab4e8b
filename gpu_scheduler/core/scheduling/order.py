"""Orders waiting jobs by priority and queue position. Everything that reads the queue uses this order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob


def order(groups: Sequence[PendingGroup]) -> Iterator[tuple[QueuedJob, PendingGroup]]:
    """Yields every waiting job with its group: lowest priority number first, then lowest queue position."""

    def with_group(group: PendingGroup) -> Iterator[tuple[int, int, int, QueuedJob, PendingGroup]]:
        for job in group.jobs:
            yield job.priority, job.position, job.job_id, job, group

    streams: Iterable[Iterator[tuple[int, int, int, QueuedJob, PendingGroup]]]
    streams = [with_group(group) for group in groups]
    for *_, job, group in heapq.merge(*streams, key=lambda item: item[:3]):
        yield job, group
