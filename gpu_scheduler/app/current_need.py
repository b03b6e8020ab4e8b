"""Determines a job's need, as the scheduler does, and where that need comes from.

A need comes from the job's line, from llm_config.json, or from the measured use of finished jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.scheduling.effective_need import need_of
from gpu_scheduler.core.scheduling.facts import Facts, Gpu
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.intake.llm_config import current_llm_config
from gpu_scheduler.store.measurements import LearnedNeedsReader
from gpu_scheduler.store.records import GpuRecord, JobRecord
from gpu_scheduler.store.store import Store


class NeedSource(str, Enum):
    """Where a job's need comes from."""

    EARLIER_ATTEMPT = "from an earlier attempt"
    TORCHRUN = "torchrun"
    ATTRIBUTES = "from its attributes"
    LEARNED = "measured use of finished jobs of its kind"
    MODEL = "the model on its line"
    COMMAND = "the command declares nothing"
    DEFAULT = "default_requirement"


@dataclass(frozen=True)
class CurrentNeed:
    """A job's current need, the source of that need, and what the job's line requests."""

    need: Need
    source: NeedSource
    spec: JobSpec


def learned_needs(store: Store) -> Mapping[str, int]:
    """Returns the learned MiB of each workload class; empty unless the scheduler runs with --learn."""
    return LearnedNeedsReader(store, store.recorded_options().spike_buffer).needs() if store.learning else {}


def current_need(store: Store, job: JobRecord) -> CurrentNeed:
    """Returns the need that the scheduler would currently determine for a job."""
    started = store.recorded_options()
    config, learned = current_llm_config(started), learned_needs(store)
    facts = Facts(
        Clock().now(),
        started,
        config,
        tuple(_empty_gpu(gpu) for gpu in store.gpus()),
        learned_mib=learned,
    )
    resources = ResourceSpec.from_key(job.spec_key)
    need = need_of(resources, facts)
    is_learned = (
        need.vram is not None and resources.workload_class in learned and resources.llm not in config.models
    )
    return CurrentNeed(need, _source(job, is_learned), job.spec)


def _empty_gpu(gpu: GpuRecord) -> Gpu:
    """Returns the GPU as if nothing were running on it; only its size is kept."""
    return Gpu(
        gpu.uuid, gpu.index, sample=GpuSample(gpu.uuid, gpu.index, gpu.name, gpu.total_mib, None, None)
    )


def _source(job: JobRecord, is_learned: bool) -> NeedSource:
    spec = job.spec
    if job.min_vram_mib is not None and spec.gpus != 0:
        return NeedSource.EARLIER_ATTEMPT
    if spec.torchrun is not None:
        return NeedSource.TORCHRUN
    if spec.share is not None or spec.gpus is not None or spec.vram is not None:
        return NeedSource.ATTRIBUTES
    if is_learned:
        return NeedSource.LEARNED
    if spec.llm is not None:
        return NeedSource.MODEL
    return NeedSource.COMMAND if spec.kind == "command" else NeedSource.DEFAULT
