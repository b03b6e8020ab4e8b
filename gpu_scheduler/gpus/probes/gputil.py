"""Reads the GPUs through GPUtil, which runs `nvidia-smi`: memory and load only, no processes.

GPUtil fails for all GPUs if the line of one is malformed, accepts impossible values, and has no timeout. If
it fails or returns an impossible value, this probe runs `nvidia-smi` itself and parses it with tolerance
(`gpus.probes.nvidia_smi`). The timeout is that of the process in which the probe runs
(`gpus.probes.probe_client`).
"""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.model.gpu import MAX_MIB, UNKNOWN_UUID_PREFIX, GpuSample
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError
from gpu_scheduler.gpus.probes.nvidia_smi import FIELDS, NONE_FOUND, at_index, parse, printable

#: Most GPUs to query one by one, when the program stops at a lost GPU.
_MAX_GPUS = 32
#: Errors of `nvidia-smi` and their remedies.
_REMEDIES = (
    ("version mismatch", REBOOT_REMEDY),
    (
        "Failed to initialize NVML: Unknown Error",
        "if this is a container, it has lost its GPUs: restart it; otherwise see `sudo dmesg | grep NVRM`",
    ),
    ("couldn't communicate", "the driver is not loaded: `sudo modprobe nvidia` shows why; otherwise reboot"),
)


class GputilProbe:
    """A probe that uses GPUtil.getGPUs(): one `nvidia-smi` per sample, more if its output is malformed."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        # GPUtil reports "no GPUs" if the program is missing, which is a different problem.
        if shutil.which("nvidia-smi") is None:
            raise ProbeError("nvidia-smi is not on PATH", DRIVER_REMEDY)
        cards = _plausible(_gputil())
        return tuple(_sample(card) for card in cards) if cards else _read_tolerantly()


def _gputil() -> list[Any]:
    """Returns the GPUs that GPUtil reads; none if it fails or cannot be imported."""
    try:
        with warnings.catch_warnings():
            # It imports distutils, which is deprecated in Python 3.10 and 3.11 and absent in 3.12.
            warnings.simplefilter("ignore")
            import GPUtil
        return list(GPUtil.getGPUs())
    except (ImportError, ValueError, IndexError, ZeroDivisionError):
        return []


def _plausible(gpus: list[Any]) -> list[Any]:
    """Returns the GPUs by index if all values of all of them are known and possible; else none."""
    for card in gpus:
        # An unknown value is NaN, which fails every range check.
        if not (card.uuid.startswith("GPU-") and 0 <= card.id < 1000 and 0 <= card.load <= 1):
            return []
        if not 0 <= card.memoryUsed <= card.memoryTotal <= MAX_MIB:
            return []
    if len({card.id for card in gpus}) < len(gpus) or len({card.uuid for card in gpus}) < len(gpus):
        return []
    return sorted(gpus, key=lambda card: card.id)


def _sample(gpu: Any) -> GpuSample:
    return GpuSample(
        uuid=gpu.uuid,
        index=gpu.id,
        name=gpu.name,
        total_mib=int(gpu.memoryTotal),
        used_mib=int(gpu.memoryUsed),
        load_percent=round(gpu.load * 100, 1),
    )


def _read_tolerantly() -> tuple[GpuSample, ...]:
    text, status = _query()
    answer = parse(text)
    gpus = (_one_by_one() if answer.cut_short else []) or answer.gpus
    if gpus or answer.error_line == NONE_FOUND:
        return tuple(gpus)
    error = answer.error_line or f"it printed nothing, exit status {status}"
    remedy = next((remedy for text, remedy in _REMEDIES if text in error), DRIVER_REMEDY)
    raise ProbeError(f"nvidia-smi: {error}", remedy)


def _one_by_one() -> list[GpuSample]:
    """Queries each GPU separately; returns none if a lost one hides the others even then."""
    gpus: list[GpuSample] = []
    texts: set[str] = set()
    while len(gpus) < _MAX_GPUS:
        text, _ = _query("-i", str(len(gpus)))
        found = parse(text).gpus
        if len(found) != 1 or text in texts:
            break
        texts.add(text)
        gpus.append(at_index(found[0], len(gpus)))
    return gpus if any(not gpu.uuid.startswith(UNKNOWN_UUID_PREFIX) for gpu in gpus) else []


def _query(*which: str) -> tuple[str, int]:
    """Returns the output of the program and its exit status. Raises ProbeError if it cannot be run."""
    text, status = _run(FIELDS, which)
    if "is not a valid field to query" in text:
        # Drivers before 450 do not have the MIG field.
        text, status = _run(FIELDS.rpartition(",")[0], which)
    return text, status


def _run(fields: str, which: Sequence[str]) -> tuple[str, int]:
    command = ["nvidia-smi", *which, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ProbeError(f"nvidia-smi cannot be run: {printable(str(error))}", DRIVER_REMEDY) from None
    return f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}", done.returncode
