"""What `nvidia-smi --query-gpu` prints, read with tolerance: text in, GPUs or a complaint out. Pure.

Every GPU is judged by its own line: one that is odd hides no other. What is known of real outputs, of drivers
325 to 610:

- A value that a card does not have is `[N/A]`, `[Not Supported]` or `N/A`: unknown, and no fault.
- A lost card's line has `[GPU is lost]` in it, one that needs a reset `[GPU requires reset]`.
- A card without a handle has a line in words, `Unable to determine the device handle for GPU0000:02:00.0: …`.
  Newer programs follow it by a line of its values, all of them `[Unknown Error]`, and go on with the next
  card; older ones stop there, so that the cards behind it are not listed (`cut_short`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gpu_scheduler.core.gpu import NAMELESS, GpuSample, without_impossible
from gpu_scheduler.probes import LOST, MIG_FAULT

#: The columns that GPUtil asks for, in its order, and one that tells why a card has no load.
FIELDS = (
    "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,"
    "display_active,display_mode,temperature.gpu,mig.mode.current"
)
INDEX, UUID, LOAD, TOTAL, USED, NAME, MIG = 0, 1, 2, 3, 4, 7, 12

_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for gpu ?(?:([0-9]{1,3}): )?(.*)", re.IGNORECASE
)
_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]+)|,([0-9]{1,2}))? ?([A-Za-z%]*)")
_MIB = {"": 1, "MIB": 1, "MB": 1, "KIB": 1 / 1024, "GIB": 1024, "GB": 1024}
#: What is printed where there is no card, and that is no failure.
NONE_FOUND = "No devices were found"
_NOT_KNOWN = ("", "-", "n/a", "not supported", "not available", "insufficient permissions", "not found")


@dataclass
class Answer:
    """The GPUs that were found, and the first line that is about none of them ("" = there is no such line).

    cut_short: it ends at a card without a handle; there may be more behind it.
    """

    gpus: list[GpuSample] = field(default_factory=list)
    complaint: str = ""
    cut_short: bool = False


def parse(text: str) -> Answer:
    """What the program printed, with whatever it wrote to stderr after it."""
    answer = Answer()
    valueless = 0  # lines of `[Unknown Error]` whose line in words has not come yet
    for raw in text.splitlines():
        line = printable(raw, 1000)
        values = [value.strip() for value in line.split(", " if ", " in line else ",")]
        if lost := _NO_HANDLE.match(line):
            if valueless:
                valueless -= 1
                continue
            answer.gpus.append(_nameless(lost[2], None if lost[1] is None else int(lost[1])))
            answer.cut_short = True
        elif len(values) > USED and all(value.startswith("[") for value in values):
            if not answer.cut_short:
                valueless += 1
                answer.gpus.append(_nameless(values[UUID], None))
            answer.cut_short = False
        elif (gpu := _card(values)) is not None:
            if gpu.uuid == NAMELESS or gpu.uuid not in {known.uuid for known in answer.gpus}:
                answer.gpus.append(gpu)
            answer.cut_short = False
        elif line and (line == NONE_FOUND or not answer.complaint):
            answer.complaint = printable(line)
    answer.gpus = _numbered(answer.gpus)
    return answer


def printable(text: str, most: int = 200) -> str:
    """One line of a program that may print anything, for people: no control characters, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text[:most].strip())


def at_index(gpu: GpuSample, index: int) -> GpuSample:
    """The GPU with that index, by which one without a UUID goes."""
    uuid = f"{NAMELESS}{index}" if gpu.uuid.startswith(NAMELESS) else gpu.uuid
    return replace(gpu, index=index, uuid=uuid)


def _card(values: list[str]) -> GpuSample | None:
    """The GPU of a line that begins with an index and a UUID (or an error for it); None for any other."""
    if len(values) <= UUID or not re.fullmatch(r"[0-9]{1,4}", values[INDEX]):
        return None
    if values[UUID].startswith("["):
        return _nameless(values[UUID], int(values[INDEX]))
    if not values[UUID].startswith("GPU-"):
        return None
    padded = values + [""] * (MIG + 1 - len(values))
    fault = _fault(padded) or (MIG_FAULT if padded[MIG] == "Enabled" else None)
    total, used, load = (_number(padded[column]) for column in (TOTAL, USED, LOAD))
    sample = GpuSample(
        uuid=values[UUID],
        index=int(values[INDEX]),
        name=padded[NAME] or "unknown",
        total_mib=None if total is None else int(total),
        used_mib=None if used is None else int(used),
        load_percent=load,
        fault=fault,
    )
    return without_impossible(sample)


def _fault(values: list[str]) -> str | None:
    """Why the GPU of these values is not to be used; None if the values that matter are known or unknown."""
    bare = [value.strip("[]") for value in values]
    for value in bare:
        if "GPU is lost" in value:
            return LOST
        if "requires re" in value:
            return f"query failed: {value}"
    for column in (LOAD, TOTAL, USED):
        if bare[column].lower() not in _NOT_KNOWN and _number(bare[column]) is None:
            return f"query failed: {bare[column]}"
    return None


def _number(text: str) -> float | None:
    """MiB, or percent; None where it is no number. Three digits after a comma may be thousands: no number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = 1 if match[4] == "%" else _MIB.get(match[4].upper())
    return None if unit is None else float(f"{match[1]}.{match[2] or match[3] or 0}") * unit


def _nameless(why: str, index: int | None) -> GpuSample:
    fault = LOST if "GPU is lost" in why else f"query failed: no device handle, {why.strip('[]. ')}"
    return GpuSample(NAMELESS, -1 if index is None else index, "unknown", None, None, None, fault=fault)


def _numbered(gpus: list[GpuSample]) -> list[GpuSample]:
    """In order of their indices: each what it said, else the first that no other has."""
    said = {gpu.index for gpu in gpus if gpu.index >= 0}
    distinct = len(said) == sum(gpu.index >= 0 for gpu in gpus)
    free = (index for index in range(2 * len(gpus) + max(said, default=0)) if index not in said)
    numbered = []
    for place, gpu in enumerate(gpus):
        index = (gpu.index if gpu.index >= 0 else next(free)) if distinct else place
        numbered.append(at_index(gpu, index))
    return sorted(numbered, key=lambda gpu: gpu.index)
