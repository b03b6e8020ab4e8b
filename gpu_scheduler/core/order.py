"""Orders waiting jobs by (priority, queue position). Nothing else orders the queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from gpu_scheduler.core.facts import Line, QueuedJob

#: Priority of a job that sets none (docs/design.md, Queue order); `add` writes 0.
NORMAL = 200


def order(lines: Sequence[Line]) -> Iterator[tuple[QueuedJob, Line]]:
    """Yields every waiting job with its group: lowest priority number first, then lowest queue position."""

    def with_group(group: Line) -> Iterator[tuple[int, int, int, QueuedJob, Line]]:
        for job in group.jobs:
            yield job.priority, job.place, job.job_id, job, group

    streams: Iterable[Iterator[tuple[int, int, int, QueuedJob, Line]]]
    streams = [with_group(group) for group in lines]
    for *_, job, group in heapq.merge(*streams, key=lambda item: item[:3]):
        yield job, group
