"""Parses the output of `nvidia-smi --query-gpu` line by line, so that a bad line affects only its own GPU.

A value that a GPU does not support is `[N/A]` or `[Not Supported]`; it is unknown, not a fault. The line of a
lost GPU contains `[GPU is lost]`, and the line of a GPU that needs a reset contains `[GPU requires reset]`.
If `nvidia-smi` cannot open a GPU, it prints an error message instead of the GPU's line. The GPU is then
missing, like any GPU that the driver no longer lists. A GPU without memory values uses that of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from gpu_scheduler.core.model.gpu import GpuSample, without_impossible_values
from gpu_scheduler.core.model.gpu_fault import LOST, MIG_MODE, PROHIBITED, FaultKind, GpuFault
from gpu_scheduler.gpus.probes import printable

#: The MIG mode, which drivers before 450 do not have.
MIG_FIELD = ",mig.mode.current"
#: The columns that GPUtil queries, in its order, and the modes.
FIELDS = (
    "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,"
    f"display_active,display_mode,temperature.gpu,compute_mode{MIG_FIELD}"
)
#: The output on a machine without a GPU, which is not an error.
NONE_FOUND = "No devices were found"
_GPU_LINE = re.compile(r"([0-9]{1,4}), (GPU-[^,]*)(?:, (.*))?")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_NOT_SUPPORTED = ("n/a", "not supported")
_NOT_KNOWN = ("", *_NOT_SUPPORTED, "not available", "insufficient permissions")


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


def _gpu(index: int, uuid: str, values: list[str]) -> GpuSample:
    """Returns the GPU with these values, which are the columns after the UUID. Missing values are unknown."""
    values = [value.strip("[] ") for value in values] + [""] * 11
    numbers, name, modes = values[:3], values[5], values[10:]
    load, total, used = (min(float(text), 1e15) if _NUMBER.fullmatch(text) else None for text in numbers)
    fault = _fault(values, numbers) or (MIG_MODE if "Enabled" in modes else None)
    sample = GpuSample(
        uuid=uuid,
        index=index,
        name=name or "unknown",
        total_mib=None if total is None else int(total),
        used_mib=None if used is None else int(used),
        load_percent=load,
        fault=fault,
        unified=fault is None and all(text.lower() in _NOT_SUPPORTED for text in numbers[1:]),
    )
    return without_impossible_values(with_compute_mode(sample, modes))


def with_compute_mode(sample: GpuSample, modes: Collection[str]) -> GpuSample:
    """Returns the GPU with its compute mode, if it is among these values: "Prohibited" or "Exclusive_…"."""
    fault = sample.fault or (PROHIBITED if "Prohibited" in modes else None)
    return replace(sample, fault=fault, exclusive=any(mode.startswith("Exclusive") for mode in modes))


def _fault(values: list[str], numbers: list[str]) -> GpuFault | None:
    """Returns the fault that a value shows, such as a value that is not a number; None if there is none."""
    if any("GPU is lost" in value for value in values):
        return LOST
    odd = [value for value in values if "requires re" in value]
    odd += [text for text in numbers if text.lower() not in _NOT_KNOWN and not _NUMBER.fullmatch(text)]
    return GpuFault(FaultKind.QUERY_FAILED, odd[0]) if odd else None
