"""Checks the NVIDIA driver, and each GPU with the probe that `start` would use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.config import ProbeKind
from gpu_scheduler.core.model.finding import Check, Finding, bad, ok, warn
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import GpuStateError
from gpu_scheduler.gpus.probes.probe_client import ProbeClient
from gpu_scheduler.gpus.selection import restrict_to_visible

#: Maximum number of seconds for the first sample.
PROBE_TIMEOUT_S = 5.0


def driver(version: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    """Returns the finding about the kernel driver."""
    try:
        text = version.read_text("utf-8", "replace")
    except OSError:
        remedy = "install the driver, or use --simulate 4"
        return warn(Check.DRIVER, "the NVIDIA driver is not loaded", remedy)
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return ok(Check.DRIVER, f"NVIDIA {found[1] if found else text.strip().splitlines()[0]}")


def probe(
    kind: ProbeKind, simulate: str | None, visible: str | None, simulation: str | None = None
) -> Iterator[Finding]:
    """Yields a finding for each GPU.

    visible: the value of CUDA_VISIBLE_DEVICES, None if it is not set. simulation: the folder in which
    simulated jobs write their usage.
    """
    with ProbeClient(kind, simulate, simulation) as asked:
        try:
            snapshot = asked.sample(PROBE_TIMEOUT_S)
        except GpuStateError as error:
            message, _, remedy = str(error).partition("\n")
            yield bad(Check.PROBE, message, remedy or "check whether `nvidia-smi` answers")
            return
    managed, note = restrict_to_visible(snapshot.gpus, visible)
    if note is not None:
        judge = warn if managed else bad
        yield judge(Check.CUDA_VISIBLE_DEVICES, note, "unset CUDA_VISIBLE_DEVICES to use all GPUs")
    if snapshot.note:
        yield warn(
            Check.PROBE, snapshot.note, "install nvidia-ml-py and check the driver, to see the processes"
        )
    for gpu in snapshot.gpus:
        yield _gpu(gpu)


def _gpu(gpu: GpuSample) -> Finding:
    if gpu.fault is not None:
        remedy = "check the GPU with `nvidia-smi`, and look at the kernel log"
        return bad(Check.GPU, f"{gpu.name}: {gpu.fault}", remedy, gpu.index)
    unknown = [
        name for name, value in (("memory", gpu.used_mib), ("load", gpu.load_percent)) if value is None
    ]
    if unknown:
        message = f"{gpu.name}: {' and '.join(unknown)} cannot be read"
        return warn(Check.GPU, message, f"check the GPU with `nvidia-smi -q -i {gpu.index}`", gpu.index)
    memory = f"{gpu.used_mib} of {gpu.total_mib} MiB in use"
    return ok(Check.GPU, f"{gpu.name}, {memory}, load {gpu.load_percent:.0f} %", gpu.index)
