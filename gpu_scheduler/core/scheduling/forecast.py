"""Forecasts when the running jobs end, and when the waiting jobs start and end.

The queue is played forward twice (`play`): once with the median length of each run, once with the upper
estimate, within which nine of ten runs end. So the upper times are those of a queue in which every job takes
long. A job without an estimate counts as the runs of all jobs do, or with a guess if there are too few. Jobs
that are submitted later do not count.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, AttemptStatus, Job, Observed
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.facts import Facts, PendingGroup, QueuedJob, QueueReservation, ReservedJob
from gpu_scheduler.core.scheduling.gpu_use import ledger_of
from gpu_scheduler.core.scheduling.history import (
    PERIOD_HOURS,
    UNKNOWN,
    Estimate,
    GpuTime,
    Prediction,
    QueueStart,
    RunTimeEstimates,
    RunTimeKey,
    RunTimes,
    key_of,
)
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resources_of
from gpu_scheduler.core.scheduling.pending_queue import GroupLimits, need_of, queue_key
from gpu_scheduler.core.scheduling.placement import Ledger
from gpu_scheduler.core.scheduling.preemption import NoPreemption, Preemption, find_preemption, may_preempt
from gpu_scheduler.core.scheduling.queue_placement import (
    budget_left_s,
    keep_reserved_gpus,
    place_jobs,
    waiting_since,
)
from gpu_scheduler.core.scheduling.reconcile_attempt import departure_s, leaving_attempts, unwatched_attempts
from gpu_scheduler.core.scheduling.round_allocations import (
    ExpectedEnd,
    PlannedReservation,
    RoundAllocations,
    attempts_to_leave,
    count_gpu_time,
    expected_ends,
    may_begin,
    plan_reservation,
    without_failed_gpus,
)
from gpu_scheduler.core.scheduling.settings import QueueOrder

# The GPUs of a playback after an attempt has left them.


def without_attempt(gpu: Gpu, attempt: ActiveAttempt, facts: Facts) -> Gpu:
    """Returns a GPU as it is sampled after an attempt has left it with its processes and their memory.

    facts: those of the moment before.
    """
    sample = gpu.sample
    if gpu.uuid not in attempt.gpus or sample is None or not sample.used_mib:
        return gpu
    used = ledger_of(gpu, facts.attempts, facts.settings).holdings[attempt.id].used_mib
    processes = sample.processes
    if processes is not None:
        processes = tuple(one for one in processes if gpu.owners.get(one.pid) != attempt.id)
    left = replace(sample, used_mib=max(0, sample.used_mib - used), processes=processes)
    return replace(gpu, sample=left)


# The waiting jobs of a playback, in groups as a round reads them.


#: Number of jobs of a group that a round reads. The rounds of the scheduler read as many.
GROUP_SIZE = 64


class _WaitingJobs(Struct):
    """Waiting jobs by resource spec, each list in queue order.

    A group is made anew only if it has changed. With all of them made anew in each round, `plan` would take a
    time that grows with the square of the number of jobs.
    """

    jobs: dict[ResourceSpec, list[QueuedJob]] = field(default_factory=dict)
    _groups: dict[ResourceSpec, PendingGroup] = field(default_factory=dict)

    def groups(self) -> tuple[PendingGroup, ...]:
        """Returns the groups that a round reads."""
        for resources, listed in self.jobs.items():
            if resources not in self._groups:
                has_more = len(listed) > GROUP_SIZE
                self._groups[resources] = PendingGroup(resources, tuple(listed[:GROUP_SIZE]), has_more)
        return tuple(self._groups.values())

    def add(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Adds a job at its place in the queue."""
        insort(self.jobs.setdefault(resources, []), job, key=queue_key)
        self._groups.pop(resources, None)

    def remove(self, job: QueuedJob, resources: ResourceSpec) -> None:
        """Removes a job. Raises KeyError if no job of its group waits."""
        listed = self.jobs[resources]
        del listed[bisect_left(listed, queue_key(job), key=queue_key)]
        self._groups.pop(resources, None)
        if not listed:
            del self.jobs[resources]


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
_RUNS = Observed(AttemptStatus(claim="live"))


