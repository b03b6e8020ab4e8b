"""Determines what a job needs, as the scheduler does, and where that need comes from.

A need comes from the job's line, from llm_config.json, or from the measured use of finished jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.clock import Clock
from gpu_scheduler.config import StartOptions
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.need import Need
from gpu_scheduler.core.model.units import human_mib
from gpu_scheduler.core.scheduling.facts import Facts, Gpu
from gpu_scheduler.core.scheduling.needs import LlmConfig, ResourceSpec
from gpu_scheduler.core.scheduling.plan import need_of
from gpu_scheduler.errors import UsageError
from gpu_scheduler.intake.llm_config import LlmConfigFile
from gpu_scheduler.store.measurements import LearnedNeeds
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.records import GpuRecord, JobRecord
from gpu_scheduler.store.store import Store


def current_llm_config(options: StartOptions) -> LlmConfig:
    """Returns the llm_config.json of a scheduler; the default if it is missing, broken or not trusted."""
    path = options.llm_config
    if path is None or not os.path.exists(path):
        return LlmConfig()
    try:
        file = LlmConfigFile(path, trust=options.trust_files)
    except UsageError:
        return LlmConfig()
    file.refresh()
    return file.current


def learned_needs(store: Store) -> Mapping[str, int]:
    """Returns workload class -> learned MiB; empty unless the scheduler runs with --learn."""
    return LearnedNeeds(store, recorded_options(store).spike_buffer).needs() if store.learning else {}


def current_need(store: Store, job: JobRecord) -> tuple[Need, str]:
    """Returns what a job needs now, and a description such as "0.5 of a GPU (model qwen2.5-3b-inst)"."""
    started = recorded_options(store)
    config, learned = current_llm_config(started), learned_needs(store)
    facts = Facts(
        Clock().now(),
        started,
        config,
        tuple(_empty_gpu(row) for row in store.gpus()),
        learned_mib=learned,
    )
    ask = ResourceSpec.from_key(job["ask"])
    need = need_of(ask, facts)
    is_learned = need.vram is not None and ask.workload_class in learned and ask.llm not in config.models
    return need, f"{need} ({_need_source(JobSpec.from_json(job['spec']), job['raised_mib'], is_learned)})"


def _empty_gpu(row: GpuRecord) -> Gpu:
    """Returns the GPU of the row with its size only, as if nothing ran on it."""
    sample = GpuSample(row["uuid"], row["idx"], row["name"], row["total_mib"], None, None)
    return Gpu(row["uuid"], row["idx"], sample=sample)


def _need_source(spec: JobSpec, min_vram_mib: int | None, is_learned: bool) -> str:
    if min_vram_mib is not None:
        said = "no memory" if spec.vram is None else human_mib(spec.vram)
        return f"raised after it ran out of memory; its line declares {said}"
    if spec.torchrun is not None:
        return f"torchrun, {spec.torchrun} GPU{'' if spec.torchrun == 1 else 's'}"
    if spec.share is not None or spec.gpus is not None or spec.vram is not None:
        return "its attributes"
    if is_learned:
        return "learned from finished jobs of the same kind"
    if spec.llm is not None:
        return f"model {spec.llm}"
    return "a command without declared need" if spec.kind == "command" else "default_requirement"
