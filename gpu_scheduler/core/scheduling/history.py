"""Keeps the history on which a round is based: starts, ends on each GPU, GPU time, and estimated run times.

A waiting job is overtaken when a job that sorts after it, and that was submitted at least LATE_S after it,
starts while it waits for GPUs. Jobs submitted together therefore never overtake each other, so that a batch
is packed as well as without this count.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from heapq import heappush, heappushpop
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from gpu_scheduler.core.explain.explanation import blamed_gpus
from gpu_scheduler.core.model.job import ActiveAttempt
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import DEVICE_FAILURES, StateReason
from gpu_scheduler.core.scheduling.needs import workload_class_of

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


# Estimates how long jobs run, from the run times of completed attempts (docs/design.md, Run times).
#
# Jobs with the same identity are expected to take the same time; otherwise, jobs of the same workload class.


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
            return self._left_s(age_s, 0.0, _middle, max(_MIN_UNKNOWN_S, age_s))
        return self._left_s(age_s, self.predicted_s, _middle, max(_MIN_EXCEEDED_S, age_s / 2))

    def remaining_upper_s(self, age_s: float) -> float:
        """Returns the time within which nine of ten jobs end that have run for age_s seconds.

        A job that has exceeded its upper estimate ends like the earlier runs that had exceeded theirs by as
        much, or, if there are too few of them, within twice its median remaining time. Infinite if unknown.
        """
        if self.predicted_s is None:
            return self._left_s(age_s, 0.0, upper_quantile, math.inf)
        return self._left_s(age_s, self.upper_s, upper_quantile, _ASSUMED_SPREAD * self.remaining_s(age_s))

    def _left_s(
        self, age_s: float, whole_s: float, typical: Callable[[Sequence[float]], float], exceeded_s: float
    ) -> float:
        """Returns the remaining time of a job, by the ratios of the runs that took longer than its age.

        If there are too few, it ends after whole_s or, if that has passed, in exceeded_s.
        """
        left = whole_s - age_s if age_s < whole_s else exceeded_s
        if self.predicted_s is not None:
            longer = self.ratios[bisect_right(self.ratios, age_s / self.predicted_s) :]
            if len(longer) >= MIN_RUNS:
                left = self.predicted_s * typical(longer) - age_s
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
        return _middle(sorted(seconds for _, seconds in self.runs)) if len(self.runs) >= MIN_RUNS else None

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


# Summarises how long the jobs of each workload class ran, and how good the estimates were.


class RunTimeSummary(Struct, frozen=True):
    """The completed runs of one program with one model, or without a model (llm is None).

    commands: the number of different identities. upper_ratio: the multiple of its estimate within which nine
    of ten runs ended. median_error: the median difference between a run and its estimate, as a fraction of
    the estimate. Both are None if fewer than MIN_RUNS runs could be estimated from the runs before them.
    """

    program: str
    llm: str | None
    runs: int
    commands: int
    median_s: float
    upper_ratio: float | None
    median_error: float | None


def summarise(run_times: RunTimes) -> list[RunTimeSummary]:
    """Returns the summary of each workload class, sorted by program and model."""
    return [_summary(key, known) for key, known in sorted(run_times.classes.items())]


def _summary(key: str, known: ClassRunTimes) -> RunTimeSummary:
    program, llm = json.loads(key)
    enough = len(known.ratios) >= MIN_RUNS
    return RunTimeSummary(
        program,
        llm,
        len(known.runs),
        len({identity for identity, _ in known.runs}),
        _middle(sorted(seconds for _, seconds in known.runs)),
        upper_quantile(known.ratios) if enough else None,
        _middle(sorted(abs(ratio - 1) for ratio in known.ratios)) if enough else None,
    )