class Run(Struct, frozen=True):
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
        self, facts: Facts, duration_s: Callable[[QueuedJob], float], ends: dict[int, float] | None = None
    ) -> None:
        self._duration_s = duration_s
        self._began = facts.now
        counted = facts.gpu_time or GpuTime()
        #: The delivered and the reserved idle GPU-seconds of each hour. What was counted is of the first one.
        self._gpu_time = {int(facts.now.wall // 3600): (counted.delivered_s, counted.reserved_idle_s)}
        #: The GPU-seconds that have been idle on GPUs reserved by queue order since the playback began.
        self.reserved_idle_s = 0.0
        self._queue = _WaitingJobs()
        self._jobs: dict[int, tuple[QueuedJob, ResourceSpec]] = {}
        self._attempts: dict[int, ActiveAttempt] = {one.id: one for one in facts.attempts}
        self._next_attempt = max(self._attempts, default=0) + 1
        self._arrivals: list[tuple[float, int, QueuedJob, ResourceSpec]] = []
        self._ends = [(at, attempt_id) for attempt_id, at in (ends or {}).items() if at < math.inf]
        heapq.heapify(self._ends)
        self._etas = {
            one.id: facts.now.wall + one.observed.remaining_s
            for one in facts.attempts
            if one.observed.remaining_s is not None
        }
        for group in facts.pending_groups:
            for job in group.jobs:
                self._enqueue(job, group.resources)
        for reserved in facts.reserved_jobs:
            self._jobs[reserved.job.job_id] = reserved.job, reserved.resources
        self.facts = replace(facts, gpu_time=replace(counted, counted_until=facts.now.wall))

    def submit(self, job: QueuedJob, resources: ResourceSpec, at: float) -> None:
        """Lets a job arrive at a time in wall seconds, which must not have passed."""
        heapq.heappush(self._arrivals, (at, job.job_id, job, resources))

    def learn(self, run_times: RunTimeEstimates) -> None:
        """Replaces the estimates on which the decisions from now on are based."""
        self.facts = replace(self.facts, run_times=run_times)

    @property
    def waiting(self) -> list[QueuedJob]:
        """The jobs that wait now, in queue order."""
        return sorted((job for listed in self._queue.jobs.values() for job in listed), key=queue_key)

    @property
    def running(self) -> tuple[ActiveAttempt, ...]:
        """The attempts that run now."""
        return tuple(self._attempts.values())

    def play(self) -> Iterator[Run]:
        """Yields each run when it ends, until nothing is left that could end or arrive.

        Jobs can be submitted, and run times learned, between two runs.
        """
        while True:
            while self._arrivals and self._arrivals[0][0] <= self.facts.now.wall:
                _, _, job, resources = heapq.heappop(self._arrivals)
                self._enqueue(job, resources)
            yield from self._settle()
            at = min(some[0][0] if some else math.inf for some in (self._ends, self._arrivals))
            if at == math.inf:
                return
            now = self.facts.now.wall
            if self._queue.jobs and self.facts.queue_reservation is not None:
                at = min(at, now + ROUND_INTERVAL_S)
            self._advance(max(at, now))
            yield from self._ended()

    def _advance(self, wall: float) -> None:
        passed = wall - self._began.wall
        now = Now(wall, self._began.boot + passed, self._began.boot_id)
        self.facts = replace(self.facts, now=now)
        for action in count_gpu_time(self.facts, allocations_change=True):
            assert isinstance(action, act.RecordGpuTime)
            self.reserved_idle_s += action.reserved_idle_s
            hour = int(wall // 3600)
            delivered_s, idle_s = self._gpu_time.get(hour, (0.0, 0.0))
            self._gpu_time[hour] = delivered_s + action.delivered_s, idle_s + action.reserved_idle_s
            self._gpu_time = {at: both for at, both in self._gpu_time.items() if at > hour - PERIOD_HOURS}
            delivered, idle = zip(*self._gpu_time.values(), strict=True)
            self.facts = replace(self.facts, gpu_time=GpuTime(sum(delivered), sum(idle), action.until))

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
        while has_changed and (self._queue.jobs or self.facts.reserved_jobs):
            self.facts = self._current_facts()
            preempted: list[Run] = []
            has_changed = any([self._apply(action, preempted) for action in place_jobs(self.facts)])
            yield from preempted
        self.facts = self._current_facts()

    def _current_facts(self) -> Facts:
        now = self.facts.now.wall
        for attempt_id, at in self._etas.items():
            attempt = self._attempts[attempt_id]
            self._attempts[attempt_id] = attempt.seen(remaining_s=max(0.0, at - now))
        return replace(self.facts, attempts=self.running, pending_groups=self._queue.groups())

    def _apply(self, action: act.Action, preempted: list[Run]) -> bool:
        """Applies an action to the box. Returns whether it changes what another round would decide."""
        if isinstance(action, act.Start):
            self._start(action)
        elif isinstance(action, act.SetQueueReservation):
            self._reserve_in_order(action)
        elif isinstance(action, act.Reserve):
            job, resources = self._jobs[action.job_id]
            self._queue.remove(job, resources)
            reserved = ReservedJob(job, resources, action.gpus)
            self.facts = replace(self.facts, reserved_jobs=(*self.facts.reserved_jobs, reserved))
        elif isinstance(action, act.DropReservation):
            self._forget_reserved(action.job_id)
            self._queue.add(*self._jobs[action.job_id])
        elif isinstance(action, act.JobChanged):  # it is asked to stop
            preempted.append(self._preempt(action.new.id))
        else:
            return False
        return True

    def _enqueue(self, job: QueuedJob, resources: ResourceSpec) -> None:
        self._jobs[job.job_id] = job, resources
        self._queue.add(job, resources)

    def _start(self, start: act.Start) -> None:
        job, resources = self._jobs[start.job_id]
        now = self.facts.now.wall
        attempt = ActiveAttempt(
            self._next_attempt, job.job_id, token="", boot_id=self._began.boot_id, state=AttemptState.RUNNING,
            allocations=start.allocations, observed=_RUNS, started_at=now, measured_boot=self.facts.now.boot,
            job=Job(
                job.job_id, spec_key=resources.key(), priority=job.priority,
                identity="" if job.run_time is None else job.run_time.identity,
                spec_json="{}" if job.run_time is None else job.run_time.spec_json,
            ),
        )  # fmt: skip
        self._next_attempt += 1
        self._attempts[attempt.id] = attempt
        end = now + self._duration_s(job)
        if end < math.inf:
            heapq.heappush(self._ends, (end, attempt.id))
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

    def _reserve_in_order(self, action: act.SetQueueReservation) -> None:
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
        first = QueuedJob(job_id, attempt.job.priority, 0, run_time=key_of(attempt))
        job, resources = self._jobs.get(job_id, (first, resources_of(attempt)))
        self._enqueue(replace(job, waiting_since=now), resources)
        return replace(self._run(attempt), is_preempted=True)

    def _remove(self, attempt: ActiveAttempt) -> None:
        gpus = tuple(without_attempt(gpu, attempt, self.facts) for gpu in self.facts.gpus)
        del self._attempts[attempt.id]
        self._etas.pop(attempt.id, None)
        self.facts = replace(self.facts, gpus=gpus, attempts=self.running)

    def _run(self, attempt: ActiveAttempt) -> Run:
        started_at = attempt.started_at or self._began.wall
        return Run(attempt.job_id, attempt.id, attempt.gpus, started_at, self.facts.now.wall)


# Estimates how long the jobs of a forecast run: the median, and the upper estimate.


#: The upper length of a run, as a multiple of the median one, if nothing is known about either.
_GUESSED_SPREAD = 2.0


#: The median and the upper length of a run or of its rest, in seconds.
_Length = tuple[float, float]


def expected_lengths(
    facts: Facts, jobs: Iterable[QueuedJob], ending: Collection[int], pooled: Estimate
) -> tuple[dict[int, _Length], dict[int, _Length]]:
    """Returns the lengths of the runs that will start, by job, and of the rests of attempts, by attempt.

    ending: the ids of attempts whose commands have ended already. pooled: see `forecast`.
    """
    ends = expected_ends(facts)
    new = {job.job_id: _lengths(_estimate(job.run_time, facts, pooled), 0.0) for job in jobs}
    left: dict[int, _Length] = {}
    for one in facts.attempts:
        age_s = 0.0 if one.started_at is None else max(0.0, facts.now.wall - one.started_at)
        if one.id in ending:
            left[one.id] = 0.0, 0.0
        elif one.observed.remaining_s is not None or departure_s(one, facts.now, facts.settings) is not None:
            left[one.id] = ends[one.id].in_s, ends[one.id].in_s
        else:
            left[one.id] = _lengths(_estimate(key_of(one), facts, pooled), age_s)
    return new, left


def _estimate(key: RunTimeKey | None, facts: Facts, pooled: Estimate) -> Estimate:
    own = facts.run_times.estimate(key)
    return own if own.predicted_s is not None else replace(pooled, timeout_s=own.timeout_s)


def _lengths(estimate: Estimate, age_s: float) -> _Length:
    """Returns the median and the upper remaining time of a job that has run for age_s seconds."""
    usual_s, upper_s = estimate.remaining_s(age_s), estimate.remaining_upper_s(age_s)
    return usual_s, max(usual_s, upper_s) if upper_s < math.inf else _GUESSED_SPREAD * usual_s


# Plays a queue forward, with dependencies and delays.


class WaitingJob(Struct, frozen=True):
    """A job that will start without the help of a user.

    parents: the unfinished jobs for which it waits. not_before: the earliest start in wall seconds, after a
    failed launch; 0 if there is no delay.
    """

    job: QueuedJob
    resources: ResourceSpec
    parents: tuple[int, ...] = ()
    not_before: float = 0.0


def play(
    facts: Facts, waiting: Sequence[WaitingJob], jobs: Mapping[int, float], attempts: Mapping[int, float]
) -> tuple[dict[int, Run], dict[str, WaitReason]]:
    """Plays the queue until nothing is left that ends.

    jobs, attempts: how long the runs of jobs and the rests of attempts take, in seconds, by their ids.
    Returns the run of each job, from its first start to its last end, and why the jobs wait that have not
    started although they wait only for GPUs, by the key of their resources.
    """
    now = facts.now.wall
    reserved = {one.job.job_id for one in facts.reserved_jobs}
    missing = {one.job.job_id: set(one.parents) for one in waiting if one.parents}
    children: dict[int, list[WaitingJob]] = {}
    box = Playback(
        facts,
        lambda job: jobs.get(job.job_id, 0.0),
        {attempt_id: now + seconds for attempt_id, seconds in attempts.items()},
    )
    for one in waiting:
        for parent in set(one.parents):
            children.setdefault(parent, []).append(one)
        if not one.parents and (one.not_before > now or one.job.job_id not in reserved):
            box.submit(one.job, one.resources, max(now, one.not_before))
    ended = {one.id for one in facts.attempts if not one.state.is_open}
    runs: dict[int, Run] = {}
    for run in box.play():
        if run.attempt_id in ended:
            continue  # its job has ended already, or waits again
        first = runs.get(run.job_id)
        runs[run.job_id] = run if first is None else replace(run, started_at=first.started_at)
        for child in () if run.is_preempted else children.get(run.job_id, ()):
            at, of = max(run.ended_at, child.not_before), missing[child.job.job_id]
            of.discard(run.job_id)
            if not of:
                box.submit(replace(child.job, waiting_since=at), child.resources, at)
    left = place_jobs(box.facts) if box.waiting else []
    return runs, {one.spec_key: one.reason for one in left if isinstance(one, act.SetWaitReason)}


class JobForecast(Struct, frozen=True):
    """The expected start and end of a job in wall seconds, and the UUIDs of its GPUs.

    start_upper_at, end_upper_at: the times if every job takes its upper estimate; None if the job then does
    not start. has_estimate: whether earlier runs or its progress show how long the job takes.
    """

    start_at: float
    end_at: float
    start_upper_at: float | None
    end_upper_at: float | None
    gpus: tuple[str, ...]
    has_estimate: bool


class Forecast(Struct, frozen=True):
    """The forecast of each job that will end, by its id.

    reasons: why the other jobs that wait only for GPUs do not start, by their resources. idle_share: the part
    of the GPU time until idle_until, when the last waiting job starts, in which no job runs on a GPU; None if
    no job has to wait.
    """

    jobs: Mapping[int, JobForecast] = field(default_factory=dict)
    reasons: Mapping[str, WaitReason] = field(default_factory=dict)
    idle_share: float | None = None
    idle_until: float | None = None


def forecast(
    facts: Facts, waiting: Sequence[WaitingJob], ending: Collection[int] = (), pooled: Estimate = UNKNOWN
) -> Forecast:
    """Returns the forecast of the running jobs and of these waiting ones.

    facts: pending groups do not count. ending: the ids of attempts whose commands have ended already. pooled:
    the estimate for a job about which nothing else is known. No decision of the playback is based on it,
    because none of the scheduler is.
    """
    # Each adopted process that no runner watches now counts as an attempt.
    attempts = (*facts.attempts, *unwatched_attempts(facts))
    facts = replace(facts, attempts=attempts, adopted_jobs=(), pending_groups=())
    lengths = expected_lengths(facts, [one.job for one in waiting], ending, pooled)
    (usual, reasons), (upper, _) = (
        play(facts, waiting, *({key: both[n] for key, both in some.items()} for some in lengths))
        for n in (0, 1)
    )
    ends = expected_ends(facts)
    known = {one.job_id: ends[one.id].is_known for one in facts.attempts if one.state.is_open}
    for one in waiting:
        known[one.job.job_id] = facts.run_times.estimate(one.job.run_time).predicted_s is not None
    found = {
        job_id: _job_forecast(run, upper.get(job_id), has_estimate=known[job_id])
        for job_id, run in usual.items()
    }
    until = max((found[one.job.job_id].start_at for one in waiting if one.job.job_id in found), default=0.0)
    if until <= facts.now.wall:
        return Forecast(found, reasons)
    return Forecast(found, reasons, _idle_share(usual.values(), facts, until), until)


def _job_forecast(run: Run, late: Run | None, *, has_estimate: bool) -> JobForecast:
    """Returns the forecast of a job. late: its run if every job takes its upper estimate."""
    start_upper = None if late is None else max(run.started_at, late.started_at)
    end_upper = None if late is None else max(run.ended_at, late.ended_at)
    return JobForecast(run.started_at, run.ended_at, start_upper, end_upper, run.gpus, has_estimate)


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


# Tells what the next round does with one waiting job: its GPUs, its overtakes and its reservation.


class EndBasis(Enum):
    """The source of an expected end."""

    ENDING = "ending"
    PROGRESS = "progress"
    RUN_TIMES = "run times"
    GUESS = "guess"


class AwaitedEnd(Struct, frozen=True):
    """A running job that must leave reserved GPUs first.

    gpus: the indices of these GPUs. in_s: the seconds until its expected end. age_s: for how long it has run.
    prediction: the usual time of earlier runs, None if there are too few. timeout_s: its time limit.
    """

    job_id: int
    gpus: tuple[int, ...]
    in_s: float
    age_s: float
    basis: EndBasis
    prediction: Prediction | None
    timeout_s: float | None


class QueueOutlook(Struct, frozen=True):
    """The state of a waiting job with respect to the queue order.

    overtakes: how often it has been overtaken; needed: after how many overtakes GPUs may be reserved for it.
    cost_s: the GPU-seconds for which they would be idle; None if it is not known when enough of them will be
    free. budget_left_s: for how many GPU-seconds reserved GPUs may still be idle. may_begin: whether the cost
    is small enough. first_job: the job before it in the queue that has the reservation; None if there is
    none. reservation: its own; gpus: the indices of the reserved GPUs. awaited: the jobs that must leave
    them. estimate: how long the job itself takes.
    """

    overtakes: int
    needed: int
    cost_s: float | None
    budget_left_s: float
    may_begin: bool
    first_job: int | None
    reservation: QueueReservation | None
    gpus: tuple[int, ...]
    awaited: tuple[AwaitedEnd, ...]
    estimate: Estimate


def queue_outlook(
    facts: Facts, need: Need, job: QueuedJob, resources: ResourceSpec, run_times: RunTimes
) -> QueueOutlook | None:
    """Returns the outlook of a queued job; None if no GPUs are ever reserved by queue order.

    run_times: those on which the estimates in the facts are based.
    """
    settings, stored = facts.settings, facts.queue_reservation
    if settings.queue_order is not QueueOrder.RESERVE or not need.count:
        return None
    gpus = gpus_for(job, facts)
    ends = expected_ends(gpus.facts)
    planned = plan_reservation(need, resources.allowed, gpus.ledgers(), ends)
    own = stored if stored is not None and stored.job.job_id == job.job_id else None
    is_behind = own is None and stored is not None and queue_key(stored.job) < queue_key(job)
    since = waiting_since(job, resources, need, facts)
    left_s, waited_s = budget_left_s(facts), need.count * (facts.now.wall - since)
    return QueueOutlook(
        facts.overtakes.count(job.place, job.submitted_at, since) if own is None else own.overtakes,
        settings.aging,
        None if planned is None else planned.cost_s,
        left_s,
        planned is not None and may_begin(planned.cost_s, left_s, waited_s, settings.idle_budget),
        stored.job.job_id if is_behind and stored is not None else None,
        own,
        () if own is None else tuple(sorted(gpu.index for gpu in facts.gpus if gpu.uuid in own.gpus)),
        () if own is None or planned is None else _awaited(need, planned, gpus, ends, run_times),
        facts.run_times.estimate(job.run_time),
    )


def _awaited(
    need: Need,
    planned: PlannedReservation,
    gpus: RoundAllocations,
    ends: dict[int, ExpectedEnd],
    run_times: RunTimes,
) -> tuple[AwaitedEnd, ...]:
    """Returns the jobs that must leave the reserved GPUs, the first end first."""
    where: dict[int, list[int]] = {}
    for gpu in gpus.ledgers():
        if gpu.uuid in planned.gpus:
            for attempt_id in attempts_to_leave(gpu, need, ends) or ():
                where.setdefault(attempt_id, []).append(gpu.index)
    facts = gpus.facts
    found = [
        AwaitedEnd(
            one.job_id,
            tuple(sorted(where[one.id])),
            ends[one.id].in_s,
            0.0 if one.started_at is None else max(0.0, facts.now.wall - one.started_at),
            _basis(one, ends[one.id], facts),
            None if (key := key_of(one)) is None else run_times.prediction(key),
            None if key is None else key.timeout_s,
        )
        for one in facts.attempts
        if one.id in where
    ]
    return tuple(sorted(found, key=lambda one: (one.in_s, one.job_id)))


def _basis(attempt: ActiveAttempt, end: ExpectedEnd, facts: Facts) -> EndBasis:
    if departure_s(attempt, facts.now, facts.settings) is not None:
        return EndBasis.ENDING
    if attempt.observed.remaining_s is not None:
        return EndBasis.PROGRESS
    return EndBasis.RUN_TIMES if end.is_known else EndBasis.GUESS


def judged_gpus(
    facts: Facts, need: Need, job: QueuedJob, allowed: tuple[int, ...] | None = None
) -> list[Ledger]:
    """Returns each GPU as the next round judges it for a queued job with this need."""
    judged = gpus_for(job, facts).judged(need, job.job_id, _upper_s(job, facts))
    return without_failed_gpus(judged, job, need, allowed, facts)


def possible_preemption(
    facts: Facts, need: Need, job: QueuedJob, resources: ResourceSpec
) -> Preemption | NoPreemption | None:
    """Returns whom the next round preempts for a queued job, or why nobody; None if it need or may not."""
    if not may_preempt(job.priority, resources, facts.settings) or GroupLimits(facts).refusal(resources):
        return None
    gpus, upper_s = gpus_for(job, facts), _upper_s(job, facts)
    answer = gpus.place(need, resources.allowed, upper_s)
    if not isinstance(answer, WaitReason) or answer.is_infeasible:
        return None
    usable = gpus.preemptible(need, upper_s + facts.settings.preempt_grace_s)
    return find_preemption(job, need, resources.allowed, facts, gpus.leaving, usable)


def gpus_for(job: QueuedJob, facts: Facts) -> RoundAllocations:
    """Returns the GPUs with the reservations that a queued job meets in the next round."""
    gpus = RoundAllocations(facts, leaving_attempts(facts))
    keep_reserved_gpus(facts, gpus)
    stored = facts.queue_reservation
    if stored is not None and queue_key(stored.job) < queue_key(job):
        wanted = need_of(stored.resources, facts)
        ends = expected_ends(gpus.facts)
        planned = plan_reservation(wanted, stored.resources.allowed, gpus.ledgers(), ends)
        if planned is not None:
            gpus.reserve_in_order(stored, wanted, planned)
    return gpus


def _upper_s(job: QueuedJob, facts: Facts) -> float:
    return facts.run_times.estimate(job.run_time).upper_s
