"""Decides whether a job whose command failed runs again, with more memory if it ran out of GPU memory.

OOM retries are only for jobs that ran out of GPU memory, so that they do not hide other failures
(docs/design.md, Reconciling). Such a job then needs 1.25 times the memory that was observed or declared, but
at most the memory of the largest GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gpu_scheduler.core.model.job import ActiveAttempt, Allocation
from gpu_scheduler.core.model.job_spec import Need
from gpu_scheduler.core.model.reasons import (
    FailureKind,
    GpuObstacle,
    NextKind,
    NextStep,
    ObstacleKind,
    WaitReason,
)
from gpu_scheduler.core.scheduling.accounting import allocated_mib
from gpu_scheduler.core.scheduling.facts import Facts, QueuedJob
from gpu_scheduler.core.scheduling.placement import Ledger, place
from gpu_scheduler.core.scheduling.settings import Settings

#: Factor by which the observed or declared memory is multiplied after a job ran out of GPU memory.
RAISE_FACTOR = 1.25
#: Wait before the first retry after a failure, and the longest wait, in seconds. The wait doubles each time.
FIRST_WAIT_S, MAX_WAIT_S = 10.0, 600.0
#: Seconds for which a retry then waits for a GPU other than those on which the job has failed.
ELSEWHERE_S = 300.0


class GpuInventory(Struct, frozen=True):
    """The memory of the GPUs that a job may use, in MiB.

    totals_mib: the memory size of each GPU, by UUID; available_mib: the most memory that one job can get on
    each of as many GPUs as it needs; None if unknown.
    """

    totals_mib: Mapping[str, int] = field(default_factory=dict)
    available_mib: int | None = None


def decide_retry(
    attempt: ActiveAttempt, failure: FailureKind | None, settings: Settings, inventory: GpuInventory
) -> tuple[NextStep, ...]:
    """Returns the next steps of a job whose command began and failed. A retry is always the last step."""
    context = attempt.observed.failure_context
    stop = attempt.stop_request
    # A job that failed before it could be preempted has failed like any other.
    is_stopped = stop is not None and stop.cause != "preempted"
    if context is None or attempt.is_line_gone or is_stopped or failure is FailureKind.BACKGROUND_WORK:
        return ()
    steps: tuple[NextStep, ...] = ()
    allowed = settings.oom_retries if context.oom_retries is None else context.oom_retries
    if failure is FailureKind.CUDA_OOM and allowed and attempt.gpus:
        step = _oom_step(attempt, allowed, settings, inventory)
        if step.is_retry:
            return (step,)
        steps = (step,)
    times = settings.fail_retries if context.fail_retries is None else context.fail_retries
    if attempt.job.fail_retries_used < times:
        wait_s = _wait_s(attempt.job.fail_retries_used)
        steps += (NextStep(NextKind.RETRY, attempt.job.fail_retries_used + 1, times, wait_s),)
    return steps


def without_failed_gpus(
    gpus: Sequence[Ledger], job: QueuedJob, need: Need, allowed: tuple[int, ...] | None, facts: Facts
) -> list[Ledger]:
    """Returns these GPUs; if enough others could hold a retried job, those on which it failed are closed.

    They accept it again once it has waited long enough.
    """
    until = job.waiting_since + _wait_s(job.fail_retries_used - 1) + ELSEWHERE_S
    if not job.failed_on or not job.waiting_since <= facts.now.wall < until:
        return list(gpus)
    usable = {gpu.uuid for gpu in facts.gpus if gpu.is_in_service and gpu.suspicion is None}
    others = [gpu for gpu in gpus if gpu.uuid in usable.difference(job.failed_on)]
    answer = place(need, allowed, others)
    if isinstance(answer, WaitReason) and answer.is_infeasible:
        return list(gpus)
    return [
        replace(gpu, closed=GpuObstacle(gpu.index, ObstacleKind.FAILED_HERE, job_id=job.job_id))
        if gpu.uuid in job.failed_on and gpu.closed is None
        else gpu
        for gpu in gpus
    ]


def has_tries_left(job: QueuedJob, settings: Settings) -> bool:
    """Returns whether a job would be retried if it failed once more."""
    times = None if job.run_time is None else job.run_time.fail_retries
    return job.fail_retries_used < (settings.fail_retries if times is None else times)


def _wait_s(used: int) -> float:
    return float(min(FIRST_WAIT_S * 2.0 ** min(used, 60), MAX_WAIT_S))


def _oom_step(attempt: ActiveAttempt, allowed: int, settings: Settings, inventory: GpuInventory) -> NextStep:
    """Returns the OOM retry, or why there is none. allowed: the number of allowed OOM retries."""
    if attempt.job.oom_retries_used >= allowed:
        return NextStep(NextKind.OOM_RETRIES_USED_UP, of=allowed)
    if _had_maximum(attempt, inventory):
        had = attempt.vram or max(map(inventory.totals_mib.__getitem__, attempt.gpus))
        return NextStep(NextKind.NO_LARGER_GPU, vram_mib=had)
    raised = _raised_mib(attempt, settings, inventory)
    return NextStep(NextKind.OOM_RETRY, attempt.job.oom_retries_used + 1, allowed, vram_mib=raised)


def _had_maximum(attempt: ActiveAttempt, inventory: GpuInventory) -> bool:
    """Returns whether the job already had all available memory, by declaring it or by having whole GPUs."""
    if inventory.available_mib is None:
        return False
    if attempt.vram is not None:
        return attempt.vram >= inventory.available_mib
    return attempt.whole and all(
        inventory.totals_mib.get(uuid, 0) >= inventory.available_mib for uuid in attempt.gpus
    )


def _raised_mib(attempt: ActiveAttempt, settings: Settings, inventory: GpuInventory) -> int | None:
    """Returns 1.25 times the largest observed peak or declaration on any GPU, in MiB; None if unknown.

    The result is limited by the available memory.
    """
    spike = settings.spike_buffer
    declared = Allocation(attempt.share, attempt.vram, attempt.whole)
    budgets = [allocated_mib(declared, inventory.totals_mib.get(uuid, 0), spike) for uuid in attempt.gpus]
    raised = math.ceil(RAISE_FACTOR * max([*attempt.peaks.values(), *budgets], default=0))
    most = raised if inventory.available_mib is None else min(raised, inventory.available_mib)
    return most if most > 0 else None
