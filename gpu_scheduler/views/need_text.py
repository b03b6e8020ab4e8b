"""Formats a job's need, and where the need comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_scheduler.core.model.units import WHOLE, format_share
from gpu_scheduler.core.text.formatting import count_noun, format_memory

if TYPE_CHECKING:
    from gpu_scheduler.app.current_need import CurrentNeed
    from gpu_scheduler.core.model.need import Need


def need_text(need: Need) -> str:
    """Formats a need: "0.5 of a GPU", "2 idle GPUs", "17.6 GiB of each of 2 GPUs", "no GPU"."""
    if not need.count:
        return "no GPU"
    each = "" if need.count == 1 else "each of "
    many = "a GPU" if need.count == 1 else f"{need.count} GPUs"
    if need.vram is not None and need.share == WHOLE:
        free = f"{need.count} free GPU{'' if need.count == 1 else 's'}"
        return f"{free} with {format_memory(need.vram)}{'' if need.count == 1 else ' each'}"
    if need.vram is not None:
        part = f"{format_share(need.share)} and " if need.share else ""
        shared = "" if not need.exclusive else ", alone" if need.count == 1 else ", each alone"
        return f"{part}{format_memory(need.vram)} of {each}{many}{shared}"
    if need.share == WHOLE or need.alone or not need.share:
        kind = "idle" if need.alone else "free"
        return f"{need.count} {kind} GPU{'' if need.count == 1 else 's'}"
    shared = ", alone" if need.exclusive else ""
    return f"{format_share(need.share)} of {each}{many}{shared}"


def current_need_text(current: CurrentNeed) -> str:
    """Formats a need and where it comes from: "0.5 of a GPU (model qwen2.5-3b-inst)"."""
    return f"{need_text(current.need)} ({_source_text(current)})"


def _source_text(current: CurrentNeed) -> str:
    # This import is here to keep commands fast that show a need without its source.
    from gpu_scheduler.app.current_need import NeedSource

    spec, source = current.spec, current.source
    if source is NeedSource.EARLIER_ATTEMPT:
        declared = "no memory" if spec.vram is None else format_memory(spec.vram)
        return f"{source.value}; its line declares {declared}"
    if source is NeedSource.TORCHRUN:
        return f"torchrun, {count_noun(spec.torchrun or 0, 'GPU')}"
    if source is NeedSource.MODEL:
        return f"model {spec.llm}"
    if source is NeedSource.LEARNED:
        return "learned from finished jobs of the same kind"
    return str(source.value)
