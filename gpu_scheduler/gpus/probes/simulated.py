"""Simulates a given number of GPUs of given sizes. Their usage is read from files in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gpu_scheduler.core.model.gpu import (
    LOST,
    SIMULATED_UUID_PREFIX,
    FaultKind,
    GpuFault,
    GpuProcess,
    GpuSample,
)
from gpu_scheduler.errors import UsageError
from gpu_scheduler.system.simulated_usage import ProcessUsage, read_json, read_usages, write_json

#: The default memory of a simulated GPU in MiB, and the maximum number of simulated GPUs.
DEFAULT_MIB = 24 * 1024
MAX_GPUS = 128

_PART = re.compile(r"([0-9]{1,9})(?::([0-9]{1,7})([GM])(?:i?B)?)?")
_ACCEPTED = 'such as "4" (24 GiB each), "4:80G" or "2:24G,2:80G"'


def parse_simulate(text: str) -> tuple[int, ...]:
    """Parses the text of `--simulate`; returns the memory of each GPU in MiB.

    Raises ValueError, with the accepted forms, for an invalid text.
    """
    totals: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"--simulate {text!r}: {part.strip()!r} is not a number of GPUs, {_ACCEPTED}")
        size = DEFAULT_MIB if match[2] is None else int(match[2]) * (1024 if match[3] == "G" else 1)
        if size == 0:
            raise ValueError(f"--simulate {text!r}: every GPU needs some memory, {_ACCEPTED}")
        totals += [size] * min(int(match[1]), MAX_GPUS + 1)
    if not 1 <= len(totals) <= MAX_GPUS:
        raise ValueError(f"--simulate {text!r}: give 1 to {MAX_GPUS} GPUs, {_ACCEPTED}")
    return tuple(totals)


def check_simulate(simulate: str | None, kind: str) -> None:
    """Raises UsageError if the text of `--simulate` is invalid or contradicts `--gpu-probe`."""
    if simulate is None:
        return
    try:
        parse_simulate(simulate)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if kind in ("nvml", "gputil"):
        raise UsageError(f"--simulate {simulate} and --gpu-probe {kind} cannot be combined; leave one out")


class SimulatedProbe:
    """A probe of simulated GPUs. totals: their memory in MiB. folder: the folder with their usage files."""

    def __init__(self, totals: Sequence[int], folder: str | None) -> None:
        self._totals = tuple(totals)
        self._folder = folder

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample. A missing folder means no usage."""
        uses: tuple[ProcessUsage, ...] = ()
        faults: dict[str, object] = {}
        withheld: dict[str, object] = {}
        if self._folder is not None:
            self._write_totals(self._folder)
            uses = read_usages(self._folder)
            faults = read_json(os.path.join(self._folder, "faults.json"))
            withheld = read_json(os.path.join(self._folder, "withheld.json"))
        return tuple(
            self._gpu(index, uses, faults.get(str(index)), withheld.get(str(index)) != "process loads")
            for index in range(len(self._totals))
        )

    def _write_totals(self, folder: str) -> None:
        path = os.path.join(folder, "cards.json")
        totals = {str(index): total for index, total in enumerate(self._totals)}
        if os.path.isdir(folder) and read_json(path) != totals:
            write_json(path, totals)

    def _gpu(self, index: int, uses: Sequence[ProcessUsage], fault: object, reports_loads: bool) -> GpuSample:
        total = self._totals[index]
        name = f"Simulated {total // 1024} GiB" if total >= 1024 else f"Simulated {total} MiB"
        if fault is not None:
            return GpuSample(f"{SIMULATED_UUID_PREFIX}{index}", index, name, fault=_fault(str(fault)))
        here = [use for use in uses if index in use.gpus]
        return GpuSample(
            uuid=f"{SIMULATED_UUID_PREFIX}{index}",
            index=index,
            name=name,
            total_mib=total,
            used_mib=min(total, sum(use.gpus[index] for use in here)),
            load_percent=min(100.0, sum((use.load for use in here), 0.0)),
            processes=tuple(
                GpuProcess(use.pid, use.gpus[index], load_percent=use.load if reports_loads else None)
                for use in here
            ),
        )


def _fault(text: str) -> GpuFault:
    """Returns the fault for a text that a test wrote: "lost", or the error message of a failed query."""
    return LOST if text == LOST.kind.value else GpuFault(FaultKind.QUERY_FAILED, text)
