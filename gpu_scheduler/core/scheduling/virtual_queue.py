"""The waiting jobs of a playback, in groups as a round reads them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from gpu_scheduler.core.scheduling.facts import PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import queue_key

#: Number of jobs of a group that a round reads. The rounds of the scheduler read as many.
GROUP_SIZE = 64


@dataclass
class VirtualQueue:
    """Waiting jobs by resource spec, each list in queue order."""

    _jobs: dict[ResourceSpec, list[QueuedJob]] = field(default_factory=dict)
    _groups: dict[ResourceSpec, PendingGroup] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def jobs(self) -> list[QueuedJob]:
        """Returns all waiting jobs in queue order."""
        return sorted((job for listed in self._jobs.values() for job in listed), key=queue_key)

    def groups(self) -> tuple[PendingGroup, ...]:
        """Returns the groups that a round reads."""
        for resources, listed in self._jobs.items():
            if resources not in self._groups:
                has_more = len(listed) > GROUP_SIZE
                self._groups[resources] = PendingGroup(resources, tuple(listed[:GROUP_SIZE]), has_more)
        return tuple(self._groups.values())

    def add(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Adds a job at its place in the queue."""
        insort(self._jobs.setdefault(resources, []), job, key=queue_key)
        self._groups.pop(resources, None)

    def remove(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Removes a job. Raises KeyError if no job of its group waits."""
        listed = self._jobs[resources]
        del listed[bisect_left(listed, queue_key(job), key=queue_key)]
        self._groups.pop(resources, None)
        if not listed:
            del self._jobs[resources]
