"""Tracks lost and recovering GPUs from one sample to the next (docs/design.md, Placement).

A faulty GPU gets no new jobs until several samples in a row have been good. The number of good samples is
part of the fault in the store, so that it survives a restart. If a sample fails as a whole, no GPU counts as
lost or recovered because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.core.model.gpu import (
    GOOD_SAMPLES_NEEDED,
    UNKNOWN_UUID_PREFIX,
    UNLISTED,
    FaultKind,
    GpuFault,
    GpuSample,
)


@dataclass(frozen=True)
class GpuChange:
    """A GPU that is lost, or available again (`recovered`), according to this sample."""

    gpu: GpuSample
    recovered: bool


def update_faults(
    samples: Sequence[GpuSample], known: Iterable[GpuSample]
) -> tuple[tuple[GpuSample, ...], tuple[GpuChange, ...]]:
    """Merges a sample with the known GPUs; returns the result ordered by index, and the changes.

    A known GPU that is missing from the sample is added as lost. A GPU that is back keeps a fault while it
    recovers. Unknown GPUs are returned unchanged. known: the GPUs in the store, each with its fault in the
    previous sample.
    """
    before = {gpu.uuid: gpu for gpu in known}
    found = _with_known_uuids(samples, before)
    missing = [gpu for uuid, gpu in before.items() if uuid not in {sample.uuid for sample in found}]
    settled, changes = [], []
    for sample in [*found, *_as_unlisted(missing, {sample.index for sample in found})]:
        last = before.get(sample.uuid)
        if last is not None:
            sample = replace(sample, fault=_next_fault(last.fault, sample.fault))
            if was_usable(last.fault) != (sample.fault is None):
                changes.append(GpuChange(sample, recovered=sample.fault is None))
        settled.append(sample)
    return tuple(sorted(settled, key=lambda sample: sample.index)), tuple(changes)


def was_usable(fault: GpuFault | None) -> bool:
    """Returns whether a GPU with this stored fault counted as usable, rather than as lost."""
    return fault is None or fault.kind is FaultKind.UNREADABLE


def _next_fault(before: GpuFault | None, now: GpuFault | None) -> GpuFault | None:
    if now is not None or before is None or was_usable(before):
        return now
    good = before.good_samples + 1
    return None if good >= GOOD_SAMPLES_NEEDED else GpuFault(FaultKind.RECOVERING, good_samples=good)


def _with_known_uuids(samples: Sequence[GpuSample], known: dict[str, GpuSample]) -> list[GpuSample]:
    """Returns the samples, and identifies each GPU without a UUID as one of the missing known GPUs.

    This is the missing GPU with the same index or, if there is none, any other missing GPU.
    """
    missing = {uuid: gpu for uuid, gpu in known.items() if uuid not in {sample.uuid for sample in samples}}
    found = []
    for sample in samples:
        if missing and sample.uuid.startswith(UNKNOWN_UUID_PREFIX):
            any_one = next(iter(missing.values()))
            gpu = next((m for m in missing.values() if m.index == sample.index), any_one)
            del missing[gpu.uuid]
            sample = replace(sample, uuid=gpu.uuid, name=gpu.name)
        found.append(sample)
    return found


def _as_unlisted(missing: Sequence[GpuSample], taken: set[int]) -> list[GpuSample]:
    """Returns the missing GPUs with their old indices; a GPU whose index is taken gets a higher one."""
    lost = []
    last = max(taken | {gpu.index for gpu in missing}, default=0)
    for gpu in missing:
        last += gpu.index in taken
        index = last if gpu.index in taken else gpu.index
        lost.append(GpuSample(gpu.uuid, index, gpu.name, fault=UNLISTED))
    return lost
