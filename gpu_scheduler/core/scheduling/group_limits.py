"""Limits how many jobs of a group run at the same time (attribute `max-running`).

Of the jobs of a group that run or wait only for GPUs, the smallest `max-running` counts. A job of a full
group is passed over in every respect: it gets no GPUs and no reservation, and preempts no other job. A job
for which GPUs are reserved counts as running, so that no other job of its group takes its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import PendingQueue


class GroupLimits:
    """The jobs of each group that run, or are about to in this round, and how many of them may."""

    def __init__(self, facts: Facts) -> None:
        running = [one.resources for one in facts.attempts if one.state.is_open]
        waiting = [one.resources for one in facts.reserved_jobs]
        self._most: dict[str, int] = {}
        self._lower((*running, *waiting, *PendingQueue.of(facts.pending_groups).limited))
        self._taken = Counter(one.group for one in running if one.group is not None)

    def _lower(self, every: Iterable[ResourceSpec]) -> None:
        for one in every:
            if one.group is not None and one.max_running is not None:
                self._most[one.group] = min(one.max_running, self._most.get(one.group, one.max_running))

    def refusal(self, resources: ResourceSpec) -> WaitReason | None:
        """Returns why no other job with these resources may run now; None if one may."""
        if resources.group is None:
            return None
        self._lower([resources])
        taken, most = self._taken[resources.group], self._most.get(resources.group)
        if most is None or taken < most:
            return None
        return WaitReason(WaitKind.GROUP_FULL, resources.group, running=taken, max_running=most)

    def take(self, resources: ResourceSpec) -> None:
        """Counts one more job with these resources as running."""
        if resources.group is not None:
            self._taken[resources.group] += 1
