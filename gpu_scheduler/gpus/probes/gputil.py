"""Reads the memory and load of the GPUs through GPUtil, which runs `nvidia-smi`. Does not read processes.

If one line of the output is malformed, as it is for a lost GPU, GPUtil fails for all GPUs. GPUtil also
accepts impossible values. In both cases, this probe runs `nvidia-smi` itself and parses its output line by
line (`gpus.probes.nvidia_smi`). It sets no timeout, because the process in which it runs has one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import warnings
from typing import Any

from gpu_scheduler.core.model.gpu import GpuSample, without_impossible_values
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError, printable, with_machine_memory
from gpu_scheduler.gpus.probes.nvidia_smi import FIELDS, MIG_FIELD, NONE_FOUND, parse, with_compute_mode

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
