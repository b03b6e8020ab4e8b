"""Keeps the history that a round needs: the newest starts, the newest ends on each GPU, and the GPU time.

A waiting job is overtaken when a job that sorts after it, and that was submitted at least LATE_S after it,
starts while it waits for GPUs. Jobs submitted together therefore never overtake each other, so that a batch
is packed as well as without this count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heappush, heappushpop
from typing import NamedTuple

from msgspec import Struct

from gpu_scheduler.core.explain.explanation import blamed_gpus
from gpu_scheduler.core.model.reasons import DEVICE_FAILURES, StateReason

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

    def count(self, place: tuple[int, int], submitted_at: float, since: float) -> int:
        """Returns how often a job has been overtaken since a time in wall seconds.

        place: its priority and position. submitted_at: when it was submitted, in wall seconds.
        """
        first = bisect_right(self._keys, place)
        late = submitted_at + LATE_S
        return sum(one.submitted_at >= late and one.started_at >= since for one in self._by_key[first:])

    def may_reach(self, place: tuple[int, int], submitted_at: float, number: int) -> bool:
        """Returns whether `number` starts overtook a job, or one behind it that was submitted at this time.

        It does not matter how long these jobs have been waiting, so the answer may be yes where it is no. For
        nearly all jobs it is no, and costs a binary search at most.
        """
        if number <= 0:
            return True
        if self._newest_submission < submitted_at + LATE_S:
            return False
        first = bisect_right(self._keys, place)
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


# The ends of attempts on each GPU, from which its suspicion is derived.


#: A failure within this many seconds of the start is quick; a job that runs longer shows that others can run.
QUICK_S = 10.0
#: Number of ends that are remembered for each GPU.
REMEMBERED_ENDS = 64


class AttemptEnd(NamedTuple):
    """The end of an attempt that ran on these GPUs; failure: why its command failed, or None. Wall times."""

    ended_at: float
    attempt_id: int
    job_id: int
    gpus: tuple[str, ...]
    created_at: float
    started_at: float
    has_completed: bool
    failure: StateReason | None

    @property
    def device_error(self) -> str | None:
        """The error of the GPU that the command reported, if that is why it failed."""
        failure = self.failure
        return failure.error if failure and failure.failure in DEVICE_FAILURES else None

    @property
    def is_quick(self) -> bool:
        """True if it ended soon after its start."""
        return self.ended_at - self.started_at <= QUICK_S


class GpuHistory:
    """The newest ends on each GPU, in the order of their times.

    on_gpu: those on each GPU, by UUID. ends: all of them. well: those that show that jobs can run.
    """

    def __init__(self, ends: Iterable[AttemptEnd] = ()) -> None:
        found: dict[str, list[AttemptEnd]] = {}
        for end in sorted(ends, key=lambda end: end[:2]):
            for uuid in end.gpus:
                found.setdefault(uuid, []).append(end)
        self.on_gpu = {uuid: on_gpu[-REMEMBERED_ENDS:] for uuid, on_gpu in found.items()}
        self.ends = list({one.attempt_id: one for kept in self.on_gpu.values() for one in kept}.values())
        self.well = [one for one in self.ends if one.has_completed or not (one.is_quick or one.failure)]

    @cached_property
    def counted(self) -> dict[str, set[int]]:
        """The ids of the failed attempts that count against each GPU."""
        failed = [
            (end, (end.job_id, why.failure, why.exit_code, why.signal), blamed_gpus(why, end.gpus))
            for end in self.ends
            if (why := end.failure) is not None
        ]
        places: dict[object, set[str]] = {}
        for end, way, _ in failed:
            places[way] = places.get(way, set(end.gpus)) & set(end.gpus)
        counted: dict[str, set[int]] = {}
        for end, way, blamed in failed:
            if end.is_quick or end.device_error is not None:
                for uuid in places[way].intersection(blamed):
                    counted.setdefault(uuid, set()).add(end.attempt_id)
        return counted


# Counts the GPU time that attempts got, and that a reservation by queue order kept idle.


#: The period over which idle time is compared with delivered time, in hours.
PERIOD_HOURS = 168
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
