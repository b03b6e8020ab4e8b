"""What a job needs, by the llm_config.json that the scheduler goes by, and where that need comes from."""

from __future__ import annotations

import os

from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import Ask, LlmConfig, resolve
from gpu_scheduler.errors import UsageError
from gpu_scheduler.llmconfig import LlmConfigFile
from gpu_scheduler.store.started import started_with
from gpu_scheduler.store.store import Store


def config_of(store: Store) -> LlmConfig:
    """The configuration as it is now; the default where the file is gone or broken."""
    path = started_with(store).llm_config
    if path is None or not os.path.exists(path):
        return LlmConfig()
    try:
        file = LlmConfigFile(path)
    except UsageError:
        return LlmConfig()
    file.look()
    return file.current


def need_words(store: Store, spec: JobSpec) -> str:
    """ "0.5 of a GPU (model qwen2.5-3b-inst)"."""
    return f"{resolve(Ask.of(spec), config_of(store))} ({_source(spec)})"


def _source(spec: JobSpec) -> str:
    if spec.torchrun is not None:
        return f"torchrun, {spec.torchrun} GPU{'' if spec.torchrun == 1 else 's'}"
    if spec.share is not None or spec.gpus is not None:
        return "its attributes"
    if spec.llm is not None:
        return f"model {spec.llm}"
    return "a command that names no need" if spec.kind == "command" else "default_requirement"
