"""Decides what becomes of adopted processes that no runner watches. They already run, so they never queue."""

from __future__ import annotations

from gpu_scheduler.core.model.gpu import Gpu
from gpu_scheduler.core.model.job import ActiveAttempt, AdoptedProcess, Job
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import Action, JobChanged, Start
from gpu_scheduler.core.scheduling.attempt_end import outcome_of
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.gpu_use import listed_processes, unattributed_memory
from gpu_scheduler.core.scheduling.needs import ResourceSpec, resolve


def watch_adopted(facts: Facts) -> list[Action]:
    """Starts a watcher for each adopted process, on its own GPUs, whatever else they hold.

    A process of an earlier boot is gone. Its job counts as interrupted, unless it had to stop.
    """
    actions: list[Action] = []
    for job in facts.adopted_jobs:
        if _process_of(job).boot_id != facts.now.boot_id:
            actions.append(_end(job, facts.now))
        elif facts.storage_issue is None and _is_due(job, facts.now):
            actions.append(_watch(job, facts))
    return actions


def _process_of(job: Job) -> AdoptedProcess:
    assert job.adopted is not None
    return job.adopted


def _is_due(job: Job, now: Now) -> bool:
    """Returns whether a watcher may be started now; False for a moment after the last one has died."""
    return job.boot_id != now.boot_id or (job.not_before_boot or 0.0) <= now.boot


def _end(job: Job, now: Now) -> JobChanged:
    """Returns the end of a job whose process ended with an earlier boot, while no runner watched it."""
    reason = StateReason(ReasonKind.MACHINE_RESTARTED)
    outcome = Outcome.INTERRUPTED if job.stop is None else outcome_of(job.stop.cause)
    is_cancelled = outcome is Outcome.CANCELLED
    new = job.finished(outcome, reason, now) if is_cancelled else job.held(outcome.value, reason)
    return JobChanged(job, new)


def unwatched_attempts(facts: Facts) -> tuple[ActiveAttempt, ...]:
    """Returns the attempts that hold the GPUs of adopted processes as long as no runner watches them.

    They exist only for the accounting. Their ids are negative.
    """
    return tuple(
        ActiveAttempt(
            -job.id,
            job.id,
            token="",
            boot_id=facts.now.boot_id,
            state=AttemptState.RUNNING,
            allocations=_watch(job, facts).allocations,
            job=job,
        )
        for job in facts.adopted_jobs
    )


def _watch(job: Job, facts: Facts) -> Start:
    need, process = resolve(ResourceSpec.from_key(job.spec_key), facts.config), _process_of(job)
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    gpus = [known[uuid] for uuid in process.gpus if uuid in known]
    return Start(
        job.id,
        tuple(gpu.uuid for gpu in gpus),
        need.share,
        tuple((gpu.uuid, _baseline(gpu, need.vram, facts)) for gpu in gpus),
        need.vram,
        need.whole or facts.settings.exclusive,
        assumed=need.assumed,
        process=process,
    )


def _baseline(gpu: Gpu, vram: int | None, facts: Facts) -> int:
    """Returns the unattributed memory of a GPU in MiB, without that of the process itself."""
    mib = unattributed_memory(gpu, facts.attempts, facts.settings) or 0
    if listed_processes(gpu) is not None:
        return mib
    # The driver does not say which part is that of the process.
    return 0 if vram is None else max(0, mib - vram)
