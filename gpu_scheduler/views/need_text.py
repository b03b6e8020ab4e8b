"""Formats the need of a job and its source."""

from __future__ import annotations

from gpu_scheduler.app.current_need import CurrentNeed, NeedSource
from gpu_scheduler.core.model.units import human_mib
from gpu_scheduler.core.text.formatting import count_noun


def current_need_text(current: CurrentNeed) -> str:
    """Formats a need with its source: "0.5 of a GPU (model qwen2.5-3b-inst)"."""
    return f"{current.need} ({_source_text(current)})"


def _source_text(current: CurrentNeed) -> str:
    spec, source = current.spec, current.source
    if source is NeedSource.OUT_OF_MEMORY:
        declared = "no memory" if spec.vram is None else human_mib(spec.vram)
        return f"raised after it ran out of memory; its line declares {declared}"
    if source is NeedSource.TORCHRUN:
        return f"torchrun, {count_noun(spec.torchrun or 0, 'GPU')}"
    if source is NeedSource.MODEL:
        return f"model {spec.llm}"
    if source is NeedSource.LEARNED:
        return "learned from finished jobs of the same kind"
    return "a command without declared need" if source is NeedSource.COMMAND else source.value
