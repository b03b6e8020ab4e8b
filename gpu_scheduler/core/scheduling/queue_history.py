"""Keeps the history on which the queue order depends: the newest starts, and the GPU time of the last days.

A waiting job is overtaken when a job that sorts after it, and that was submitted at least LATE_S after it,
starts while it waits for GPUs. Jobs submitted together therefore never overtake each other, so that a batch
is packed as well as without this count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from gpu_scheduler.core.model.units import WHOLE
from gpu_scheduler.core.scheduling.accounting import allocated_share
from gpu_scheduler.core.scheduling.actions import Action, RecordGpuTime

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Facts, Gpu, QueuedJob


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


# Counts the GPU time that attempts got, and that a reservation by queue order kept idle.


#: The period over which idle time is compared with delivered time, in hours.
PERIOD_HOURS = 168
#: GPU time is recorded at least this often, in seconds, and whenever allocations change.
_INTERVAL_S = 60.0
#: At least this much time counts as delivered, in GPU-seconds: in a new store, a few idle seconds would
#: otherwise exceed any fraction of what was delivered so far.
_MIN_DELIVERED_S = 3600.0


class GpuTime(Struct, frozen=True):
    """GPU-seconds in the last PERIOD_HOURS.

    delivered_s: allocated to attempts; a half of a GPU counts half. reserved_idle_s: not allocated, on GPUs
    reserved by queue order. counted_until: the end of the counted time in wall seconds; None if nothing has
    been counted yet.
    """

    delivered_s: float = 0.0
    reserved_idle_s: float = 0.0
    counted_until: float | None = None

    def budget_left_s(self, idle_budget: float) -> float:
        """Returns for how many GPU-seconds reserved GPUs may still be idle; negative if it was too many.

        idle_budget: a fraction of the delivered time. At least one GPU-hour counts as delivered.
        """
        return idle_budget * max(self.delivered_s, _MIN_DELIVERED_S) - self.reserved_idle_s


def count_gpu_time(facts: Facts, *, allocations_change: bool) -> list[Action]:
    """Records the GPU time since it was last counted, if allocations change now or enough time has passed.

    While nothing is allocated or reserved, nothing needs to be recorded until an allocation changes.
    """
    counted = facts.gpu_time
    if counted is None:
        return []
    now = facts.now.wall
    if counted.counted_until is None or now < counted.counted_until:
        return [RecordGpuTime(0.0, 0.0, now)]  # begin to count; the clock may have been set back
    seconds = now - counted.counted_until
    if seconds < _INTERVAL_S and not (allocations_change and seconds > 0):
        return []
    reserved = () if facts.queue_reservation is None else facts.queue_reservation.gpus
    shares = {gpu.uuid: min(WHOLE, _allocated_share(gpu, facts)) for gpu in facts.gpus}
    delivered = sum(shares.values())
    idle = sum(WHOLE - share for uuid, share in shares.items() if uuid in reserved)
    if not (delivered or idle or allocations_change):
        return []
    return [RecordGpuTime(seconds * delivered / WHOLE, seconds * idle / WHOLE, now)]


def _allocated_share(gpu: Gpu, facts: Facts) -> int:
    total, spike = gpu.sample.total_mib if gpu.sample else None, facts.settings.spike_buffer
    holders = [one for one in facts.attempts if gpu.uuid in one.gpus and one.state.holds_gpus]
    return sum(allocated_share(one.allocation(gpu.uuid), total, spike) for one in holders)
