"""The metrics of a queue for Prometheus (docs/metrics.md), made from its store at each scrape.

The store keeps every attempt, so the totals of a new server are those of the one before. A server adds up
each attempt once and reads only newer ones afterwards. No label names a job or a user.

Importing this module needs the package prometheus_client, so the application imports it at the first scrape.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct, field
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.reasons import WaitKind
from gpu_scheduler.core.model.states import ACTIVE, Outcome
from gpu_scheduler.core.model.values import WHOLE
from gpu_scheduler.errors import StoreNotFoundError
from gpu_scheduler.show.gpu_views import gpu_views
from gpu_scheduler.show.job_views import GpuView
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.store_access import open_store, scheduler_pid_of
from gpu_scheduler.store.attempt_history import AttemptTimes, attempt_times, gpu_time, newest_attempt
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.pending_groups import wait_counts

if TYPE_CHECKING:
    from gpu_scheduler.store.store import Store

_MIB = 1024 * 1024
#: Upper bounds of the buckets, in seconds: up to a week, and up to 5 minutes.
_LONG = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 168 * 3600)
_SHORT = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Durations:
    """How many durations are in each bucket, and their sum in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.total_s = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)

    def add(self, seconds: float) -> None:
        """Adds a duration. A negative one counts as 0, because the clock was set back."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += max(0.0, seconds)


class Totals:
    """The totals over the attempts of a store; `read` adds those that are new or have ended since.

    A hand-over lasts from the end of an attempt to the first instruction of the next one on that GPU, if the
    job of the latter was waiting then; on several GPUs, from the last of these ends.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.waits, self.runs, self.handovers = Durations(_LONG), Durations(_LONG), Durations(_SHORT)
        self._newest, self._token = 0, ""
        #: For each open attempt, the end that its hand-over began with; None if there was none.
        self._open: dict[int, float | None] = {}
        #: The ends that no start has followed yet, and the newest one on each GPU before the newest start.
        self._ends: list[tuple[float, tuple[str, ...]]] = []
        self._free: dict[str, float] = {}

    def is_of(self, store: Store) -> bool:
        """Returns whether the store still has the newest attempt; not after `start --fresh` or --restore."""
        newest = store.attempt(self._newest) if self._newest else None
        return not self._newest or (newest is not None and newest.token == self._token)

    def read(self, store: Store) -> None:
        """Adds the new attempts, and the ends of those that were open."""
        before, self._open = self._open, {}
        for one in attempt_times(store, self._newest, before):
            end = before[one.id] if one.id in before else self._start(one)
            if one.outcome is None or one.ended_at is None:
                self._open[one.id] = end
                continue
            self.outcomes[one.outcome] += 1
            if one.started_at is not None:
                self.runs.add(one.ended_at - one.started_at)
                heappush(self._ends, (one.ended_at, one.gpus))
                if end is not None:
                    self.handovers.add(one.started_at - end)
        self._newest, self._token = newest_attempt(store)

    def _start(self, one: AttemptTimes) -> float | None:
        """Adds the start of an attempt. Returns the end with which its hand-over began, or None."""
        while self._ends and self._ends[0][0] <= one.created_at:
            ended_at, left = heappop(self._ends)
            self._free |= dict.fromkeys(left, ended_at)
        ends = [self._free.pop(gpu) for gpu in one.gpus if gpu in self._free]
        if one.queued_at is None:
            return None  # it watches a process that runs already
        self.waits.add(one.created_at - one.queued_at)
        return max(ends) if ends and one.queued_at <= max(ends) else None


class QueueState(Struct, frozen=True):
    """The state of a queue at `now`, in wall seconds. The defaults show a queue without a store.

    waiting: the number of jobs that wait, by kind. delivered_s, reserved_idle_s: GPU-seconds of the last
    seven days. gpus: the managed ones.
    """

    now: float = 0.0
    is_up: bool = False
    waiting: Mapping[WaitKind, int] = field(default_factory=lambda: dict.fromkeys(WaitKind, 0))
    running: int = 0
    delivered_s: float = 0.0
    reserved_idle_s: float = 0.0
    gpus: tuple[GpuView, ...] = ()
    totals: Totals = field(default_factory=Totals)


