"""A fake PyTorch with the calls that tools/torchjob.py uses, on the first GPU of tests/fakes/pynvml.py.

Until a process ends, that GPU lists it with its allocations and a context of CONTEXT_MIB.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CONTEXT_MIB = 500
uint8 = "uint8"
_taken: list[int] = []


class Tensor:
    pass


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


def _file() -> Path:
    return Path(os.environ["FAKE_GPUS"], "gpus.json")


def _total_mib() -> int:
    return int(json.loads(_file().read_text())["cards"][0]["total"])


def _appear(processes: list[list[int]]) -> None:
    world: Any = json.loads(_file().read_text())
    world["cards"][0]["compute"] = processes
    part = _file().with_suffix(".part")
    part.write_text(json.dumps(world))
    part.replace(_file())


atexit.register(_appear, [])


def empty(size: int, *, dtype: object, device: str) -> Tensor:
    mib = size >> 20
    if sum(_taken) + mib > _total_mib():
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {mib / 1024:.2f} GiB. GPU 0 has a total capacity of"
            f" {_total_mib() / 1024:.2f} GiB of which {(_total_mib() - sum(_taken)) / 1024:.2f} GiB is free."
        )
    _taken.append(mib)
    _appear([[os.getpid(), CONTEXT_MIB + sum(_taken)]])
    return Tensor()


cuda = SimpleNamespace(
    memory_reserved=lambda index: sum(_taken) << 20,
    get_device_properties=lambda index: SimpleNamespace(total_memory=_total_mib() << 20),
)
