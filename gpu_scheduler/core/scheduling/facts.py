"""The input of one round, as frozen values: store, attempt folders, GPUs, requests and time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct, field

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, Job
from gpu_scheduler.core.model.reasons import WaitReason
from gpu_scheduler.core.model.request import Request
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.history import (
    GpuHistory,
    GpuTime,
    Overtakes,
    RunTimeEstimates,
    RunTimeKey,
    RunTimes,
)
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.settings import Settings


class QueuedJob(Struct, frozen=True):
    """A job that may start now, ordered by priority and then by queue position, lowest first.

    submitted_at: when it was submitted; waiting_since: when it last began to wait for GPUs, both in wall
    seconds. run_time: identifies the runs from which its run time is estimated. fail_retries_used: how often
    it has been retried after a failure. failed_on: the GPUs on which it has just failed, if it is retried.
    """

    job_id: int
    priority: int
    position: int
    submitted_at: float = 0.0
    waiting_since: float = 0.0
    run_time: RunTimeKey | None = None
    fail_retries_used: int = 0
    failed_on: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the queue: its priority and position."""
        return self.priority, self.position

    def has_tries_left(self, settings: Settings) -> bool:
        """Returns whether it would be retried if it failed once more."""
        times = None if self.run_time is None else self.run_time.fail_retries
        return self.fail_retries_used < (settings.fail_retries if times is None else times)


class PendingGroup(Struct, frozen=True, dict=True):
    """The first waiting jobs with the same resource spec, in order. has_more: whether more jobs follow."""

    resources: ResourceSpec
    jobs: tuple[QueuedJob, ...]
    has_more: bool = False
    reason: WaitReason | None = None

    @cached_property
    def submitted_at(self) -> float:
        """When the first of the jobs was submitted, in wall seconds."""
        return min(job.submitted_at for job in self.jobs)


class ReservedJob(Struct, frozen=True):
    """A queued job for which attempts were preempted, and the UUIDs of the GPUs that are reserved for it.

    may_start: False while something other than GPUs, such as its line, keeps it from starting.
    """

    job: QueuedJob
    resources: ResourceSpec
    gpus: tuple[str, ...]
    may_start: bool = True


class QueueReservation(Struct, frozen=True):
    """The reservation by queue order, for a job that has been overtaken too often.

    gpus: sorted UUIDs. start_at: when the job is expected to start, in wall seconds, as it is shown.
    overtakes: how often it had been overtaken when the reservation began. is_delayed: whether the job cannot
    start for a moment, because its line is being edited; it is then not in its group.
    """

    job: QueuedJob
    resources: ResourceSpec
    gpus: tuple[str, ...]
    start_at: float
    overtakes: int
    is_delayed: bool = False


class EngineAnswer(Struct, frozen=True):
    """An engine's answer whether it can run jobs with given resources.

    problem: why it cannot; None if it can. is_final: whether it never can or may, so that it need not be
    asked again soon.
    """

    problem: str | None = None
    is_final: bool = True


class EngineState(Struct, frozen=True):
    """The state of an engine, as its agent reports it.

    problem: why the engine cannot be used now; None if it can. answers: its answers for the resource specs of
    queued jobs, by their keys. at: when the agent said so, in wall seconds; None if it has said nothing.
    """

    problem: str | None = None
    answers: Mapping[str, EngineAnswer] = field(default_factory=dict)
    at: float | None = None


class Facts(Struct, frozen=True):
    """The input of one round.

    all_sampled: whether every managed GPU has been sampled. probe_error: why the GPUs cannot be read; None if
    they can. storage_issue: the problem with our own storage that blocks new starts; None if there is none.
    pending_groups: the queued jobs for this machine that preempt no others; engine_groups: those for each
    engine. engines: the state of each engine that this scheduler uses. unmanaged_gpus: GPUs in the sample
    that this scheduler does not manage; other_gpus: known ones that it does not manage, if requests concern
    them. learned_mib: the MiB that a job of each workload class needs, if needs are learned.
    has_unsettled_dependencies: whether a job is to be skipped or queued again because of its parents.
    cyclic_request: the id of the first request that sets dependencies, if its job would wait for itself.
    adopted_jobs: the queued jobs that are running processes, which no runner watches. interrupted: the jobs
    that a recovery queues again; finished_count: the number of finished jobs that are not cleared. Both are
    read only if they are needed. overtakes: the newest starts; history: the newest ends on each GPU;
    run_times: estimates; queue_reservation: the one in the store; gpu_time: the GPU time of the last days,
    None if it is not counted.
    """

    now: Now
    settings: Settings
    config: LlmConfig
    gpus: tuple[Gpu, ...] = ()
    unmanaged_gpus: tuple[Gpu, ...] = ()
    other_gpus: tuple[Gpu, ...] = ()
    all_sampled: bool = True
    probe_error: str | None = None
    storage_issue: str | None = None
    attempts: tuple[ActiveAttempt, ...] = ()
    pending_groups: tuple[PendingGroup, ...] = ()
    engine_groups: Mapping[str, tuple[PendingGroup, ...]] = field(default_factory=dict)
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    adopted_jobs: tuple[Job, ...] = ()
    reserved_jobs: tuple[ReservedJob, ...] = ()
    queue_reservation: QueueReservation | None = None
    overtakes: Overtakes = field(default_factory=Overtakes)
    history: GpuHistory = field(default_factory=GpuHistory)
    run_times: RunTimeEstimates = field(default_factory=RunTimes)
    gpu_time: GpuTime | None = None
    requests: tuple[Request, ...] = ()
    jobs: Mapping[int, Job] = field(default_factory=dict)
    learned_mib: Mapping[str, int] = field(default_factory=dict)
    has_unsettled_dependencies: bool = False
    cyclic_request: int | None = None
    interrupted: tuple[Job, ...] = ()
    finished_count: int = 0

    def attempts_on(self, uuid: str) -> tuple[ActiveAttempt, ...]:
        """Returns the attempts that hold a GPU or await the release of their memory there."""
        return tuple(attempt for attempt in self.attempts if uuid in attempt.gpus)
