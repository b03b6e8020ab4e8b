"""The order in which waiting jobs are tried: (priority, place). Nothing else orders the queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from gpu_scheduler.core.facts import Line, QueuedJob

#: A job without a priority (docs/design.md, Queue order); `add` writes 0.
NORMAL = 200


def order(lines: Sequence[Line]) -> Iterator[tuple[QueuedJob, Line]]:
    """Every waiting job with its line: lower priority number first, then lower place."""

    def with_line(line: Line) -> Iterator[tuple[int, int, int, QueuedJob, Line]]:
        for job in line.jobs:
            yield job.priority, job.place, job.job_id, job, line

    streams: Iterable[Iterator[tuple[int, int, int, QueuedJob, Line]]] = [with_line(line) for line in lines]
    for *_, job, line in heapq.merge(*streams, key=lambda item: item[:3]):
        yield job, line