def families(of: QueueState) -> Iterator[Metric]:
    """Yields the metrics of a snapshot."""
    yield _gauge("up", "Whether a scheduler is running (0 or 1)", of.is_up)
    waiting = GaugeMetricFamily("gpu_scheduler_waiting_jobs", "Queued and held jobs", labels=["wait_kind"])
    for kind, jobs in of.waiting.items():
        waiting.add_metric([kind.value], jobs)
    yield waiting
    yield _gauge("running_jobs", "Jobs that are starting, running or stopping", of.running)
    text = "Attempts that have ended"
    attempts = CounterMetricFamily("gpu_scheduler_attempts", text, labels=["outcome"])
    for outcome in (one for one in Outcome if one is not Outcome.SKIPPED):
        attempts.add_metric([outcome.value], of.totals.outcomes[outcome.value])
    yield attempts
    text = "Time from when a job begins to wait to its start"
    yield _histogram("queue_wait_seconds", text, of.totals.waits)
    yield _histogram("run_time_seconds", "Run time of ended attempts", of.totals.runs)
    text = "Time from the end of a job on a GPU to the first instruction of the next one, which was waiting"
    yield _histogram("handover_seconds", text, of.totals.handovers)
    text = "GPU-seconds of the last 7 days that were "
    yield _gauge("week_delivered_gpu_seconds", f"{text}allocated to jobs", of.delivered_s)
    yield _gauge("week_reserved_idle_gpu_seconds", f"{text}idle under a reservation", of.reserved_idle_s)
    for name, text in _OF_GPUS.items():
        gpus = GaugeMetricFamily(f"gpu_scheduler_gpu_{name}", text, labels=["gpu", "uuid"])
        for gpu in of.gpus:
            value = _of_gpu(gpu, of.now)[name]
            if value is not None:
                gpus.add_metric([str(gpu.record.index), gpu.record.uuid], value)
        yield gpus


_OF_GPUS = {
    "memory_total_bytes": "Memory of the GPU",
    "memory_used_bytes": "Memory in use, by all programs",
    "memory_allocated_bytes": "Memory that is allocated to jobs",
    "load_ratio": "Load of the GPU in the last sample, from 0 to 1",
    "share_allocated_ratio": "Fraction of the GPU that is allocated to jobs, from 0 to 1",
    "paused": "Whether the GPU is paused (0 or 1)",
    "faulty": "Whether the GPU has a fault, such as being lost (0 or 1)",
    "suspect": "Whether the GPU is suspected to make jobs fail (0 or 1)",
    "sample_age_seconds": "Time since the last sample of the GPU",
}


def _of_gpu(gpu: GpuView, now: float) -> dict[str, float | None]:
    """Returns the values of a GPU by the names of _OF_GPUS; None where they are unknown."""
    one, last = gpu.record, gpu.record.last
    return {
        "memory_total_bytes": None if one.total_mib is None else one.total_mib * _MIB,
        "memory_used_bytes": None if last.used_mib is None else last.used_mib * _MIB,
        "memory_allocated_bytes": None if gpu.allocated_mib is None else gpu.allocated_mib * _MIB,
        "load_ratio": None if last.load_percent is None else last.load_percent / 100,
        "share_allocated_ratio": min(gpu.share, WHOLE) / WHOLE,
        "paused": one.paused,
        "faulty": one.fault is not None,
        "suspect": one.suspicion is not None,
        "sample_age_seconds": None if one.sampled_at is None else max(0.0, now - one.sampled_at),
    }


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"gpu_scheduler_{name}", text, value=value)


def _histogram(name: str, text: str, durations: Durations) -> HistogramMetricFamily:
    bounds = [*(str(float(bound)) for bound in durations.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
    return HistogramMetricFamily(f"gpu_scheduler_{name}", text, buckets, durations.total_s)


class QueueCollector(Collector):
    """Collects the metrics of a queue. One thread at a time reads the store."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._totals = Totals()
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def describe(self) -> list[Metric]:
        """Returns nothing, so that the store is not read before a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics. Raises SchedulerError if the store cannot be read."""
        with self._lock:
            try:
                found = self._snapshot()
            except StoreNotFoundError:
                found = QueueState()
            yield from families(found)

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the metrics as text and its content type, which suits a header Accept."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _snapshot(self) -> QueueState:
        with open_store(self._location, read_only=True) as store:
            is_up = scheduler_pid_of(store) is not None
            with store.snapshot():
                now = Clock().now()
                totals, self._totals = self._totals, Totals()  # a reading that fails counts for nothing
                if not totals.is_of(store):
                    totals = Totals()
                totals.read(store)
                self._totals = totals
                counts, time = state_counts(store), gpu_time(store, now.wall)
                gpus = gpu_views(store.gpus(), store.active_attempts(), {}, store.recorded_options())
                return QueueState(
                    now.wall, is_up, wait_counts(store, now, is_up=is_up),
                    sum(counts.get(state.value, 0) for state in ACTIVE),
                    time.delivered_s, time.reserved_idle_s, gpus, totals,
                )  # fmt: skip
