"""The GPUs of a playback after an attempt has left them."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.vacancy import Vacancy


def without_attempt(gpu: Gpu, attempt: Attempt, facts: Facts) -> Gpu:
    """Returns a GPU as it is sampled after an attempt has left it with its processes and their memory.

    facts: those of the moment before.
    """
    sample = gpu.sample
    if gpu.uuid not in attempt.gpus or sample is None or not sample.used_mib:
        return gpu
    used = Vacancy(gpu, facts).occupancies[attempt.attempt_id].used_mib
    processes = sample.processes
    if processes is not None:
        processes = tuple(one for one in processes if gpu.owners.get(one.pid) != attempt.attempt_id)
    left = replace(sample, used_mib=max(0, sample.used_mib - used), processes=processes)
    return replace(gpu, sample=left)
