"""The walk through the queue without an index: placement is asked for every job until its group is full."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling import queue_placement
from gpu_scheduler.core.scheduling.actions import Action
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.pending_queue import queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.queue_walk import QueueWalk, wait_reasons


class PlainWalk(QueueWalk):
    """Visits every job of the queue in order."""

    def place(self) -> list[Action]:
        """Returns the starts, at most one preemption, and the changes of the reservation and wait reasons."""
        jobs = [(job, handle) for handle in self._queue.first(10_000) for job in self._group(handle).jobs]
        for job, handle in sorted(jobs, key=lambda one: queue_key(one[0])):
            self._ask(job, handle, self._group(handle))
            if self._is_over:
                break
        else:
            self._actions += self._changed_reservation()
        return self._actions + wait_reasons(self._queue, self._reasons)

    def _group(self, handle: str) -> PendingGroup:
        return self._queue.group(handle)

    def _ask(self, job: QueuedJob, handle: str, group: PendingGroup) -> None:
        need, allowed = self._index.requests[handle].need, group.resources.allowed
        if handle not in self._full:
            upper_s = math.inf
            if self._gpus.has_queue_reservation:
                upper_s = self._facts.run_times.estimate(job.run_time).upper_s
            answer = self._gpus.place(need, allowed, upper_s)
            if not isinstance(answer, WaitReason):
                self._start(job, group, need, answer, upper_s)
                return
            self._reasons.setdefault(handle, answer)
            is_full = not self._gpus.has_queue_reservation or isinstance(
                self._gpus.place(need, allowed, 0.0), WaitReason
            )
            if is_full:
                self._full.add(handle)
                if self._preempt(job, handle, group):
                    return
        if self._may_reserve:
            self._consider(job, handle, group)


def place_plainly(facts: Facts) -> Sequence[Action]:
    """Returns the actions of `place_jobs` without an index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_placement, "QueueWalk", PlainWalk)
        return place_jobs(facts)
