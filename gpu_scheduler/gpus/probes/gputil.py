"""Reads the memory and load of the GPUs through GPUtil, which runs `nvidia-smi`. Does not read processes.

If one line of the output is malformed, as it is for a lost GPU, GPUtil fails for all GPUs. GPUtil also
accepts impossible values. In both cases, this probe runs `nvidia-smi` itself and parses its output line by
line (`gpus.probes.nvidia_smi`). It sets no timeout, because the process in which it runs has one.
"""

from __future__ import annotations

import shutil
import subprocess
import warnings
from typing import Any

from gpu_scheduler.core.model.gpu import MAX_MIB, GpuSample
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError
from gpu_scheduler.gpus.probes.nvidia_smi import FIELDS, NONE_FOUND, parse, printable

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


class GputilProbe:
    """A probe that uses GPUtil.getGPUs(). Runs `nvidia-smi` once per sample, and again if that fails."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        # Check this first: if `nvidia-smi` is missing, GPUtil reports "no GPUs", which would be misleading.
        if shutil.which("nvidia-smi") is None:
            raise ProbeError("nvidia-smi is not on PATH", DRIVER_REMEDY)
        gpus = _plausible(_gputil())
        return tuple(map(_sample, gpus)) if gpus else _read_line_by_line()


def _gputil() -> list[Any]:
    """Returns the GPUs that GPUtil reads; an empty list if it fails or cannot be imported."""
    try:
        with warnings.catch_warnings():
            # GPUtil imports distutils, which is deprecated in Python 3.10 and 3.11 and absent in 3.12.
            warnings.simplefilter("ignore")
            import GPUtil
        return list(GPUtil.getGPUs())
    except (ImportError, ValueError, IndexError, ZeroDivisionError):
        return []


def _plausible(gpus: list[Any]) -> list[Any]:
    """Returns the GPUs, sorted by index; an empty list if any value of any GPU is unknown or impossible."""
    for gpu in gpus:
        # An unknown value is NaN, for which every range check is false.
        if not (gpu.uuid.startswith("GPU-") and 0 <= gpu.id < 1000 and 0 <= gpu.load <= 1):
            return []
        if not 0 <= gpu.memoryUsed <= gpu.memoryTotal <= MAX_MIB:
            return []
    if len({gpu.id for gpu in gpus}) < len(gpus) or len({gpu.uuid for gpu in gpus}) < len(gpus):
        return []
    return sorted(gpus, key=lambda gpu: gpu.id)


def _sample(gpu: Any) -> GpuSample:
    return GpuSample(
        uuid=gpu.uuid,
        index=gpu.id,
        name=gpu.name,
        total_mib=int(gpu.memoryTotal),
        used_mib=int(gpu.memoryUsed),
        load_percent=round(gpu.load * 100, 1),
    )


def _read_line_by_line() -> tuple[GpuSample, ...]:
    text, status = _query(FIELDS)
    if "is not a valid field to query" in text:
        text, status = _query(FIELDS.rpartition(",")[0])
    gpus, error = parse(text)
    if gpus or error == NONE_FOUND:
        return tuple(gpus)
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
