"""Estimates how long jobs run, from the run times of completed attempts (docs/design.md, Queue order).

Jobs with the same identity are expected to take the same time; otherwise, jobs of the same workload class.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Protocol

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.scheduling.needs import workload_class_of

#: Minimum number of runs of a workload class, or of ratios, from which anything is concluded.
MIN_RUNS = 5
#: The part of the runs that end before the upper estimate.
UPPER_QUANTILE = 0.9
#: The upper estimate as a multiple of the prediction while fewer than MIN_RUNS ratios are known. A guess.
_ASSUMED_SPREAD = 2.0
#: Remaining seconds of a job, at least, that has exceeded its prediction, and of a job without one.
_MIN_EXCEEDED_S, _MIN_UNKNOWN_S = 60.0, 600.0


@dataclass(frozen=True)
class RunTimeKey:
    """Identifies the runs from which the run time of a job is estimated.

    spec_json: the JobSpec of the job as JSON. It is parsed only when an estimate is needed, because most jobs
    never need one and parsing 100,000 of them takes seconds.
    """

    identity: str
    spec_json: str = field(repr=False)

    @cached_property
    def _spec(self) -> JobSpec:
        return JobSpec.from_json(self.spec_json)

    @cached_property
    def workload_class(self) -> str:
        """The key of the job's workload class."""
        return workload_class_of(self._spec)

    @property
    def timeout_s(self) -> float | None:
        """The time limit of the job in seconds; None if it has none."""
        return self._spec.timeout_s


@dataclass(frozen=True)
class Estimate:
    """How long a job runs, in seconds.

    predicted_s: the median of the earlier runs; None if there are too few. ratios: sorted ratios of actual to
    predicted run times. timeout_s: the time limit of the job, which caps every estimate.
    """

    predicted_s: float | None = None
    ratios: tuple[float, ...] = ()
    timeout_s: float | None = None

    @property
    def upper_s(self) -> float:
        """The time within which nine of ten such jobs end; infinite if unknown."""
        upper = math.inf
        if self.predicted_s is not None:
            enough = len(self.ratios) >= MIN_RUNS
            upper = self.predicted_s * (_upper_quantile(self.ratios) if enough else _ASSUMED_SPREAD)
        return upper if self.timeout_s is None else min(upper, self.timeout_s)

    def remaining_s(self, age_s: float) -> float:
        """Returns the median remaining time of a job that has run for age_s seconds.

        A job that has exceeded its prediction ends like the earlier runs that had exceeded theirs by as much.
        If there are too few of them, it runs for half its age again. A job without a prediction runs for its
        age again.
        """
        if self.predicted_s is None:
            left = max(_MIN_UNKNOWN_S, age_s)
        else:
            above = self.ratios[bisect_right(self.ratios, age_s / self.predicted_s) :]
            if len(above) >= MIN_RUNS:
                left = self.predicted_s * median(above) - age_s
            elif age_s < self.predicted_s:
                left = self.predicted_s - age_s
            else:
                left = max(_MIN_EXCEEDED_S, age_s / 2)
        return left if self.timeout_s is None else min(left, max(0.0, self.timeout_s - age_s))


class RunTimeEstimates(Protocol):
    """Estimates the run time of a job."""

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for the job with this key; without a key, that of an unknown job."""


@dataclass(frozen=True)
class ClassRunTimes:
    """The completed runs of a workload class.

    runs: their number. median_s: None if there are fewer than MIN_RUNS. by_identity: the median for each
    identity. ratios: the sorted ratios of actual run times to those predicted from the runs before.
    """

    runs: int
    median_s: float | None
    by_identity: Mapping[str, float]
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[tuple[str, float]]) -> ClassRunTimes:
        """Returns the values for these runs, oldest first: the identity and the seconds of each."""
        every: list[float] = []
        same: dict[str, list[float]] = {}
        ratios: list[float] = []
        for identity, seconds in runs:
            before = same.setdefault(identity, [])
            predicted = median(before) if before else median(every) if len(every) >= MIN_RUNS else None
            if predicted:
                insort(ratios, seconds / predicted)
            insort(before, seconds)
            insort(every, seconds)
        return cls(
            len(runs),
            median(every) if len(every) >= MIN_RUNS else None,
            {identity: median(listed) for identity, listed in same.items()},
            tuple(ratios),
        )


@dataclass(frozen=True)
class RunTimes:
    """The completed runs of all workload classes, by the key of the class."""

    classes: Mapping[str, ClassRunTimes] = field(default_factory=dict)

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for the job with this key; without a key, that of an unknown job."""
        if key is None:
            return Estimate()
        known = self.classes.get(key.workload_class)
        if known is None:
            return Estimate(timeout_s=key.timeout_s)
        predicted = known.by_identity.get(key.identity, known.median_s)
        return Estimate(predicted or None, known.ratios, key.timeout_s)


def _upper_quantile(values: Sequence[float]) -> float:
    """Returns the upper quantile of sorted values by the nearest-rank method."""
    return values[max(0, math.ceil(UPPER_QUANTILE * len(values)) - 1)]
