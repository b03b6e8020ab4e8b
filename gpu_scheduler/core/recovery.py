"""What a sample means for a GPU that was lost, is lost now, or comes back (docs/design.md, Placement).

A GPU with a fault gets no new jobs until so many samples in a row were good. How many have been is read from
the record, where the fault of the last sample stands, so that a restart neither forgets nor begins anew. A
sample that failed as a whole says nothing about any one GPU: it neither loses a GPU nor brings one back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.core.gpu import NAMELESS, GpuSample

#: Good samples in a row after which a lost GPU is used again.
GOOD_SAMPLES = 3
#: The fault of a GPU that the driver lists no more.
UNLISTED = "lost: the driver does not list it"
#: How the fault of every GPU begins while none of them can be read.
UNREADABLE = "the GPUs cannot be read: "

_RECOVERING = re.compile(r"recovering: ([0-9]+) of [0-9]+ good samples")


@dataclass(frozen=True)
class Known:
    """A GPU as the record has it; `fault` is that of the sample before this one."""

    uuid: str
    index: int
    name: str
    fault: str | None = None


@dataclass(frozen=True)
class Change:
    """A GPU that was lost by this sample, or that takes jobs again from it on (`back`)."""

    gpu: GpuSample
    back: bool


def settle(
    samples: Sequence[GpuSample], known: Iterable[Known]
) -> tuple[tuple[GpuSample, ...], tuple[Change, ...]]:
    """What the sample shows with the record beside it, by index, and what changed.

    A known GPU that is not in it is there all the same, as lost; one that came back keeps a fault while it
    recovers. GPUs that are not known are taken as they are.
    """
    before = {gpu.uuid: gpu for gpu in known}
    found = _identified(samples, before)
    missing = [gpu for uuid, gpu in before.items() if uuid not in {sample.uuid for sample in found}]
    settled, changes = [], []
    for sample in [*found, *_unlisted(missing, {sample.index for sample in found})]:
        last = before.get(sample.uuid)
        if last is not None:
            sample = replace(sample, fault=_fault(last.fault, sample.fault))
            if was_usable(last.fault) != (sample.fault is None):
                changes.append(Change(sample, back=sample.fault is None))
        settled.append(sample)
    return tuple(sorted(settled, key=lambda sample: sample.index)), tuple(changes)


def was_usable(fault: str | None) -> bool:
    """Whether a GPU with that fault on the record was no lost one."""
    return fault is None or fault.startswith(UNREADABLE)


def _fault(before: str | None, now: str | None) -> str | None:
    if now is not None or before is None or was_usable(before):
        return now
    match = _RECOVERING.fullmatch(before)
    good = 1 + (int(match[1]) if match else 0)
    return None if good >= GOOD_SAMPLES else f"recovering: {good} of {GOOD_SAMPLES} good samples"


def _identified(samples: Sequence[GpuSample], known: dict[str, Known]) -> list[GpuSample]:
    """The samples, each that tells no UUID taken for the known GPU that is missing at its index, or for
    another that is missing."""
    missing = {uuid: gpu for uuid, gpu in known.items() if uuid not in {sample.uuid for sample in samples}}
    found = []
    for sample in samples:
        if missing and sample.uuid.startswith(NAMELESS):
            any_one = next(iter(missing.values()))
            gpu = next((m for m in missing.values() if m.index == sample.index), any_one)
            del missing[gpu.uuid]
            sample = replace(sample, uuid=gpu.uuid, name=gpu.name)
        found.append(sample)
    return found


def _unlisted(missing: Sequence[Known], taken: set[int]) -> list[GpuSample]:
    """The missing GPUs, each with the index that it had, or one behind all others if a card has that now."""
    lost = []
    last = max(taken | {gpu.index for gpu in missing}, default=0)
    for gpu in missing:
        last += gpu.index in taken
        index = last if gpu.index in taken else gpu.index
        lost.append(GpuSample(gpu.uuid, index, gpu.name, None, None, None, fault=UNLISTED))
    return lost
