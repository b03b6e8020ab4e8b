"""Parses the output of `nvidia-smi --query-gpu` with tolerance, into GPUs or an error line. Pure.

Every GPU is read from its own line, and a malformed line hides no other. Known outputs of drivers 325 to 610:

- A value that a GPU does not have is `[N/A]`, `[Not Supported]` or `N/A`: it is unknown, not a fault.
- The line of a lost GPU contains `[GPU is lost]`, that of one that needs a reset `[GPU requires reset]`.
- A GPU without a handle has a line of text, `Unable to determine the device handle for GPU0000:02:00.0: …`.
  Newer programs add a line of values that are all `[Unknown Error]` and continue with the next GPU; older
  ones stop there, so that the GPUs after it are not listed (`cut_short`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from gpu_scheduler.core.model.gpu import UNKNOWN_UUID_PREFIX, GpuSample, without_impossible_values
from gpu_scheduler.core.model.gpu_fault import LOST, MIG_MODE, FaultKind, GpuFault

#: The columns that GPUtil queries, in its order, and the MIG mode, which explains a missing load.
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
#: Output when the machine has no GPU, which is not an error.
NONE_FOUND = "No devices were found"
_NOT_KNOWN = ("", "-", "n/a", "not supported", "not available", "insufficient permissions", "not found")


@dataclass
class SmiOutput:
    """The parsed output: the GPUs, and the first line that is about none of them ("" = there is none).

    cut_short: the output ends at a GPU without a handle; there may be more GPUs.
    """

    gpus: list[GpuSample] = field(default_factory=list)
    error_line: str = ""
    cut_short: bool = False


def parse(text: str) -> SmiOutput:
    """Parses the output of the program, followed by what it wrote to stderr."""
    answer = SmiOutput()
    valueless = 0  # lines of `[Unknown Error]` whose line of text has not come yet
    for raw in text.splitlines():
        line = printable(raw, 1000)
        values = [value.strip() for value in line.split(", " if ", " in line else ",")]
        if lost := _NO_HANDLE.match(line):
            if valueless:
                valueless -= 1
                continue
            answer.gpus.append(_without_handle(lost[2], None if lost[1] is None else int(lost[1])))
            answer.cut_short = True
        elif len(values) > USED and all(value.startswith("[") for value in values):
            if not answer.cut_short:
                valueless += 1
                answer.gpus.append(_without_handle(values[UUID], None))
            answer.cut_short = False
        elif (gpu := _parse_gpu(values)) is not None:
            if gpu.uuid == UNKNOWN_UUID_PREFIX or gpu.uuid not in {known.uuid for known in answer.gpus}:
                answer.gpus.append(gpu)
            answer.cut_short = False
        elif line and (line == NONE_FOUND or not answer.error_line):
            answer.error_line = printable(line)
    answer.gpus = _with_indices(answer.gpus)
    return answer


def printable(text: str, max_length: int = 200) -> str:
    """Returns a line of arbitrary output in printable form: without control characters, cut to a length."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_length].strip())


def at_index(gpu: GpuSample, index: int) -> GpuSample:
    """Returns the GPU with that index, which also identifies a GPU without a UUID."""
    uuid = f"{UNKNOWN_UUID_PREFIX}{index}" if gpu.uuid.startswith(UNKNOWN_UUID_PREFIX) else gpu.uuid
    return replace(gpu, index=index, uuid=uuid)


def _parse_gpu(values: list[str]) -> GpuSample | None:
    """Returns the GPU of a line that begins with an index and a UUID (or its error); else None."""
    if len(values) <= UUID or not re.fullmatch(r"[0-9]{1,4}", values[INDEX]):
        return None
    if values[UUID].startswith("["):
        return _without_handle(values[UUID], int(values[INDEX]))
    if not values[UUID].startswith("GPU-"):
        return None
    padded = values + [""] * (MIG + 1 - len(values))
    fault = _fault(padded) or (MIG_MODE if padded[MIG] == "Enabled" else None)
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
    return without_impossible_values(sample)


def _fault(values: list[str]) -> GpuFault | None:
    """Returns the fault of the GPU with these values; None if the relevant ones are valid or unknown."""
    bare = [value.strip("[]") for value in values]
    for value in bare:
        if "GPU is lost" in value:
            return LOST
        if "requires re" in value:
            return GpuFault(FaultKind.QUERY_FAILED, value)
    for column in (LOAD, TOTAL, USED):
        if bare[column].lower() not in _NOT_KNOWN and _number(bare[column]) is None:
            return GpuFault(FaultKind.QUERY_FAILED, bare[column])
    return None


def _number(text: str) -> float | None:
    """Parses a value in MiB or percent; returns None if it is not a number.

    Three digits after a comma may be thousands, so such a text is not a number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = 1 if match[4] == "%" else _MIB.get(match[4].upper())
    return None if unit is None else float(f"{match[1]}.{match[2] or match[3] or 0}") * unit


def _without_handle(why: str, index: int | None) -> GpuSample:
    cause = f"no device handle, {why.strip('[]. ')}"
    fault = LOST if "GPU is lost" in why else GpuFault(FaultKind.QUERY_FAILED, cause)
    return GpuSample(
        UNKNOWN_UUID_PREFIX, -1 if index is None else index, "unknown", None, None, None, fault=fault
    )


def _with_indices(gpus: list[GpuSample]) -> list[GpuSample]:
    """Returns the GPUs in order of their indices; one without an index gets the first free one."""
    known = {gpu.index for gpu in gpus if gpu.index >= 0}
    distinct = len(known) == sum(gpu.index >= 0 for gpu in gpus)
    free = (index for index in range(2 * len(gpus) + max(known, default=0)) if index not in known)
    numbered = []
    for position, gpu in enumerate(gpus):
        index = (gpu.index if gpu.index >= 0 else next(free)) if distinct else position
        numbered.append(at_index(gpu, index))
    return sorted(numbered, key=lambda gpu: gpu.index)
