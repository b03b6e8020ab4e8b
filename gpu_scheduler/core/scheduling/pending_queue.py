"""Keeps the pending groups in queue order and indexes their requests by size, from one round to the next.

With 10,000 different requests, sorting them and resolving their needs would take most of a round. A queue is
never changed: `updated` returns another one, which takes over what has not changed. The index is derived from
the groups, so a new queue with the same groups decides the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from typing import overload

from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import queue_key
from gpu_scheduler.core.scheduling.request_index import RequestIndex


class PendingQueue(Sequence[PendingGroup]):
    """The pending groups that wait for GPUs, in the order of their first jobs.

    groups: by handle, each with at least one job. The handle of a group is its spec key, unless several
    groups have the same resources. without_gpus: the groups whose jobs need no GPU; the sequence omits them.
    """

    def __init__(self, groups: Mapping[str, PendingGroup]) -> None:
        self.without_gpus = {handle: one for handle, one in groups.items() if not one.resources.needs_gpus}
        self._groups = {handle: one for handle, one in groups.items() if one.resources.needs_gpus}
        self._keys = {handle: queue_key(group.jobs[0]) for handle, group in self._groups.items()}
        self._order = sorted((key, handle) for handle, key in self._keys.items())
        self._without_reason = {handle for handle, group in self._groups.items() if group.reason is None}
        self._index: RequestIndex | None = None
        self._not_indexed: dict[str, PendingGroup | None] = {}

    @classmethod
    def of(cls, groups: Sequence[PendingGroup]) -> PendingQueue:
        """Returns these groups as a queue."""
        if isinstance(groups, cls):
            return groups
        found: dict[str, PendingGroup] = {}
        for number, group in enumerate(groups):
            key = group.resources.key()
            found[f"{key} {number}" if key in found else key] = group
        return cls({handle: group for handle, group in found.items() if group.jobs})

    def updated(self, changes: Mapping[str, PendingGroup | None]) -> PendingQueue:
        """Returns the queue after these changes, by handle. None removes a group."""
        new = object.__new__(PendingQueue)
        new.without_gpus = {handle: one for handle, one in self.without_gpus.items() if handle not in changes}
        new._groups, new._keys = dict(self._groups), dict(self._keys)
        new._order, new._without_reason = list(self._order), set(self._without_reason)
        new._index, new._not_indexed = self._index, dict(self._not_indexed)
        for handle, group in changes.items():
            if group is not None and not group.resources.needs_gpus:
                new.without_gpus[handle] = group
            else:
                new._not_indexed[handle] = group
                new._replace(handle, group)
        return new

    def _replace(self, handle: str, group: PendingGroup | None) -> None:
        self._groups.pop(handle, None)
        self._without_reason.discard(handle)
        before = self._keys.get(handle)
        after = None if group is None else queue_key(group.jobs[0])
        if before is not None and before != after:
            del self._keys[handle]
            del self._order[bisect_left(self._order, (before, handle))]
        if group is None or after is None:
            return
        self._groups[handle] = group
        if group.reason is None:
            self._without_reason.add(handle)
        if before != after:
            self._keys[handle] = after
            insort(self._order, (after, handle))

    def requests(self, facts: Facts) -> RequestIndex:
        """Returns the requests of the groups, with their current needs, by size."""
        if self._index is None:
            self._index = RequestIndex.of(self._groups, facts)
        else:
            self._index = self._index.updated(self._not_indexed, self._groups, facts)
        self._not_indexed = {}
        return self._index

    def group(self, handle: str) -> PendingGroup:
        """Returns the group with this handle."""
        return self._groups.get(handle) or self.without_gpus[handle]

    def key(self, handle: str) -> tuple[int, int, int]:
        """Returns the queue key of the first job of a group."""
        return self._keys[handle]

    def has_group(self, handle: str) -> bool:
        """Returns whether there is a group with this handle."""
        return handle in self._groups or handle in self.without_gpus

    def first(self, number: int) -> Iterator[str]:
        """Yields the handles of the first groups."""
        return (handle for _, handle in islice(self._order, number))

    def from_place(self, start: int, number: int) -> Iterator[str]:
        """Yields the handles of this many groups from a place on, and continues with the first ones."""
        for at in range(start, start + min(number, len(self._order))):
            yield self._order[at % len(self._order)][1]

    def up_to_priority(self, priority: int) -> Iterator[str]:
        """Yields the handles of the groups whose first job has at most this priority number."""
        for key, handle in self._order:
            if key[0] > priority:
                return
            yield handle

    def without_reason(self, number: int) -> list[str]:
        """Returns the handles of the first groups without a wait reason, at most this many."""
        return nsmallest(number, self._without_reason, key=self._keys.__getitem__)

    @cached_property
    def limited(self) -> list[ResourceSpec]:
        """The resources of the groups whose jobs have the attribute `max-running`."""
        every = (*self._groups.values(), *self.without_gpus.values())
        return [one.resources for one in every if one.resources.max_running is not None]

    def holding(self, job_id: int, spec_key: str) -> list[str]:
        """Returns the handles of the groups that hold a job with these resources."""
        likely = self._groups.get(spec_key)
        if likely is not None and any(job.job_id == job_id for job in likely.jobs):
            return [spec_key]
        return [
            handle
            for handle, group in self._groups.items()
            if handle.startswith(spec_key) and any(job.job_id == job_id for job in group.jobs)
        ]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[PendingGroup]:
        return (self._groups[handle] for _, handle in self._order)

    @overload
    def __getitem__(self, at: int) -> PendingGroup: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PendingGroup]: ...

    def __getitem__(self, at: int | slice) -> PendingGroup | Sequence[PendingGroup]:
        if isinstance(at, slice):
            return [self._groups[handle] for _, handle in self._order[at]]
        return self._groups[self._order[at][1]]
