"""Parses the output of `nvidia-smi --query-gpu` line by line, so that a bad line affects only its own GPU.

A value that a GPU does not support is `[N/A]` or `[Not Supported]`; it is unknown, not a fault. The line of a
lost GPU contains `[GPU is lost]`, and the line of a GPU that needs a reset contains `[GPU requires reset]`.
If `nvidia-smi` cannot open a GPU, it prints an error message instead of the GPU's line. The GPU is then
missing, like any GPU that the driver no longer lists.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpu_scheduler.core.model.gpu import GpuSample, without_impossible_values
from gpu_scheduler.core.model.gpu_fault import LOST, MIG_MODE, FaultKind, GpuFault

#: The columns that GPUtil queries, in its order, and the MIG mode, which drivers before 450 do not have.
FIELDS = (
    "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,"
    "display_active,display_mode,temperature.gpu,mig.mode.current"
)
#: The output on a machine without a GPU, which is not an error.
NONE_FOUND = "No devices were found"
_GPU_LINE = re.compile(r"([0-9]{1,4}), (GPU-[^,]*)(?:, (.*))?")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_NOT_KNOWN = ("", "n/a", "not supported", "not available", "insufficient permissions")


def parse(text: str) -> tuple[list[GpuSample], str]:
    """Parses the output of the program, followed by its stderr.

    Returns the GPUs, sorted by index, and the first line that describes no GPU; "" if there is no such line.
    """
    gpus: dict[str, GpuSample] = {}
    error = ""
    for raw in text.splitlines():
        line = printable(raw, 1000)
        match = _GPU_LINE.fullmatch(line)
        if match is None:
            error = line if line == NONE_FOUND else error or printable(line)
        elif match[2] not in gpus:
            gpus[match[2]] = _gpu(int(match[1]), match[2], (match[3] or "").split(", "))
    found = sorted(gpus.values(), key=lambda gpu: gpu.index)
    if len({gpu.index for gpu in found}) < len(found):
        found = [replace(gpu, index=position) for position, gpu in enumerate(found)]
    return found, error


def printable(text: str, max_length: int = 200) -> str:
    """Returns a line of arbitrary output, cut to a length, with `?` for each unprintable character."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_length].strip())


def _gpu(index: int, uuid: str, values: list[str]) -> GpuSample:
    """Returns the GPU with these values, which are the columns after the UUID. Missing values are unknown."""
    values = [value.strip("[] ") for value in values] + [""] * 11
    numbers, name, mig = values[:3], values[5], values[10]
    load, total, used = (float(text) if _NUMBER.fullmatch(text) else None for text in numbers)
    sample = GpuSample(
        uuid=uuid,
        index=index,
        name=name or "unknown",
        total_mib=None if total is None else int(total),
        used_mib=None if used is None else int(used),
        load_percent=load,
        fault=_fault(values, numbers) or (MIG_MODE if mig == "Enabled" else None),
    )
    return without_impossible_values(sample)


def _fault(values: list[str], numbers: list[str]) -> GpuFault | None:
    """Returns the fault that a value shows, such as a value that is not a number; None if there is none."""
    if any("GPU is lost" in value for value in values):
        return LOST
    odd = [value for value in values if "requires re" in value]
    odd += [text for text in numbers if text.lower() not in _NOT_KNOWN and not _NUMBER.fullmatch(text)]
    return GpuFault(FaultKind.QUERY_FAILED, odd[0]) if odd else None
