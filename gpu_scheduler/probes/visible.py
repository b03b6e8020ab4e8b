"""Which GPUs a scheduler manages that was itself started with CUDA_VISIBLE_DEVICES. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.gpu import GpuSample


def restrict(
    samples: Sequence[GpuSample], cuda_visible_devices: str | None
) -> tuple[tuple[GpuSample, ...], str | None]:
    """The GPUs that the variable leaves, in PCI order, and a note for the user (None = nothing to say).

    Its items are indices in PCI order or beginnings of UUIDs. One that fits no GPU, or several, makes the
    whole value worthless: then no GPU is managed, since none may be taken that the user kept out, and the
    note says why. Empty or -1 hides every GPU, as CUDA has it.
    """
    everything = tuple(samples)
    if cuda_visible_devices is None:
        return everything, None
    text = cuda_visible_devices.strip()
    told = f"CUDA_VISIBLE_DEVICES={text}"
    if text in ("", "-1", "NoDevFiles"):
        return (), f"{told} hides every GPU from this scheduler: unset it, or name the GPUs to manage"
    chosen: set[str] = set()
    for item in (part.strip() for part in text.split(",")):
        matches = [gpu.uuid for gpu in everything if _names(item, gpu)]
        if len(matches) != 1:
            why = "no GPU here" if not matches else f"{len(matches)} GPUs"
            return (), f"{told}: {item!r} is {why}; correct it, or unset it to manage every GPU"
        chosen.add(matches[0])
    kept = tuple(gpu for gpu in everything if gpu.uuid in chosen)
    if len(kept) == len(everything):
        return kept, None
    numbers = ", ".join(str(gpu.index) for gpu in kept)
    return kept, f"{told}: this scheduler manages GPU {numbers} of {len(everything)} only"


def _names(item: str, gpu: GpuSample) -> bool:
    if item.isascii() and item.isdigit():
        return int(item) == gpu.index
    return item != "" and gpu.uuid.startswith(item)
