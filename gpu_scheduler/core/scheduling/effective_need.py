"""Determines the current need of a job, with what was learned and with the options of the scheduler."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.scheduling.facts import Facts, Gpu
from gpu_scheduler.core.scheduling.needs import ResourceSpec, could_fit, resolve


def need_of(resources: ResourceSpec, facts: Facts) -> Need:
    """Returns the current need of a job with these resources.

    Learned memory applies only if some GPU would still have room for another job. Otherwise the job counts as
    one that declares nothing.
    """
    need = resolve(resources, facts.config, facts.learned_mib)
    if resources.workload_class in facts.learned_mib and not _leaves_room(need, resources, facts):
        need = resolve(resources, facts.config)
    return replace(need, exclusive=True) if facts.settings.exclusive and need.count else need


def _leaves_room(need: Need, resources: ResourceSpec, facts: Facts) -> bool:
    limits = facts.settings
    beside = replace(limits, margin_mib=limits.margin_mib + limits.idle_threshold_mib)
    return any(
        could_fit(need, gpu.sample.total_mib if gpu.sample else None, beside)
        for gpu in allowed_gpus(resources, facts)
    )


def allowed_gpus(resources: ResourceSpec, facts: Facts) -> list[Gpu]:
    """Returns the managed GPUs that a job with these resources may use."""
    return [gpu for gpu in facts.gpus if resources.allowed is None or gpu.index in resources.allowed]
