"""Reads and writes the usage of simulated GPUs: one file per process in the simulation's folder.

    PID-STARTTICKS.json  {"pid": 71, "gpus": {"0": 8000}, "load": 90}   MiB by GPU index; load in percent
    cards.json           {"0": 24576}                total MiB of each GPU, for the jobs
    faults.json          {"1": "lost"}               faults, written by tests
    withheld.json        {"1": "process loads"}      unknown values, written by tests

The file of a process counts only while the process is alive. Its name contains the pid and the start time,
so that a later process with the same pid does not inherit the usage. GPUs are identified only by their
index. Simulated jobs run under any Python, so this module imports only the standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gpu_scheduler.runner.folder import living_fields

#: The environment variable with the path of the simulation's folder, for simulated jobs.
FOLDER_VARIABLE = "GPU_SCHEDULER_SIM"

_FILE = re.compile(r"([0-9]{1,10})-([0-9]{1,20})\.json(\.[0-9]+\.part)?")


class ProcessUsage(NamedTuple):
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
    with suppress(FileNotFoundError):
        os.unlink(_own_file(folder))


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
    # Another reader removed it, or we must not; the usage of a dead process does not count anyway.
    with suppress(OSError):
        os.unlink(path)


def _parse(pid: int, raw: Mapping[str, Any]) -> ProcessUsage | None:
    try:
        gpus = {int(index): int(mib) for index, mib in raw["gpus"].items()}
        return ProcessUsage(pid, gpus, float(raw.get("load", 0)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
