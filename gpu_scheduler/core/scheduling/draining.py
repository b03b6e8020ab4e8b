"""Decides when a draining scheduler may exit, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.placement import could_fit
from gpu_scheduler.core.scheduling.plan import need_of


@dataclass(frozen=True)
class JobEnd:
    """The state of one job when the scheduler exits, with its result if finished. malformed: it waits for its
    line to be corrected."""

    state: JobState
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    malformed: bool = False


def is_drained(facts: Facts, specs: Iterable[ResourceSpec], has_pending_retries: bool) -> bool:
    """Returns whether no job is live and none can become runnable without the user.

    specs: of all queued jobs, except those that wait for their lines; has_pending_retries: some queued job
    waits for its next try. Only the user can resume a paused GPU; a lost GPU, or one in foreign use, may
    become available by itself.
    """
    specs = list(specs)
    if has_pending_retries or facts.requests or facts.attempts or (specs and not facts.all_sampled):
        return False
    return all(_needs_user(ask, facts) for ask in specs)


def _needs_user(resources: ResourceSpec, facts: Facts) -> bool:
    need = need_of(resources, facts)
    usable = [
        gpu
        for gpu in facts.gpus
        if not gpu.paused
        and (resources.allowed is None or gpu.index in resources.allowed)
        and could_fit(need, gpu.sample.total_mib if gpu.sample else None, facts.settings)
    ]
    return need.count > len(usable)


def exit_code(ends: Iterable[JobEnd], has_malformed_line: bool) -> int:
    """Returns 0 if every job completed, else the largest code of any job.

    That is its own exit code, 128 + its signal, 124 for timed out, 3 for held or infeasible, and 1 for
    anything else, including a malformed line and the job that waits for it.
    """
    return max([*(_job_exit_code(ending) for ending in ends), int(has_malformed_line)], default=0)


def _job_exit_code(end: JobEnd) -> int:
    if end.state is not JobState.FINISHED:
        return 1 if end.malformed and end.state is JobState.QUEUED else 3
    if end.outcome is Outcome.COMPLETED:
        return 0
    if end.outcome is Outcome.TIMED_OUT:
        return 124
    if end.outcome is Outcome.FAILED and end.signal:
        return 128 + end.signal
    if end.outcome is Outcome.FAILED and end.exit_code:
        return end.exit_code
    return 1
