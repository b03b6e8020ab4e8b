"""A fake nvidia-ml-py, which answers the probe's calls from the file gpus.json in the folder $FAKE_GPUS:

    {"init": null, "cards": [{"uuid": …, "name": …, "bus": 1, "total": MiB, "used": MiB, "load": percent,
                              "compute": [[pid, MiB]], "graphics": [[pid, MiB]],
                              "measured": [[pid, percent, seconds ago]] (none: "Not Found"),
                              "mode": the compute mode (0 = default),
                              "mig": null, or the mode, or [the mode now, the mode after a reset],
                              "errors": {"call": code}}]}

An entry of `errors` makes that call (the name without "nvmlDevice") raise NVMLError(code) for that GPU;
`init` and `count` contain such a code for the library. While the folder has a file `hang`, every count
blocks.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_MEMORY = 20
NVML_ERROR_NO_DATA = 21
NVML_ERROR_UNKNOWN = 999

#: The real library's messages (tests/gpus/test_nvml.py checks that they are equal).
MESSAGES = {
    1: "Uninitialized",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires restart",
    18: "RM has detected an NVML/RM version mismatch.",
    20: "Insufficient Memory",
    999: "Unknown Error",
}

nvmlMemory_v2 = 0x02000028


class NVMLError(Exception):
    """The library's exception; `value` is the error code, as in the real library."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return MESSAGES.get(self.value, f"NVML Error with code {self.value}")


def _world() -> Any:
    with open(os.path.join(os.environ["FAKE_GPUS"], "gpus.json"), encoding="utf-8") as file:
        return json.load(file)


def _gpu(call: str, i: int) -> Any:
    card = _world()["cards"][i]
    code = card.get("errors", {}).get(call)
    if code is not None:
        raise NVMLError(code)
    return card


def _processes(call: str, i: int) -> list[Any]:
    card = _gpu(f"Get{call}RunningProcesses", i)
    return [
        SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20)
        for pid, mib in card.get(call.lower(), [])
    ]


def nvmlInit() -> None:
    code = _world().get("init")
    if code is not None:
        raise NVMLError(code)


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    folder = Path(os.environ["FAKE_GPUS"])
    while (folder / "hang").exists():
        (folder / "hanging.part").write_text(str(os.getpid()))
        (folder / "hanging.part").replace(folder / "hanging")
        time.sleep(0.05)
    world = _world()
    if world.get("count") is not None:
        raise NVMLError(world["count"])
    return len(world["cards"])


def nvmlDeviceGetHandleByIndex(i: int) -> int:
    _gpu("GetHandleByIndex", i)
    return i


def nvmlDeviceGetUUID(i: int) -> str:
    return str(_gpu("GetUUID", i)["uuid"])


def nvmlDeviceGetName(i: int) -> str:
    # The real library decodes the bytes of the driver too, without allowing for errors.
    return str(_gpu("GetName", i)["name"]).encode("latin-1").decode()


def nvmlDeviceGetPciInfo(i: int) -> Any:
    return SimpleNamespace(domain=0, bus=_gpu("GetPciInfo", i)["bus"], device=0)


def nvmlDeviceGetMemoryInfo(i: int, version: int | None = None) -> Any:
    card = _gpu("GetMemoryInfo_v2" if version else "GetMemoryInfo", i)
    return SimpleNamespace(total=card["total"] << 20, used=card["used"] << 20)


def nvmlDeviceGetUtilizationRates(i: int) -> Any:
    return SimpleNamespace(gpu=_gpu("GetUtilizationRates", i)["load"])


def nvmlDeviceGetComputeRunningProcesses(i: int) -> list[Any]:
    return _processes("Compute", i)


def nvmlDeviceGetGraphicsRunningProcesses(i: int) -> list[Any]:
    return _processes("Graphics", i)


def nvmlDeviceGetProcessUtilization(i: int, last_seen: int) -> list[Any]:
    now = time.time_ns() // 1000
    measured = [
        SimpleNamespace(pid=pid, smUtil=percent, timeStamp=now - int(ago * 1_000_000))
        for pid, percent, ago in _gpu("GetProcessUtilization", i).get("measured", [])
    ]
    newer = [one for one in measured if one.timeStamp > last_seen]
    if not newer:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return newer


def nvmlDeviceGetComputeMode(i: int) -> int:
    return int(_gpu("GetComputeMode", i).get("mode", 0))


def nvmlDeviceGetMigMode(i: int) -> list[int]:
    mode = _gpu("GetMigMode", i).get("mig")
    if mode is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return mode if isinstance(mode, list) else [mode, mode]
