"""Defines the options of `start` that decisions depend on, with their defaults.

Times are in seconds and memory is in MiB. A fraction of 0.1 means 10 percent.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Limits(Struct, frozen=True):
    """The thresholds that decide whether a GPU accepts one more job.

    mem_threshold, load_threshold: fraction of a GPU's memory or load at or above which foreign use keeps jobs
    off the GPU. margin_mib: memory that is kept free on each GPU in addition to the declared memory.
    idle_threshold_mib: foreign memory up to which a GPU counts as idle, because drivers and displays use a
    little. spike_buffer: fraction that is added to observed peaks.
    """

    mem_threshold: float = 0.8
    load_threshold: float = 0.8
    margin_mib: int = 512
    idle_threshold_mib: int = 200
    spike_buffer: float = 0.10


class QueueOrder(str, Enum):
    """How a waiting job that does not fit affects the jobs behind it."""

    #: Every job that fits starts.
    BACKFILL = "backfill"
    #: So it does, but GPUs are reserved for a job that has been overtaken too often.
    RESERVE = "reserve"

    def __str__(self) -> str:
        return self.value


class Settings(Limits, frozen=True):
    """The limits and the other options that decisions depend on.

    exclusive: whether each GPU runs at most one of our jobs; tolerance: the fraction by which memory use may
    exceed the declaration before it is reported; *_retries: defaults for jobs whose lines set none; recover:
    whether the scheduler itself queues interrupted jobs again; max_launches: how many times an attempt is
    launched before it counts as not started; grace_s: the time between SIGTERM and SIGKILL; memory_release_s:
    the longest wait until the memory of a released GPU is free; survivor_wait_s: the time that the processes
    of a dead runner have to exit. No command-line option sets launch_deadline_s or the fields after it.

    preempt_at_priority: the priority at or above which (that is, with this or a smaller number) jobs may
    preempt others without the attribute `preempt`; None if no priority suffices. preempt_grace_s: the time
    that a job preempted for another one has to save its work.

    aging: the number of overtakes after which GPUs are reserved for a job. idle_budget: the part of the
    delivered GPU time, or of the time that a job has waited, for which reserved GPUs may be idle.
    suspect_after: the number of quick failures that make a GPU suspect; 0 for never. start_interval_s: the
    least time between the starts of two jobs that use GPUs. cpu_jobs: how many jobs without a GPU may run at
    the same time. on: where jobs run whose lines do not say so, "local" or an engine. slurm_limit: how many
    jobs may wait in Slurm at the same time.
    """

    exclusive: bool = False
    tolerance: float = 0.10
    oom_retries: int = 0
    fail_retries: int = 0
    recover: bool = False
    preempt_at_priority: int | None = None
    preempt_grace_s: float = 60.0
    queue_order: QueueOrder = QueueOrder.RESERVE
    aging: int = 8
    idle_budget: float = 0.05
    suspect_after: int = 3
    start_interval_s: float = 0.0
    cpu_jobs: int = 1
    on: str = "local"  # job_spec.LOCAL, whose module is slow to import
    slurm_limit: int = 20
    max_assign_attempts: int = 5
    assign_retry_wait_s: float = 5.0
    launch_deadline_s: float = 10.0
    max_launches: int = 3
    grace_s: float = 10.0
    memory_release_s: float = 60.0
    survivor_wait_s: float = 60.0
