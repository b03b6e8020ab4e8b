"""Selects the GPUs that a program may use, from `--gpus` and its own CUDA_VISIBLE_DEVICES. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_scheduler.core.model.gpu import GpuSample, parse_gpu_list
from gpu_scheduler.errors import UsageError


def restrict_to_visible(
    samples: Sequence[GpuSample], cuda_visible_devices: str | None
) -> tuple[tuple[GpuSample, ...], str | None]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES allows, in PCI order, and a note for the user or None.

    The items of the variable are indices in PCI order or prefixes of UUIDs. If an item does not match exactly
    one GPU, no GPU is returned, because the program must not use a GPU that the user excluded; the note
    gives the reason. An empty value or -1 hides every GPU, as in CUDA.
    """
    everything = tuple(samples)
    if cuda_visible_devices is None:
        return everything, None
    text = cuda_visible_devices.strip()
    setting = f"CUDA_VISIBLE_DEVICES={text}"
    if text in ("", "-1", "NoDevFiles"):
        return (), f"{setting} hides every GPU; unset it, or list the GPUs to use"
    chosen: set[str] = set()
    for item in (part.strip() for part in text.split(",")):
        matches = [gpu.uuid for gpu in everything if _names(item, gpu)]
        if len(matches) != 1:
            found = "no GPU" if not matches else f"{len(matches)} GPUs"
            return (), f"{setting}: {item!r} matches {found}; correct it, or unset it to use every GPU"
        chosen.add(matches[0])
    kept = tuple(gpu for gpu in everything if gpu.uuid in chosen)
    if len(kept) == len(everything):
        return kept, None
    numbers = ", ".join(str(gpu.index) for gpu in kept)
    plural = "s" if len(kept) > 1 else ""
    return kept, f"{setting} allows only GPU{plural} {numbers} of {len(everything)}"


def _names(item: str, gpu: GpuSample) -> bool:
    if item.isascii() and item.isdigit():
        return int(item) == gpu.index
    return item != "" and gpu.uuid.startswith(item)


def select_gpus(samples: Sequence[GpuSample], option: str | None) -> list[GpuSample]:
    """Returns the GPUs that `--gpus` selects.

    option: a count such as "4", a list such as "0,2,3" or "3,", or None for all GPUs. Raises UsageError with
    the number of GPUs found if the option is invalid.
    """
    found = f"{len(samples)} GPU{'' if len(samples) == 1 else 's'} found"
    if option is None:
        return list(samples)
    count = _count(option)
    if count is not None:
        if not 1 <= count <= len(samples):
            raise UsageError(
                f"--gpus {option}: {found}; give a count from 1 to {len(samples)}, or leave it out"
            )
        return list(samples[:count])
    try:
        indices = parse_gpu_list(option.strip().removesuffix(","), frozenset(s.index for s in samples))
    except ValueError as error:
        raise UsageError(f"--gpus {option}: {error}; {found}") from None
    return list(samples) if indices is None else [s for s in samples if s.index in indices]


def count_note(samples: Sequence[GpuSample], option: str | None) -> str | None:
    """Explains a count in `--gpus` that could be mistaken for a GPU index; returns None if all GPUs are used.

    samples: all GPUs; `select_gpus` selects the first ones.
    """
    count = None if option is None else _count(option)
    if count is None or count >= len(samples):
        return None
    chosen = [str(sample.index) for sample in samples[:count]]
    note = f"--gpus {count} is a count: GPU{'s' * (count > 1)} {', '.join(chosen)}"
    if count in [sample.index for sample in samples]:
        note += f"; for GPU {count} alone write --gpus {count},"
    return note


def _count(option: str) -> int | None:
    """Returns the number if the text of `--gpus` is a count; None if it is a list."""
    return int(option) if re.fullmatch(r"[0-9]+", option.strip()) else None
