"""Restricts the GPUs of a scheduler to those in its own CUDA_VISIBLE_DEVICES. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.model.gpu import GpuSample


def restrict_to_visible(
    samples: Sequence[GpuSample], cuda_visible_devices: str | None
) -> tuple[tuple[GpuSample, ...], str | None]:
    """Returns the GPUs that the variable allows, in PCI order, and a note for the user (None = none).

    Its items are indices in PCI order or prefixes of UUIDs. If an item matches no GPU or several, no GPU is
    managed, because none may be used that the user excluded; the note gives the reason. Empty or -1 hides
    every GPU, as in CUDA.
    """
    everything = tuple(samples)
    if cuda_visible_devices is None:
        return everything, None
    text = cuda_visible_devices.strip()
    setting = f"CUDA_VISIBLE_DEVICES={text}"
    if text in ("", "-1", "NoDevFiles"):
        return (), f"{setting} hides every GPU from this scheduler: unset it, or name the GPUs to manage"
    chosen: set[str] = set()
    for item in (part.strip() for part in text.split(",")):
        matches = [gpu.uuid for gpu in everything if _names(item, gpu)]
        if len(matches) != 1:
            found = "no GPU" if not matches else f"{len(matches)} GPUs"
            return (), f"{setting}: {item!r} matches {found}; correct it, or unset it to manage every GPU"
        chosen.add(matches[0])
    kept = tuple(gpu for gpu in everything if gpu.uuid in chosen)
    if len(kept) == len(everything):
        return kept, None
    numbers = ", ".join(str(gpu.index) for gpu in kept)
    return kept, f"{setting}: this scheduler manages GPU {numbers} of {len(everything)} only"


def _names(item: str, gpu: GpuSample) -> bool:
    if item.isascii() and item.isdigit():
        return int(item) == gpu.index
    return item != "" and gpu.uuid.startswith(item)
