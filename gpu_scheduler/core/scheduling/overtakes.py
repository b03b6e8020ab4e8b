"""Counts how often a waiting job has been overtaken, from the recorded starts of jobs.

A job is overtaken when a job that sorts after it, and that was submitted at least LATE_S after it, starts
while it waits for GPUs. Jobs submitted together therefore never overtake each other, so that a batch is
packed as well as without this count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import QueuedJob

#: Seconds by which a job must have been submitted later to count.
LATE_S = 3600.0
#: Number of starts that are remembered. A job that was overtaken so long ago that all of them are newer
#: counts as not overtaken.
REMEMBERED_STARTS = 1024


class QueueStart(NamedTuple):
    """The start of a queued job: its place in the queue at that time, and wall times in seconds."""

    priority: int
    position: int
    submitted_at: float
    started_at: float


class Overtakes:
    """The newest starts, and the jobs that they overtook. starts: oldest first."""

    def __init__(self, starts: Sequence[QueueStart] = ()) -> None:
        self.starts = tuple(starts[-REMEMBERED_STARTS:])
        self._thresholds: dict[int, list[float]] = {}

    def with_starts(self, starts: Sequence[QueueStart]) -> Overtakes:
        """Returns a copy with these newer starts."""
        if not starts:
            return self
        changed = Overtakes((*self.starts, *starts))
        # A start that is forgotten may have been the newest submission, so this is an upper bound.
        newest = max(one.submitted_at for one in starts)
        changed.__dict__["_newest_submission"] = max(self._newest_submission, newest)
        return changed

    def count(self, job: QueuedJob, since: float) -> int:
        """Returns how often a job has been overtaken since a time in wall seconds."""
        first = bisect_right(self._keys, (job.priority, job.position))
        late = job.submitted_at + LATE_S
        return sum(one.submitted_at >= late and one.started_at >= since for one in self._by_key[first:])

    def may_reach(self, job: QueuedJob, submitted_at: float, number: int) -> bool:
        """Returns whether `number` starts overtook a job, or one behind it that was submitted at this time.

        It does not matter how long these jobs have been waiting, so the answer may be yes where it is no. For
        nearly all jobs it is no, and costs a binary search at most.
        """
        if number <= 0:
            return True
        if self._newest_submission < submitted_at + LATE_S:
            return False
        first = bisect_right(self._keys, (job.priority, job.position))
        return self._latest(number)[first] >= submitted_at + LATE_S

    @cached_property
    def _newest_submission(self) -> float:
        return max((one.submitted_at for one in self.starts), default=float("-inf"))

    @cached_property
    def _by_key(self) -> list[QueueStart]:
        return sorted(self.starts)

    @cached_property
    def _keys(self) -> list[tuple[int, int]]:
        return [(one.priority, one.position) for one in self._by_key]

    def _latest(self, number: int) -> list[float]:
        """Returns, for each index, the `number`-th latest submission from there on; -inf if there is none."""
        if number not in self._thresholds:
            newest: list[float] = []
            found = [float("-inf")]
            for one in reversed(self._by_key):
                if len(newest) < number:
                    heappush(newest, one.submitted_at)
                else:
                    heappushpop(newest, one.submitted_at)
                found.append(newest[0] if len(newest) == number else float("-inf"))
            self._thresholds[number] = found[::-1]
        return self._thresholds[number]
