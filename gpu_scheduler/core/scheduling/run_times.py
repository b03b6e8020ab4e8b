"""Estimates how long jobs run, from the run times of completed attempts (docs/design.md, Run times).

Jobs with the same identity are expected to take the same time; otherwise, jobs of the same workload class.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from statistics import median
from typing import Protocol

from msgspec import Struct, field

from gpu_scheduler.core.model.job import ActiveAttempt
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


class RunTimeKey(Struct, frozen=True, dict=True):
    """Identifies the runs from which the run time of a job is estimated.

    spec_json: the JobSpec of the job as JSON. It is parsed only when an estimate is needed, because most jobs
    never need one and parsing 100,000 of them takes seconds.
    """

    identity: str
    spec_json: str

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

    @property
    def fail_retries(self) -> int | None:
        """The number of retries after failures that the job sets; None if it sets none."""
        return self._spec.fail_retries


class Estimate(Struct, frozen=True):
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
            upper = self.predicted_s * (upper_quantile(self.ratios) if enough else _ASSUMED_SPREAD)
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
                left = self.predicted_s * _middle(above) - age_s
            elif age_s < self.predicted_s:
                left = self.predicted_s - age_s
            else:
                left = max(_MIN_EXCEEDED_S, age_s / 2)
        return left if self.timeout_s is None else min(left, max(0.0, self.timeout_s - age_s))

    def remaining_upper_s(self, age_s: float) -> float:
        """Returns the time within which nine of ten jobs end that have run for age_s seconds.

        A job that has exceeded its upper estimate ends like the earlier runs that had exceeded theirs by as
        much, or, if there are too few of them, within twice its median remaining time. Infinite if unknown.
        """
        if self.predicted_s is None:
            return math.inf if self.timeout_s is None else max(0.0, self.timeout_s - age_s)
        above = self.ratios[bisect_right(self.ratios, age_s / self.predicted_s) :]
        if len(above) >= MIN_RUNS:
            left = self.predicted_s * upper_quantile(above) - age_s
        elif age_s < self.upper_s:
            left = self.upper_s - age_s
        else:
            left = _ASSUMED_SPREAD * self.remaining_s(age_s)
        return left if self.timeout_s is None else min(left, max(0.0, self.timeout_s - age_s))


#: The estimate of a job about which nothing is known.
UNKNOWN = Estimate()


class RunTimeEstimates(Protocol):
    """Estimates the run time of a job."""

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for the job with this key; without a key, that of an unknown job."""


#: Cached, because the specification of a running job is asked for in every round.
_KEY = lru_cache(maxsize=4096)(RunTimeKey)


def key_of(attempt: ActiveAttempt) -> RunTimeKey | None:
    """Returns the key of the runs from which the run time of an attempt is estimated; None if unknown."""
    return _KEY(attempt.job.identity, attempt.job.spec_json) if attempt.job.identity else None


class Prediction(Struct, frozen=True):
    """The median run time of earlier runs, from which a job's own is predicted.

    runs: the number of these runs. is_of_identity: whether they had the identity of the job; otherwise, they
    are those of its workload class.
    """

    seconds: float
    runs: int
    is_of_identity: bool


class ClassRunTimes(Struct, frozen=True, dict=True):
    """The completed runs of a workload class, oldest first: the identity and the seconds of each.

    The rest is computed when it is first needed, because a round needs few classes.
    """

    runs: tuple[tuple[str, float], ...]

    def prediction(self, identity: str) -> Prediction | None:
        """Returns the prediction for a job of this class; None if there are too few runs."""
        same = self._by_identity.get(identity)
        if same:
            return Prediction(_middle(same), len(same), is_of_identity=True)
        if self.median_s is None:
            return None
        return Prediction(self.median_s, len(self.runs), is_of_identity=False)

    @cached_property
    def median_s(self) -> float | None:
        """The median of all runs; None if there are fewer than MIN_RUNS."""
        return median(seconds for _, seconds in self.runs) if len(self.runs) >= MIN_RUNS else None

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        """The sorted ratios of actual run times to those predicted from the runs before them."""
        every: list[float] = []
        same: dict[str, list[float]] = {}
        found: list[float] = []
        for identity, seconds in self.runs:
            before = same.setdefault(identity, [])
            if before or len(every) >= MIN_RUNS:
                found.append(seconds / _middle(before or every))
            insort(before, seconds)
            insort(every, seconds)
        return tuple(sorted(found))

    @cached_property
    def _by_identity(self) -> Mapping[str, Sequence[float]]:
        """The sorted run times of each identity."""
        same: dict[str, list[float]] = {}
        for identity, seconds in self.runs:
            insort(same.setdefault(identity, []), seconds)
        return same


class RunTimes(Struct, frozen=True):
    """The completed runs of all workload classes, by the key of the class."""

    classes: Mapping[str, ClassRunTimes] = field(default_factory=dict)

    def prediction(self, key: RunTimeKey) -> Prediction | None:
        """Returns the prediction for the job with this key; None if there are too few runs."""
        known = self.classes.get(key.workload_class)
        return None if known is None else known.prediction(key.identity)

    def estimate(self, key: RunTimeKey | None) -> Estimate:
        """Returns the estimate for the job with this key; without a key, that of an unknown job."""
        if key is None:
            return Estimate()
        predicted = self.prediction(key)
        if predicted is None:
            return Estimate(timeout_s=key.timeout_s)
        return Estimate(predicted.seconds, self.classes[key.workload_class].ratios, key.timeout_s)

    def pooled(self) -> Estimate:
        """Returns the estimate from the runs of all classes, for a job about which nothing else is known."""
        runs = sorted(seconds for one in self.classes.values() for _, seconds in one.runs)
        if len(runs) < MIN_RUNS:
            return Estimate()
        middle = _middle(runs)
        return Estimate(middle, tuple(seconds / middle for seconds in runs))


def upper_quantile(values: Sequence[float]) -> float:
    """Returns the value of sorted ones below which nine of ten are, by the nearest-rank method."""
    return values[max(0, math.ceil(UPPER_QUANTILE * len(values)) - 1)]


def _middle(values: Sequence[float]) -> float:
    """Returns the median of sorted values."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
