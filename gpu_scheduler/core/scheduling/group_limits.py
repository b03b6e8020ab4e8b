"""Limits how many jobs of a group (attribute `max-running`) and jobs without a GPU run at the same time.

Of the jobs of a group that run or wait only for GPUs, the smallest `max-running` counts. The jobs without a
GPU are one more group, whose limit is `--cpu-jobs`. A job of a full group is passed over in every respect: it
gets no GPUs and no reservation, and preempts no other job. A job for which GPUs are reserved counts as
running, so that no other job of its group takes its place.
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
        self._most: dict[str | None, int] = {None: facts.settings.cpu_jobs}
        self._lower((*running, *waiting, *PendingQueue.of(facts.pending_groups).limited))
        self._taken = Counter(group for one in running for group in _groups_of(one))

    def _lower(self, every: Iterable[ResourceSpec]) -> None:
        for one in every:
            if one.group is not None and one.max_running is not None:
                self._most[one.group] = min(one.max_running, self._most.get(one.group, one.max_running))

    def refusal(self, resources: ResourceSpec) -> WaitReason | None:
        """Returns why no other job with these resources may run now; None if one may."""
        self._lower([resources])
        for group in _groups_of(resources):
            taken, most = self._taken[group], self._most.get(group)
            if most is not None and taken >= most:
                kind = WaitKind.CPU_JOBS_FULL if group is None else WaitKind.GROUP_FULL
                return WaitReason(kind, group or "", running=taken, max_running=most)
        return None

    def take(self, resources: ResourceSpec) -> None:
        """Counts one more job with these resources as running."""
        self._taken.update(_groups_of(resources))


def _groups_of(resources: ResourceSpec) -> list[str | None]:
    """Returns the groups in which a job with these resources counts; None: the jobs without a GPU."""
    groups: list[str | None] = [] if resources.group is None else [resources.group]
    return groups if resources.needs_gpus else [*groups, None]
