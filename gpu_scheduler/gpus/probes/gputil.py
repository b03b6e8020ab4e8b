"""Reads the memory and load of the GPUs through GPUtil, which runs `nvidia-smi`. Does not read processes.

If one line of the output is malformed, as it is for a lost GPU, GPUtil fails for all GPUs. GPUtil also
accepts impossible values. In both cases, this probe runs `nvidia-smi` itself and parses its output line by
line. It sets no timeout, because the process in which it runs has one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import (
    LOST,
    MIG_MODE,
    PROHIBITED,
    FaultKind,
    GpuFault,
    GpuSample,
    without_impossible_values,
)
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError, printable, with_machine_memory

# Parses the output of `nvidia-smi --query-gpu` line by line, so that a bad line affects only its own GPU.
#
# A value that a GPU does not support is `[N/A]` or `[Not Supported]`; it is unknown, not a fault. The line of
# a lost GPU contains `[GPU is lost]`, and the line of a GPU that needs a reset contains `[GPU requires
# reset]`. If `nvidia-smi` cannot open a GPU, it prints an error message instead of the GPU's line. The GPU is
# then missing, like any GPU that the driver no longer lists. A GPU without memory values uses that of the
# machine.


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


#: Parts of error messages of `nvidia-smi`, each with its remedy.
_REMEDIES = (
    ("version mismatch", REBOOT_REMEDY),
    (
        "Failed to initialize NVML: Unknown Error",
        "if this is a container, it has lost its GPUs, so restart it; otherwise see `sudo dmesg | grep NVRM`",
    ),
    (
        "couldn't communicate",
        "the driver is not loaded; run `sudo modprobe nvidia`, which shows the reason if it fails, or reboot",
    ),
)


#: Seconds between two readings of the compute modes, which GPUtil does not read.
MODES_S = 30.0


class GputilProbe:
    """A probe that uses GPUtil.getGPUs(), and `nvidia-smi` if that fails and for the compute modes."""

    def __init__(self) -> None:
        self._modes: dict[str, str] = {}  # the compute modes, by UUID
        self._modes_due_at = 0.0

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        # Check this first: if `nvidia-smi` is missing, GPUtil reports "no GPUs", which would be misleading.
        if shutil.which("nvidia-smi") is None:
            raise ProbeError("nvidia-smi is not on PATH", DRIVER_REMEDY)
        gpus = _gputil()
        if gpus and time.monotonic() >= self._modes_due_at:
            self._modes |= dict(re.findall(r"(?m)^(GPU-[^,\n]*), (.*)$", _query("uuid,compute_mode")[0]))
            self._modes_due_at = time.monotonic() + MODES_S
        if not gpus or self._modes.keys() - {gpu.uuid for gpu in gpus}:
            return _read_line_by_line()
        return tuple(with_compute_mode(gpu, (self._modes.get(gpu.uuid, ""),)) for gpu in gpus)


def _gputil() -> list[GpuSample]:
    """Returns the GPUs that GPUtil reads, sorted by index.

    The list is empty if GPUtil fails or cannot be imported, or if any value is unknown or impossible.
    """
    try:
        with warnings.catch_warnings():
            # GPUtil imports distutils, which is deprecated in Python 3.10 and 3.11 and absent in 3.12.
            warnings.simplefilter("ignore")
            import GPUtil
        gpus = sorted(map(_sample, GPUtil.getGPUs()), key=lambda gpu: gpu.index)
    except Exception:  # noqa: BLE001 - GPUtil fails in many ways on output that it does not expect
        return []
    is_repeated = min(len({gpu.index for gpu in gpus}), len({gpu.uuid for gpu in gpus})) < len(gpus)
    return gpus if all(map(_is_plausible, gpus)) and not is_repeated else []


def _is_plausible(gpu: GpuSample) -> bool:
    is_text = gpu.uuid.startswith("GPU-") and (gpu.uuid + gpu.name).isprintable()
    return is_text and 0 <= gpu.index < 1000 and gpu == without_impossible_values(gpu)


def _sample(gpu: Any) -> GpuSample:
    total, used = int(gpu.memoryTotal), int(gpu.memoryUsed)
    return GpuSample(gpu.uuid, gpu.id, gpu.name, total, used, round(gpu.load * 100, 1))


def _read_line_by_line() -> tuple[GpuSample, ...]:
    text, status = _query(FIELDS)
    if "is not a valid field to query" in text:
        text, status = _query(FIELDS.removesuffix(MIG_FIELD))
    gpus, error = parse(text)
    if gpus or error == NONE_FOUND:
        return tuple(map(with_machine_memory, gpus))
    error = error or f"it printed nothing and exited with status {status}"
    remedy = next((remedy for part, remedy in _REMEDIES if part in error), DRIVER_REMEDY)
    raise ProbeError(f"nvidia-smi: {error}", remedy)


def _query(fields: str) -> tuple[str, int]:
    """Runs `nvidia-smi` and returns its output and exit status. Raises ProbeError if it cannot be run."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ProbeError(f"nvidia-smi cannot be run: {printable(str(error))}", DRIVER_REMEDY) from None
    return f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}", done.returncode
