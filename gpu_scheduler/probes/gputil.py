"""The GPUs through GPUtil, which reads `nvidia-smi`: totals and load only; it lists no processes.

GPUtil raises for all GPUs when the line of one is odd, takes impossible values as they come, and has no time
limit. What it cannot read, or what cannot be true, is asked for again and read with tolerance (`probes.smi`).
The limit of time is that of the process in which this runs (`probes.asked`).
"""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Sequence
from typing import Any

from gpu_scheduler.core.gpu import MOST_MIB, NAMELESS, GpuSample
from gpu_scheduler.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError
from gpu_scheduler.probes.smi import FIELDS, NONE_FOUND, at_index, parse, printable

#: GPUs that are asked one by one where the program stops at one that is lost.
_MOST = 32
#: What `nvidia-smi` says of itself, and what the user can do about it.
_REMEDIES = (
    ("version mismatch", REBOOT_REMEDY),
    (
        "Failed to initialize NVML: Unknown Error",
        "if this is a container, it has lost its GPUs: start it anew; else see `sudo dmesg | grep NVRM`",
    ),
    ("couldn't communicate", "the driver is not loaded: `sudo modprobe nvidia` says why; else reboot"),
)


class GputilProbe:
    """Answers from GPUtil.getGPUs(), one `nvidia-smi` per sample; more where something is odd."""

    def sample(self) -> tuple[GpuSample, ...]:
        """See Probe.sample."""
        # GPUtil answers "no GPUs" when the program is missing, which is something else.
        if shutil.which("nvidia-smi") is None:
            raise ProbeError("nvidia-smi is not on PATH", DRIVER_REMEDY)
        cards = _plausible(_gputil())
        return tuple(_sample(card) for card in cards) if cards else _tolerantly()


def _gputil() -> list[Any]:
    """What GPUtil reads; nothing where it cannot, or cannot be loaded."""
    try:
        with warnings.catch_warnings():
            # It imports distutils, which Python 3.10 and 3.11 call deprecated, and 3.12 has no more.
            warnings.simplefilter("ignore")
            import GPUtil
        return list(GPUtil.getGPUs())
    except (ImportError, ValueError, IndexError, ZeroDivisionError):
        return []


def _plausible(cards: list[Any]) -> list[Any]:
    """The cards by index, if every value of every one is known and can be true; else none."""
    for card in cards:
        # What is not known is NaN, which is in no range.
        if not (card.uuid.startswith("GPU-") and 0 <= card.id < 1000 and 0 <= card.load <= 1):
            return []
        if not 0 <= card.memoryUsed <= card.memoryTotal <= MOST_MIB:
            return []
    if len({card.id for card in cards}) < len(cards) or len({card.uuid for card in cards}) < len(cards):
        return []
    return sorted(cards, key=lambda card: card.id)


def _sample(card: Any) -> GpuSample:
    return GpuSample(
        uuid=card.uuid,
        index=card.id,
        name=card.name,
        total_mib=int(card.memoryTotal),
        used_mib=int(card.memoryUsed),
        load_percent=round(card.load * 100, 1),
    )


def _tolerantly() -> tuple[GpuSample, ...]:
    text, status = _ask()
    answer = parse(text)
    gpus = (_one_by_one() if answer.cut_short else []) or answer.gpus
    if gpus or answer.complaint == NONE_FOUND:
        return tuple(gpus)
    said = answer.complaint or f"it printed nothing, exit status {status}"
    remedy = next((remedy for words, remedy in _REMEDIES if words in said), DRIVER_REMEDY)
    raise ProbeError(f"nvidia-smi: {said}", remedy)


def _one_by_one() -> list[GpuSample]:
    """Each GPU asked for alone, as far as there are any; none if a lost one hides the others even so."""
    gpus: list[GpuSample] = []
    texts: set[str] = set()
    while len(gpus) < _MOST:
        text, _ = _ask("-i", str(len(gpus)))
        found = parse(text).gpus
        if len(found) != 1 or text in texts:
            break
        texts.add(text)
        gpus.append(at_index(found[0], len(gpus)))
    return gpus if any(not gpu.uuid.startswith(NAMELESS) for gpu in gpus) else []


def _ask(*which: str) -> tuple[str, int]:
    """What the program says, and its exit status. Raises ProbeError if it cannot be run."""
    text, status = _run(FIELDS, which)
    if "is not a valid field to query" in text:
        # Drivers before 450 know nothing of MIG.
        text, status = _run(FIELDS.rpartition(",")[0], which)
    return text, status


def _run(fields: str, which: Sequence[str]) -> tuple[str, int]:
    command = ["nvidia-smi", *which, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ProbeError(f"nvidia-smi cannot be run: {printable(str(error))}", DRIVER_REMEDY) from None
    return f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}", done.returncode
