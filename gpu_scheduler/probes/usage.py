"""What simulated jobs use: one file per process in the simulation's folder, judged by whether it lives.

    PID-STARTTICKS.json   {"pid": 71, "gpus": {"0": 8000}, "load": 90}    MiB by index, percent
    cards.json            {"0": 24576}                                    what each card has, for the jobs
    faults.json           {"1": "lost"}                                   planted by tests
    withheld.json         {"1": "process loads"}                          what a card does not tell; likewise

A process is named by its start as well as its pid, so that a later owner of the number inherits nothing.
Standard library only. Refuses to know GPUs by anything but their index.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: Names the simulation's folder in a simulated job's environment.
VARIABLE = "GPU_SCHEDULER_SIM"

_FILE = re.compile(r"([0-9]{1,10})-([0-9]{1,20})\.json(\.part)?")


@dataclass(frozen=True)
class Use:
    """What one living process uses: MiB by GPU index, and the load it makes, percent."""

    pid: int
    gpus: Mapping[int, int]
    load: float


def start_ticks(pid: int) -> int | None:
    """When the process began, clock ticks since boot; None if it is gone or a zombie, which holds nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(rest[18])


def write_use(folder: str, gpus: Mapping[int, int], load: float) -> None:
    """Says what this process uses from now on. Raises OSError."""
    pid = os.getpid()
    use = {"pid": pid, "gpus": {str(index): mib for index, mib in gpus.items()}, "load": load}
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_json(_own_file(folder), use)


def remove_use(folder: str) -> None:
    """Says that this process uses nothing any more."""
    try:
        os.unlink(_own_file(folder))
    except FileNotFoundError:
        pass


def read_uses(folder: str) -> tuple[Use, ...]:
    """What the living processes use, by pid; the files of dead ones are removed."""
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
    """What that card has left; None where nobody wrote what it has."""
    total = read_json(os.path.join(folder, "cards.json")).get(str(index))
    if not isinstance(total, int):
        return None
    return max(0, total - sum(use.gpus.get(index, 0) for use in read_uses(folder)))


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Held while a job looks at what is free and takes it, so that two never take the same."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in the file; empty if it is missing or is none."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all. Raises OSError."""
    part = f"{path}.part"
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
        pass  # Another reader was first, or may not write here; a dead process counts for nothing either way.


def _parse(pid: int, raw: Mapping[str, Any]) -> Use | None:
    try:
        gpus = {int(index): int(mib) for index, mib in raw["gpus"].items()}
        return Use(pid, gpus, float(raw.get("load", 0)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
