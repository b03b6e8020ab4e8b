"""Plays the placement of jobs forward on a virtual clock, with given run times.

Every decision is that of the scheduler: `place_jobs`, and `count_gpu_time` before anything changes. A round
of `plan` consists of these once nothing else is left to decide; a playback has no processes, folders or
requests about which to decide. A test compares both.

A playback is simpler than a box in these respects:

- An attempt leaves its GPUs, with its memory, at the moment at which it ends. A preempted one ends at once.
- No job fails, nobody changes the queue, and foreign processes stay as they are.
- Rounds take place when a job arrives or ends and, while GPUs are reserved by queue order, every
  ROUND_INTERVAL_S, because what fits beside the reservation changes with time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpu_scheduler.core.model.attempt_status import AttemptStatus
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import (
    Action,
    DropReservation,
    RecordGpuTime,
    RecordStop,
    Reserve,
    SetQueueReservation,
    Start,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, QueuedJob, QueueReservation, ReservedJob
from gpu_scheduler.core.scheduling.gpu_time import count_gpu_time
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.overtakes import QueueStart
from gpu_scheduler.core.scheduling.queue_placement import place_jobs
from gpu_scheduler.core.scheduling.run_times import RunTimeEstimates
from gpu_scheduler.core.scheduling.virtual_gpu_time import VirtualGpuTime
from gpu_scheduler.core.scheduling.virtual_gpus import without_attempt
from gpu_scheduler.core.scheduling.virtual_queue import VirtualQueue

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
