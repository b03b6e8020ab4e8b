"""The estimates of run times that a replay gives to the scheduler."""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from statistics import median

from bench.replay.trace import TraceJob
from gpu_scheduler.core.scheduling.history import Estimate, RunTimeKey

#: The number of newest runs whose ratios the scheduler keeps.
KEPT_RUNS = 200


class Estimates:
    """No estimates at all. The other kinds derive from this one."""

    def __init__(self, jobs: Sequence[TraceJob], seed: int) -> None:
        del jobs, seed

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for a job, whose identity is its place in the trace."""
        del key
        return Estimate()

    def learn(self, number: int) -> None:
        """Tells that the job at this place in the trace has ended."""


class Exact(Estimates):
    """The run times of the trace."""

    def __init__(self, jobs: Sequence[TraceJob], seed: int) -> None:
        super().__init__(jobs, seed)
        self._estimates = [Estimate(job.duration_s, (1.0,) * 5) for job in jobs]

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        return Estimate() if key is None else self._estimates[int(key.identity)]


class Learned(Estimates):
    """Predictions that are wrong by a lognormal factor (sigma 1), and none for 30 percent of the jobs.

    The ratios of actual to predicted run times are those of the jobs that have ended.
    """

    def __init__(self, jobs: Sequence[TraceJob], seed: int) -> None:
        super().__init__(jobs, seed)
        chance = random.Random(f"estimates {seed}")
        self._jobs = jobs
        self._predicted = [
            None if chance.random() < 0.3 else job.duration_s * chance.lognormvariate(0.0, 1.0)
            for job in jobs
        ]
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self._ratios: tuple[float, ...] = ()

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        predicted = None if key is None else self._predicted[int(key.identity)]
        return Estimate() if predicted is None else Estimate(predicted, self._ratios)

    def learn(self, number: int) -> None:
        predicted = self._predicted[number]
        if predicted is None:
            return
        if len(self._newest) == KEPT_RUNS:
            del self._sorted[bisect_right(self._sorted, self._newest.popleft()) - 1]
        ratio = self._jobs[number].duration_s / predicted
        self._newest.append(ratio)
        insort(self._sorted, ratio)
        self._ratios = tuple(self._sorted)


class ByClass(Estimates):
    """Learns as the scheduler itself does if the column `class` names the program of each job."""

    def __init__(self, jobs: Sequence[TraceJob], seed: int) -> None:
        super().__init__(jobs, seed)
        self._jobs = jobs
        self._learned: dict[str, Estimate] = {}
        self._runs: dict[str, deque[float]] = {}
        self._ratios: dict[str, deque[float]] = {}

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        return (
            Estimate() if key is None else self._learned.get(self._jobs[int(key.identity)].name, Estimate())
        )

    def learn(self, number: int) -> None:
        job = self._jobs[number]
        runs = self._runs.setdefault(job.name, deque(maxlen=KEPT_RUNS))
        ratios = self._ratios.setdefault(job.name, deque(maxlen=KEPT_RUNS))
        if len(runs) >= 5:
            ratios.append(job.duration_s / median(runs))
        runs.append(job.duration_s)
        if len(runs) >= 5:
            self._learned[job.name] = Estimate(median(runs), tuple(sorted(ratios)))


KINDS = {"exact": Exact, "learned": Learned, "class": ByClass, "none": Estimates}
