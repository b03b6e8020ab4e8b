"""Simulates a given number of GPUs of given sizes. Their usage is read from files in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from gpu_scheduler.core.model.gpu import (
    LOST,
    SIMULATED_UUID_PREFIX,
    FaultKind,
    GpuFault,
    GpuProcess,
    GpuSample,
)
from gpu_scheduler.errors import UsageError
from gpu_scheduler.runner.folder import living_fields

# Reads and writes the usage of simulated GPUs: one file per process in the simulation's folder.
#
# PID-STARTTICKS.json {"pid": 71, "gpus": {"0": 8000}, "load": 90} MiB by GPU index; load in percent
# cards.json {"0": 24576} total MiB of each GPU, for the jobs faults.json {"1": "lost"} faults, written by
# tests withheld.json {"1": "process loads"} unknown values, written by tests
#
# The file of a process counts only while the process is alive. Its name contains the pid and the start time,
# so that a later process with the same pid does not inherit the usage. GPUs are identified only by their
# index.


#: The environment variable with the path of the simulation's folder, for simulated jobs.
FOLDER_VARIABLE = "GPU_SCHEDULER_SIM"

_FILE = re.compile(r"([0-9]{1,10})-([0-9]{1,20})\.json(\.[0-9]+\.part)?")


class ProcessUsage(Struct, frozen=True):
    """The usage of one living process: MiB by GPU index, and its load in percent."""

    pid: int
    gpus: Mapping[int, int]
    load: float


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    fields = living_fields(pid)
    return None if fields is None else int(fields[19])


def write_usage(folder: str, gpus: Mapping[int, int], load: float) -> None:
    """Writes the usage of this process. Raises OSError."""
    pid = os.getpid()
    use = {"pid": pid, "gpus": {str(index): mib for index, mib in gpus.items()}, "load": load}
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_json(_own_file(folder), use)


def remove_usage(folder: str) -> None:
    """Removes the usage of this process."""
    try:
        os.unlink(_own_file(folder))
    except FileNotFoundError:
        pass


def read_usages(folder: str) -> tuple[ProcessUsage, ...]:
    """Returns the usage of living processes, sorted by pid, and removes the files of dead processes."""
    found = []
    for name in _names(folder):
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        path = os.path.join(folder, name)
        if start_ticks(int(match[1])) != int(match[2]):
            _discard(path)
        elif match[3] is None:
            use = _parse(int(match[1]), read_json(path))
            if use is not None:
                found.append(use)
    return tuple(sorted(found, key=lambda use: use.pid))


def free_mib(folder: str, index: int) -> int | None:
    """Returns the free memory of this GPU in MiB; None if its total memory is not known."""
    total = read_json(os.path.join(folder, "cards.json")).get(str(index))
    if not isinstance(total, int):
        return None
    return max(0, total - sum(use.gpus.get(index, 0) for use in read_usages(folder)))


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Locks the folder while a job checks for free memory and reserves it.

    Without the lock, two jobs could reserve the same memory.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_json(path: str) -> dict[str, Any]:
    """Reads the JSON object in a file; returns an empty one if the file is missing or invalid."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically, even if several processes write it at once. Raises OSError."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(part, path)


def _own_file(folder: str) -> str:
    pid = os.getpid()
    return os.path.join(folder, f"{pid}-{start_ticks(pid)}.json")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # another reader removed it, or we must not; the usage of a dead process does not count anyway


def _parse(pid: int, raw: Mapping[str, Any]) -> ProcessUsage | None:
    try:
        gpus = {int(index): int(mib) for index, mib in raw["gpus"].items()}
        return ProcessUsage(pid, gpus, float(raw.get("load", 0)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


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
