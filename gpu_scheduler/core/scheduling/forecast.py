"""Forecasts when the running jobs end, and when the waiting jobs start and end.

The queue is played forward twice (`play`): once with the median length of each run, once with the
upper estimate, within which nine of ten runs end. So the upper times are those of a queue in which every job
takes long. A job without an estimate counts with a guess. Its times, and those of every job that starts on a
GPU which it or a job after it has used, rest on that guess.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.units import Now
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling.actions import (
    Action,
    DropReservation,
    RecordGpuTime,
    RecordStop,
    Reserve,
    SetQueueReservation,
    SetWaitReason,
    Start,
)
from gpu_scheduler.core.scheduling.adoption import unwatched_attempts
from gpu_scheduler.core.scheduling.facts import (
    Attempt,
    Facts,
    Gpu,
    PendingGroup,
    QueuedJob,
    QueueReservation,
    ReservedJob,
)
from gpu_scheduler.core.scheduling.gpu_time import PERIOD_HOURS, GpuTime, count_gpu_time
from gpu_scheduler.core.scheduling.gpu_use import Vacancy
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.overtakes import QueueStart
from gpu_scheduler.core.scheduling.pending_queue import allowed_gpus, queue_key
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.queue_reservation import ExpectedEnd, expected_ends
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s
from gpu_scheduler.core.scheduling.run_times import Estimate, RunTimeEstimates

# The GPU time of a playback, hour by hour.


class VirtualGpuTime:
    """GPU time that is added to what was counted until `wall`, which counts as of that hour.

    reserved_idle_s: all that was idle on reserved GPUs since then, in GPU-seconds.
    """

    def __init__(self, counted: GpuTime | None, wall: float) -> None:
        before = counted or GpuTime()
        self._hours = deque([(int(wall // 3600), before.delivered_s, before.reserved_idle_s)])
        self._total = GpuTime(before.delivered_s, before.reserved_idle_s, wall)
        self.reserved_idle_s = 0.0

    def total(self) -> GpuTime:
        """Returns the GPU time of the period that ends now."""
        return self._total

    def record(self, action: RecordGpuTime) -> GpuTime:
        """Adds GPU time, and returns that of the period that ends now."""
        self.reserved_idle_s += action.reserved_idle_s
        hour = int(action.until // 3600)
        delivered, idle = self._total.delivered_s, self._total.reserved_idle_s
        if self._hours and self._hours[-1][0] == hour:
            _, *before = self._hours.pop()
        else:
            before = [0.0, 0.0]
        self._hours.append((hour, before[0] + action.delivered_s, before[1] + action.reserved_idle_s))
        delivered, idle = delivered + action.delivered_s, idle + action.reserved_idle_s
        while self._hours[0][0] <= hour - PERIOD_HOURS:
            _, old_delivered, old_idle = self._hours.popleft()
            delivered, idle = delivered - old_delivered, idle - old_idle
        self._total = GpuTime(delivered, idle, action.until)
        return self._total


# The GPUs of a playback after an attempt has left them.


def without_attempt(gpu: Gpu, attempt: Attempt, facts: Facts) -> Gpu:
    """Returns a GPU as it is sampled after an attempt has left it with its processes and their memory.

    facts: those of the moment before.
    """
    sample = gpu.sample
    if gpu.uuid not in attempt.gpus or sample is None or not sample.used_mib:
        return gpu
    used = Vacancy(gpu, facts).occupancies[attempt.attempt_id].used_mib
    processes = sample.processes
    if processes is not None:
        processes = tuple(one for one in processes if gpu.owners.get(one.pid) != attempt.attempt_id)
    left = replace(sample, used_mib=max(0, sample.used_mib - used), processes=processes)
    return replace(gpu, sample=left)


# The waiting jobs of a playback, in groups as a round reads them.


#: Number of jobs of a group that a round reads. The rounds of the scheduler read as many.
GROUP_SIZE = 64


@dataclass
class VirtualQueue:
    """Waiting jobs by resource spec, each list in queue order."""

    _jobs: dict[ResourceSpec, list[QueuedJob]] = field(default_factory=dict)
    _groups: dict[ResourceSpec, PendingGroup] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def jobs(self) -> list[QueuedJob]:
        """Returns all waiting jobs in queue order."""
        return sorted((job for listed in self._jobs.values() for job in listed), key=queue_key)

    def groups(self) -> tuple[PendingGroup, ...]:
        """Returns the groups that a round reads."""
        for resources, listed in self._jobs.items():
            if resources not in self._groups:
                has_more = len(listed) > GROUP_SIZE
                self._groups[resources] = PendingGroup(resources, tuple(listed[:GROUP_SIZE]), has_more)
        return tuple(self._groups.values())

    def add(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Adds a job at its place in the queue."""
        insort(self._jobs.setdefault(resources, []), job, key=queue_key)
        self._groups.pop(resources, None)

    def remove(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Removes a job. Raises KeyError if no job of its group waits."""
        listed = self._jobs[resources]
        del listed[bisect_left(listed, queue_key(job), key=queue_key)]
        self._groups.pop(resources, None)
        if not listed:
            del self._jobs[resources]


# Plays the placement of jobs forward on a virtual clock, with given run times.
#
# Every decision is that of the scheduler: `place_jobs`, and `count_gpu_time` before anything changes. A round
# of `plan` consists of these once nothing else is left to decide; a playback has no processes, folders or
# requests about which to decide. A test compares both.
#
# A playback is simpler than a box in these respects:
#
# - An attempt leaves its GPUs, with its memory, at the moment at which it ends. A preempted one ends at once.
# - No job fails, nobody changes the queue, and foreign processes stay as they are.
# - Rounds take place when a job arrives or ends and, while GPUs are reserved by queue order, every
#   ROUND_INTERVAL_S, because what fits beside the reservation changes with time.


#: Seconds between two rounds while GPUs are reserved by queue order.
ROUND_INTERVAL_S = 300.0
_RUNS = AttemptStatus(claim="live")


@dataclass(frozen=True)
class Run:
    """One run of a job, with the id of its attempt and the UUIDs of its GPUs; times in wall seconds.

    ended_at: infinite if the run does not end. is_preempted: whether the job was queued again.
    """

    job_id: int
    attempt_id: int
    gpus: tuple[str, ...]
    started_at: float
    ended_at: float
    is_preempted: bool = False


class Playback:
    """A box with the GPUs, attempts, waiting jobs and history of these facts, whose clock `play` advances.

    duration_s: returns how long a run of this job takes that begins now, in seconds; infinite for ever.
    ends: when each attempt in the facts ends, in wall seconds, by its id; the others never end.
    """

    def __init__(
        self,
        facts: Facts,
        duration_s: Callable[[QueuedJob], float],
        ends: dict[int, float] | None = None,
    ) -> None:
        self._duration_s = duration_s
        self._began = facts.now
        self._gpu_time = VirtualGpuTime(facts.gpu_time, facts.now.wall)
        self._queue = VirtualQueue()
        self._jobs: dict[int, tuple[QueuedJob, ResourceSpec]] = {}
        self._attempts: dict[int, Attempt] = {one.attempt_id: one for one in facts.attempts}
        self._next_attempt = max(self._attempts, default=0) + 1
        self._arrivals: list[tuple[float, int, QueuedJob, ResourceSpec]] = []
        self._ends = [(at, attempt_id) for attempt_id, at in (ends or {}).items() if at < math.inf]
        heapq.heapify(self._ends)
        self._etas = {
            one.attempt_id: facts.now.wall + one.remaining_s
            for one in facts.attempts
            if one.remaining_s is not None
        }
        for group in facts.pending_groups:
            for job in group.jobs:
                self._enqueue(job, group.resources)
        for reserved in facts.reserved_jobs:
            self._jobs[reserved.job.job_id] = reserved.job, reserved.resources
        self.facts = replace(facts, gpu_time=self._gpu_time.total())

    def submit(self, job: QueuedJob, resources: ResourceSpec, at: float) -> None:
        """Lets a job arrive at a time in wall seconds, which must not have passed."""
        heapq.heappush(self._arrivals, (at, job.job_id, job, resources))

    def learn(self, run_times: RunTimeEstimates) -> None:
        """Replaces the estimates on which the decisions from now on are based."""
        self.facts = replace(self.facts, run_times=run_times)

    @property
    def reserved_idle_s(self) -> float:
        """The GPU-seconds that have been idle on GPUs reserved by queue order since the playback began."""
        return self._gpu_time.reserved_idle_s

    @property
    def waiting(self) -> list[QueuedJob]:
        """The jobs that wait now, in queue order."""
        return self._queue.jobs()

    @property
    def running(self) -> tuple[Attempt, ...]:
        """The attempts that run now."""
        return tuple(self._attempts.values())

    def play(self) -> Iterator[Run]:
        """Yields each run when it ends, until nothing is left that could end or arrive.

        Jobs can be submitted, and run times learned, between two runs.
        """
        yield from self._settle()
        while True:
            at = min(
                self._ends[0][0] if self._ends else math.inf,
                self._arrivals[0][0] if self._arrivals else math.inf,
            )
            if at == math.inf:
                return
            now = self.facts.now.wall
            if self._queue and self.facts.queue_reservation is not None:
                at = min(at, now + ROUND_INTERVAL_S)
            self._advance(max(at, now))
            yield from self._ended()
            while self._arrivals and self._arrivals[0][0] <= self.facts.now.wall:
                _, _, job, resources = heapq.heappop(self._arrivals)
                self._enqueue(job, resources)
            yield from self._settle()

    def _advance(self, wall: float) -> None:
        passed = wall - self._began.wall
        now = Now(wall, self._began.boot + passed, self._began.boot_id)
        self.facts = replace(self.facts, now=now)
        for action in count_gpu_time(self.facts, allocations_change=True):
            assert isinstance(action, RecordGpuTime)
            self.facts = replace(self.facts, gpu_time=self._gpu_time.record(action))

    def _ended(self) -> Iterator[Run]:
        ended = []
        while self._ends and self._ends[0][0] <= self.facts.now.wall:
            attempt = self._attempts.get(heapq.heappop(self._ends)[1])
            if attempt is not None:  # otherwise it was preempted
                ended.append(attempt)
        for attempt in ended:
            self._remove(attempt)
        for attempt in ended:
            yield self._run(attempt)

    def _settle(self) -> Iterator[Run]:
        """Runs rounds until one changes nothing."""
        has_changed = True
        while has_changed and (self._queue or self.facts.reserved_jobs):
            self.facts = self._current_facts()
            preempted: list[Run] = []
            has_changed = any([self._apply(action, preempted) for action in place_jobs(self.facts)])
            yield from preempted
        self.facts = self._current_facts()

    def _current_facts(self) -> Facts:
        now = self.facts.now.wall
        for attempt_id, at in self._etas.items():
            attempt = self._attempts[attempt_id]
            self._attempts[attempt_id] = replace(attempt, remaining_s=max(0.0, at - now))
        return replace(self.facts, attempts=self.running, pending_groups=self._queue.groups())

    def _apply(self, action: Action, preempted: list[Run]) -> bool:
        """Applies an action to the box. Returns whether it changes what another round would decide."""
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, SetQueueReservation):
            self._reserve_in_order(action)
        elif isinstance(action, Reserve):
            job, resources = self._jobs[action.job_id]
            self._queue.remove(job, resources)
            reserved = ReservedJob(job, resources, action.gpus)
            self.facts = replace(self.facts, reserved_jobs=(*self.facts.reserved_jobs, reserved))
        elif isinstance(action, DropReservation):
            self._forget_reserved(action.job_id)
            self._queue.add(*self._jobs[action.job_id])
        elif isinstance(action, RecordStop):
            preempted.append(self._preempt(action.job_id))
        else:
            return False
        return True

    def _enqueue(self, job: QueuedJob, resources: ResourceSpec) -> None:
        self._jobs[job.job_id] = job, resources
        self._queue.add(job, resources)

    def _start(self, start: Start) -> None:
        job, resources = self._jobs[start.job_id]
        now = self.facts.now.wall
        attempt = Attempt(
            self._next_attempt, job.job_id, token="", boot_id=self._began.boot_id, state=AttemptState.RUNNING,
            gpus=start.gpus, share=start.share, vram=start.vram, whole=start.whole, resources=resources,
            baseline_mib=dict(start.baseline_mib), status=_RUNS, priority=job.priority, started_at=now,
            run_time=job.run_time, measured_at=self.facts.now.boot,
        )  # fmt: skip
        self._next_attempt += 1
        self._attempts[attempt.attempt_id] = attempt
        end = now + self._duration_s(job)
        if end < math.inf:
            heapq.heappush(self._ends, (end, attempt.attempt_id))
        if any(one.job.job_id == job.job_id for one in self.facts.reserved_jobs):
            self._forget_reserved(job.job_id)
        else:
            self._queue.remove(job, resources)
        reserved = self.facts.queue_reservation
        if reserved is not None and reserved.job.job_id == job.job_id:
            self.facts = replace(self.facts, queue_reservation=None)
        if start.gpus:
            begun = QueueStart(job.priority, job.position, job.submitted_at, now)
            self.facts = replace(self.facts, overtakes=self.facts.overtakes.with_starts([begun]))

    def _reserve_in_order(self, action: SetQueueReservation) -> None:
        reservation = None
        if action.job_id is not None:
            job, resources = self._jobs[action.job_id]
            reservation = QueueReservation(job, resources, action.gpus, action.start_at, action.overtakes)
        self.facts = replace(self.facts, queue_reservation=reservation)

    def _forget_reserved(self, job_id: int) -> None:
        others = tuple(one for one in self.facts.reserved_jobs if one.job.job_id != job_id)
        self.facts = replace(self.facts, reserved_jobs=others)

    def _preempt(self, job_id: int) -> Run:
        """Ends the run of a job, which is queued again at its own place."""
        attempt = next(one for one in self._attempts.values() if one.job_id == job_id)
        self._remove(attempt)
        now = self.facts.now.wall
        # An attempt does not tell the place of its job; most jobs that run are older than those that wait.
        first = QueuedJob(job_id, attempt.priority, 0, run_time=attempt.run_time)
        job, resources = self._jobs.get(job_id, (first, attempt.resources))
        self._enqueue(replace(job, waiting_since=now), resources)
        return replace(self._run(attempt), is_preempted=True)

    def _remove(self, attempt: Attempt) -> None:
        gpus = tuple(without_attempt(gpu, attempt, self.facts) for gpu in self.facts.gpus)
        del self._attempts[attempt.attempt_id]
        self._etas.pop(attempt.attempt_id, None)
        self.facts = replace(self.facts, gpus=gpus, attempts=self.running)

    def _run(self, attempt: Attempt) -> Run:
        started_at = attempt.started_at or self._began.wall
        return Run(attempt.job_id, attempt.attempt_id, attempt.gpus, started_at, self.facts.now.wall)


# Estimates how long the jobs of a forecast run: the median, and the upper estimate.


#: The upper length of a run, as a multiple of the guessed one, if there is no upper estimate. It only lets
#: the playback go on: what rests on it is not shown.
_GUESSED_SPREAD = 2.0


@dataclass(frozen=True)
class Length:
    """The length of a run, or of its rest, in seconds. is_guess: whether nothing is known about it."""

    seconds: float
    is_guess: bool


@dataclass(frozen=True)
class Lengths:
    """The lengths of the runs that will start, by job, and of the rests of attempts, by attempt."""

    jobs: Mapping[int, Length]
    attempts: Mapping[int, Length]


def expected_lengths(
    facts: Facts, jobs: Iterable[QueuedJob], ending: Collection[int]
) -> tuple[Lengths, Lengths]:
    """Returns the median and the upper lengths.

    ending: the ids of attempts whose commands have ended already.
    """
    ends = expected_ends(facts)
    none = Length(0.0, is_guess=False), Length(0.0, is_guess=False)
    new = {job.job_id: _lengths(facts.run_times.estimate(job.run_time)) for job in jobs}
    left = {
        one.attempt_id: none if one.attempt_id in ending else _lengths_left(one, ends[one.attempt_id], facts)
        for one in facts.attempts
    }
    usual = Lengths({key: each[0] for key, each in new.items()}, {key: each[0] for key, each in left.items()})
    upper = Lengths({key: each[1] for key, each in new.items()}, {key: each[1] for key, each in left.items()})
    return usual, upper


def _lengths(estimate: Estimate) -> tuple[Length, Length]:
    """Returns the median and the upper run time of a job that has not started."""
    usual = Length(estimate.remaining_s(0.0), estimate.predicted_s is None)
    return usual, _upper(usual, estimate.upper_s)


def _upper(usual: Length, upper_s: float) -> Length:
    """Returns the upper time for a median. upper_s: the upper estimate, infinite if there is none."""
    if upper_s < math.inf:
        return Length(max(usual.seconds, upper_s), is_guess=False)
    return Length(_GUESSED_SPREAD * usual.seconds, is_guess=True)


def _lengths_left(attempt: Attempt, end: ExpectedEnd, facts: Facts) -> tuple[Length, Length]:
    """Returns the median and the upper time for which an attempt will still hold its GPUs.

    The estimate from its progress counts as both.
    """
    usual = Length(end.in_s, not end.is_known)
    leaves = departure_s(attempt, facts.now, facts.settings) is not None
    if leaves or attempt.remaining_s is not None:
        return usual, usual
    age_s = 0.0 if attempt.started_at is None else max(0.0, facts.now.wall - attempt.started_at)
    upper_s = facts.run_times.estimate(attempt.run_time).remaining_upper_s(age_s)
    return usual, _upper(usual, upper_s)


# Plays a queue forward, with dependencies and delays, and tells which starts rest on a guess.


#: What stands for the GPUs of a job that uses none.
_NO_GPU = ("",)


@dataclass(frozen=True)
class WaitingJob:
    """A job that will start without the help of a user.

    parents: the unfinished jobs for which it waits. not_before: the earliest start in wall seconds, after a
    failed launch; 0 if there is no delay.
    """

    job: QueuedJob
    resources: ResourceSpec
    parents: tuple[int, ...] = ()
    not_before: float = 0.0


@dataclass(frozen=True)
class Played:
    """The runs of one playback, by job, each from its first start to its last end.

    resting: the jobs whose starts rest on a guess. reasons: why the jobs wait that have not started although
    they wait only for GPUs, by the key of their resources.
    """

    runs: Mapping[int, Run]
    resting: frozenset[int]
    reasons: Mapping[str, WaitReason]


def play(facts: Facts, waiting: Sequence[WaitingJob], lengths: Lengths) -> Played:
    """Plays the queue until nothing is left that ends."""
    now = facts.now.wall
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    missing = {one.job.job_id: set(one.parents) for one in waiting if one.parents}
    children: dict[int, list[WaitingJob]] = {}
    ready: dict[ResourceSpec, list[QueuedJob]] = {}
    for one in waiting:
        for parent in set(one.parents):
            children.setdefault(parent, []).append(one)
        if not one.parents and one.not_before <= now and one.job.job_id not in reserved:
            ready.setdefault(one.resources, []).append(one.job)
    groups = tuple(PendingGroup(resources, tuple(jobs)) for resources, jobs in ready.items())
    box = Playback(
        replace(facts, pending_groups=groups),
        lambda job: lengths.jobs[job.job_id].seconds if job.job_id in lengths.jobs else 0.0,
        {attempt_id: now + one.seconds for attempt_id, one in lengths.attempts.items()},
    )
    for one in waiting:
        if not one.parents and one.not_before > now:
            box.submit(one.job, one.resources, one.not_before)
    active = {one.attempt_id for one in facts.attempts if one.state.is_open}
    known = {one.attempt_id for one in facts.attempts}
    runs: dict[int, Run] = {}
    for run in box.play():
        if run.attempt_id in known and run.attempt_id not in active:
            continue  # its job has ended already, or waits again
        first = runs.get(run.job_id)
        runs[run.job_id] = run if first is None else replace(run, started_at=first.started_at)
        for child in () if run.is_preempted else children.get(run.job_id, ()):
            at, of = max(run.ended_at, child.not_before), missing[child.job.job_id]
            of.discard(run.job_id)
            if not of:
                box.submit(replace(child.job, waiting_since=at), child.resources, at)
    guesses = {
        one.job_id
        for one in facts.attempts
        if one.attempt_id in active and lengths.attempts[one.attempt_id].is_guess
    }
    guesses |= {job_id for job_id, one in lengths.jobs.items() if one.is_guess}
    reasons = _final_reasons(box)
    return Played(runs, _resting_on_guesses(runs.values(), guesses, waiting, facts), reasons)


def _final_reasons(box: Playback) -> dict[str, WaitReason]:
    """Returns why the jobs wait that have not started, by the key of their resources."""
    if not box.waiting:
        return {}
    return {one.spec_key: one.reason for one in place_jobs(box.facts) if isinstance(one, SetWaitReason)}


def _resting_on_guesses(
    runs: Iterable[Run], guesses: set[int], waiting: Sequence[WaitingJob], facts: Facts
) -> frozenset[int]:
    """Returns the jobs whose starts rest on a guess.

    That is a job that starts later than now if a run whose length or start rests on a guess has begun before
    on a GPU that the job may use, or if one of its parents is such a job. For jobs without a GPU, the other
    such jobs count instead.
    """
    by_id = {one.job.job_id: one for one in waiting}
    usable = {
        one.resources: frozenset(gpu.uuid for gpu in allowed_gpus(one.resources, facts))
        if one.resources.needs_gpus
        else frozenset(_NO_GPU)
        for one in waiting
    }
    now = facts.now.wall
    resting: set[int] = set()
    guessed_gpus: set[str] = set()
    for at, group in groupby(sorted(runs, key=_start), key=_start):
        together = list(group)
        for run in together:
            one = by_id.get(run.job_id)
            if one is None or at <= now:
                continue
            uncertain = guesses | resting
            if guessed_gpus & usable[one.resources] or any(parent in uncertain for parent in one.parents):
                resting.add(run.job_id)
        for run in together:
            if run.job_id in guesses or run.job_id in resting:
                guessed_gpus.update(run.gpus or _NO_GPU)
    return frozenset(resting)


def _start(run: Run) -> float:
    return run.started_at


@dataclass(frozen=True)
class JobForecast:
    """The expected start and end of a job in wall seconds, and the UUIDs of its GPUs.

    start_upper_at, end_upper_at: the times if every job takes its upper estimate; None if they would rest on
    a guess. has_estimate: whether the run time of the job itself is more than a guess. rests_on_guess:
    whether the start depends on a job whose run time is a guess.
    """

    start_at: float
    end_at: float
    start_upper_at: float | None
    end_upper_at: float | None
    gpus: tuple[str, ...]
    has_estimate: bool
    rests_on_guess: bool


@dataclass(frozen=True)
class Forecast:
    """The forecast of each job that will end, by its id.

    reasons: why the other jobs that wait only for GPUs do not start, by their resources. idle_share: the part
    of the GPU time until idle_until, when the last waiting job starts, in which no job runs on a GPU; None if
    no job has to wait.
    """

    jobs: Mapping[int, JobForecast] = field(default_factory=dict)
    reasons: Mapping[str, WaitReason] = field(default_factory=dict)
    idle_share: float | None = None
    idle_until: float | None = None


def forecast(facts: Facts, waiting: Sequence[WaitingJob], ending: Collection[int] = ()) -> Forecast:
    """Returns the forecast of the running jobs and of these waiting ones.

    facts: pending groups do not count. ending: the ids of attempts whose commands have ended already.
    """
    facts = _with_all_attempts(facts)
    usual_lengths, upper_lengths = expected_lengths(facts, [one.job for one in waiting], ending)
    usual, upper = play(facts, waiting, usual_lengths), play(facts, waiting, upper_lengths)
    attempts = {one.job_id: one.attempt_id for one in facts.attempts if one.state.is_open}
    found = {}
    for job_id, run in usual.runs.items():
        is_new = job_id in usual_lengths.jobs
        key = job_id if is_new else attempts[job_id]
        own, late = ((each.jobs if is_new else each.attempts)[key] for each in (usual_lengths, upper_lengths))
        found[job_id] = _job_forecast(run, usual, upper, own, late)
    until = max((found[one.job.job_id].start_at for one in waiting if one.job.job_id in found), default=0.0)
    if until <= facts.now.wall:
        return Forecast(found, usual.reasons)
    return Forecast(found, usual.reasons, _idle_share(usual.runs.values(), facts, until), until)


def _with_all_attempts(facts: Facts) -> Facts:
    """Returns the facts with an attempt for each adopted process that no runner watches now."""
    attempts = (*facts.attempts, *unwatched_attempts(facts))
    return replace(facts, attempts=attempts, adopted_jobs=(), pending_groups=())


def _job_forecast(run: Run, usual: Played, upper: Played, own: Length, late: Length) -> JobForecast:
    """Returns the forecast of a job. own, late: the median and the upper length of its run."""
    late_run = None if run.job_id in upper.resting else upper.runs.get(run.job_id)
    start_upper = None if late_run is None else max(run.started_at, late_run.started_at)
    end_upper = None if late_run is None or late.is_guess else max(run.ended_at, late_run.ended_at)
    return JobForecast(
        run.started_at,
        run.ended_at,
        start_upper,
        end_upper,
        run.gpus,
        not own.is_guess,
        run.job_id in usual.resting,
    )


def _idle_share(runs: Iterable[Run], facts: Facts, until: float) -> float | None:
    """Returns the part of the time until then in which no job runs on a GPU that accepts jobs."""
    now = facts.now.wall
    gpus = [gpu.uuid for gpu in facts.gpus if gpu.is_in_service and gpu.suspicion is None]
    busy_until, busy_s = dict.fromkeys(gpus, now), 0.0
    for run in sorted(runs, key=lambda run: run.started_at):
        for uuid in run.gpus:
            if uuid in busy_until:
                begin, end = max(run.started_at, busy_until[uuid]), min(run.ended_at, until)
                busy_s += max(0.0, end - begin)
                busy_until[uuid] = max(busy_until[uuid], end)
    return 1.0 - busy_s / (len(gpus) * (until - now)) if gpus else None
