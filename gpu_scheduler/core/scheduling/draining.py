"""Decides when a draining scheduler may exit."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpu_scheduler.core.scheduling.effective_need import allowed_gpus, need_of
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.needs import ResourceSpec, could_fit
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
