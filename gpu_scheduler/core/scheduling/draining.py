"""Decides when a draining scheduler may exit."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpu_scheduler.core.model.job_spec import COMPLETED_OUTCOMES
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.accounting import could_fit
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.pending_queue import allowed_gpus, need_of
from gpu_scheduler.core.scheduling.retry import has_tries_left


def is_drained(facts: Facts, specs: Iterable[ResourceSpec], has_pending_retries: bool) -> bool:
    """Returns whether no job is live and no job can start unless the user does something.

    specs: the resource specs of all queued jobs, except jobs that wait for their lines or for other jobs (the
    latter cannot start before those); has_pending_retries: whether a queued job waits for its next try. Only
    the user can resume a paused GPU, or a suspect one if no job has tries left to try it, but a GPU that is
    lost or in foreign use may become available by itself.
    """
    specs = list(specs)
    is_busy = has_pending_retries or facts.requests or facts.attempts or facts.adopted_jobs
    if is_busy or (specs and not facts.all_sampled):
        return False
    has_suspect = any(gpu.suspicion for gpu in facts.gpus)
    tried = {
        gpu.uuid
        for group in (facts.pending_groups if has_suspect else ())
        if need_of(group.resources, facts).count == 1
        and any(has_tries_left(job, facts.settings) for job in group.jobs)
        for gpu in allowed_gpus(group.resources, facts)
    }
    return all(_needs_user(spec, facts, tried) for spec in specs)


def _needs_user(resources: ResourceSpec, facts: Facts, tried: Collection[str]) -> bool:
    need = need_of(resources, facts)
    usable = [
        gpu
        for gpu in allowed_gpus(resources, facts)
        if not gpu.paused
        and (gpu.suspicion is None or gpu.uuid in tried)
        and could_fit(need, gpu.sample.total_mib if gpu.sample else None, facts.settings)
    ]
    return need.count > len(usable)


# Determines the exit code of a `start` that has drained its queue or was stopped.


#: The exit code for a job that timed out. The command `timeout` uses the same code.
TIMED_OUT = 124
#: The exit code for an unfinished job that is held, is infeasible, may use only paused GPUs, or waits for a
#: job of this kind.
LEFT = 3


def drained_exit_code(job_codes: Iterable[int], *, has_malformed_line: bool) -> int:
    """Returns 0 if every job completed, otherwise the largest code of any job.

    A malformed line counts as a job with the code 1.
    """
    return max([*job_codes, int(has_malformed_line)])


def stopped_exit_code(*, drain: bool, signal: int | None) -> int:
    """Returns the exit code of a scheduler that was stopped. signal: None if a request stopped it."""
    if not drain:
        return 0
    return 128 + signal if signal else 1


def job_exit_code(
    state: JobState,
    outcome: Outcome | None,
    exit_code: int | None,
    signal: int | None,
    wait: WaitReason | None,
) -> int:
    """Returns the exit code that a job contributes when the queue is drained.

    This is the job's own exit code, 128 plus its signal, 124 if it timed out, 3 if it is held, is infeasible,
    may use only paused GPUs or waits for such a job, and 1 in all other cases, for example if it was skipped
    or if it waits because its line is malformed.
    """
    if state is not JobState.FINISHED:
        waits_for_line = wait is not None and wait.kind is WaitKind.LINE_MALFORMED
        return 1 if waits_for_line and state is JobState.QUEUED else LEFT
    if outcome in COMPLETED_OUTCOMES:
        return 0
    if outcome is Outcome.TIMED_OUT:
        return TIMED_OUT
    if outcome is Outcome.FAILED and signal:
        return 128 + signal
    if outcome is Outcome.FAILED and exit_code:
        return exit_code
    return 1
