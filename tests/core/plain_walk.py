"""The walk through the queue without tricks: every job is tried, in order, and every reservation planned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_scheduler.core.scheduling import pending_queue, queue_placement
from gpu_scheduler.core.scheduling.actions import Action
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob
from gpu_scheduler.core.scheduling.queue_placement import _Walk, place_jobs


class PlainWalk(_Walk):
    """Tries every job, whatever the jobs before it were refused."""

    def _is_of_interest(self, n: int, group: PendingGroup, job: QueuedJob) -> bool:
        del n, group, job
        return True

    def _is_refused(self, request: pending_queue.GroupRequest, *, ends_in_time: bool) -> bool:
        del request, ends_in_time
        return False


def place_plainly(facts: Facts) -> Sequence[Action]:
    """Returns the actions of `place_jobs` with a plain walk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_placement, "_Walk", PlainWalk)
        return place_jobs(facts)
