"""Reads the GPUs through NVML, the driver's own library: memory, load and the processes on each.

An error of one GPU becomes that GPU's fault and does not affect the others. Other modules decide to which job
a process belongs and which GPUs are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpu_scheduler.core.model.gpu import UNKNOWN_UUID_PREFIX, GpuProcess, GpuSample, without_impossible_values
from gpu_scheduler.core.model.gpu_fault import LOST, MIG_MODE, FaultKind, GpuFault
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError

MIB = 1 << 20
#: Window in microseconds over which the load of processes is requested. It always contains the newest
#: measurement, because the driver measures every 1/6 s to 1 s.
LOAD_WINDOW_US = 2_000_000
#: Seconds after which the library is reopened, to find a GPU that came back. Reopening wakes sleeping GPUs.
REOPEN_S = 30.0

_NOT_ALLOWED = "check `ls -l /dev/nvidia*`: you need read and write access to the device files"
_NO_MEMORY = "free system memory, or raise the memory limit of the scheduler (MemoryMax)"

#: A PCI address: domain, bus, device.
Pci = tuple[int, int, int]


@dataclass(frozen=True)
class _GpuIdentity:
    """The constant properties of a GPU. pci: None if it was never readable."""

    uuid: str
    name: str
    pci: Pci | None


class NvmlProbe:
    """A probe that uses NVML.

    It opens the library at the first sample, again after the library has failed, and occasionally while a GPU
    does not respond, because NVML keeps the state of a GPU until the library is closed.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._opened_at = 0.0
        self._has_fault = False
        self._identities: dict[str, _GpuIdentity] = {}

    def sample(self) -> tuple[GpuSample, ...]:
        """Returns a sample of every GPU; see Probe.sample."""
        nvml = self._open()
        try:
            found = [self._query(nvml, i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            self._close()
            raise ProbeError(f"NVML: {error}", _remedy(nvml, error)) from None
        answers = [answer for answer in found if answer is not None]
        if found and not answers:
            raise ProbeError(f"NVML: none of {len(found)} GPUs may be used by this user", _NOT_ALLOWED)
        self._has_fault = any(values.fault not in (None, MIG_MODE) for _, values in answers)
        return tuple(_sample(card, index, values) for index, (card, values) in enumerate(_ordered(answers)))

    def _open(self) -> Any:
        if self._nvml is not None and not (
            self._has_fault and time.monotonic() >= self._opened_at + REOPEN_S
        ):
            return self._nvml
        if self._nvml is not None:
            self._close()
        try:
            import pynvml
        except ImportError as error:
            raise ProbeError(f"NVML: {error}", "pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ProbeError(f"NVML: {error}", _remedy(pynvml, error)) from None
        self._nvml, self._opened_at = pynvml, time.monotonic()
        return pynvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass  # The next sample opens it again and reports the problem.

    def _query(self, nvml: Any, i: int) -> tuple[_GpuIdentity, _Values] | None:
        """Returns NVML's i-th GPU and its values; None if this user may not open it.

        CUDA does not count such a GPU either. Raises NVMLError if the library itself has failed.
        """
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if uuid not in self._identities:
                bus = nvml.nvmlDeviceGetPciInfo(handle)
                pci = (int(bus.domain), int(bus.bus), int(bus.device))
                self._identities[uuid] = _GpuIdentity(uuid, _text(nvml.nvmlDeviceGetName(handle)), pci)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                return None
            # NVML counts a lost GPU but returns no handle for it.
            return _GpuIdentity(f"{UNKNOWN_UUID_PREFIX}{i}", "unknown", None), _Values(
                fault=_fault(nvml, error)
            )
        return self._identities[uuid], _values(nvml, handle)


def _ordered(answers: list[tuple[_GpuIdentity, _Values]]) -> list[tuple[_GpuIdentity, _Values]]:
    """Returns the GPUs by PCI address; in NVML's order, which is the same, if an address is unknown."""
    if any(card.pci is None for card, _ in answers):
        return answers
    return sorted(answers, key=lambda answer: answer[0].pci or (0, 0, 0))


@dataclass
class _Values:
    total_mib: int | None = None
    used_mib: int | None = None
    load: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    fault: GpuFault | None = None


def _values(nvml: Any, handle: Any) -> _Values:
    """Returns the values of one GPU; after an error, those read before it and the fault."""
    values = _Values()
    try:
        memory = _memory(nvml, handle)
        if memory is not None:
            values.total_mib, values.used_mib = int(memory.total) // MIB, int(memory.used) // MIB
        rates = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        values.load = None if rates is None else float(rates.gpu)
        compute = _optional(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = _optional(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if compute is not None:
            values.processes = _processes(compute, graphics or (), _process_loads(nvml, handle))
        if _in_mig_mode(nvml, handle):
            values.fault = MIG_MODE
    except nvml.NVMLError as error:
        values.fault = _fault(nvml, error)
    return values


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    ask = getattr(nvml, "nvmlDeviceGetMigMode", None)
    modes = None if ask is None else _optional(nvml, ask, handle)
    return modes is not None and bool(modes[0])  # [now, after the next reset]


def _memory(nvml: Any, handle: Any) -> Any:
    # Version 1 counts the memory that the driver reserves as used: about 600 MiB on large GPUs.
    second = getattr(nvml, "nvmlMemory_v2", None)
    found = None if second is None else _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, second)
    return found if found is not None else _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)


def _optional(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call, or None if this GPU, driver or user does not support it.

    Raises NVMLError for a fault.
    """
    try:
        return call(*args)
    except nvml.NVMLError as error:
        unknown = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_DATA,
        )
        if error.value in unknown:
            return None
        raise


def _process_loads(nvml: Any, handle: Any) -> dict[int, float] | None:
    """Returns pid -> percent for the processes that load the GPU; None if unknown."""
    ask = getattr(nvml, "nvmlDeviceGetProcessUtilization", None)
    if ask is None:
        return None
    try:
        measured = ask(handle, time.time_ns() // 1000 - LOAD_WINDOW_US)
    except nvml.NVMLError as error:
        # Without an active process there are no measurements.
        return {} if error.value == nvml.NVML_ERROR_NOT_FOUND else None
    # A pid usually has one measurement. The newest counts; those of the same time are added up.
    newest: dict[int, tuple[int, float]] = {}
    for one in measured:
        if one.smUtil > 100:
            continue  # some drivers pad the list with invalid entries
        at, load = newest.get(one.pid, (one.timeStamp, 0.0))
        if one.timeStamp >= at:
            newest[one.pid] = (one.timeStamp, (load if one.timeStamp == at else 0.0) + one.smUtil)
    return {pid: min(100.0, load) for pid, (_, load) in newest.items() if load}


def _processes(compute: Any, graphics: Any, loads: dict[int, float] | None) -> tuple[GpuProcess, ...]:
    """Returns one entry per pid: a pid in both lists is a compute process; entries of one pid are added up.

    If a load belongs to no listed pid, all loads are unknown: in a container the driver may list a process by
    its inner pid and measure it by its outer one. A process that has just ended has the same effect until the
    next sample.
    """
    used: dict[int, int | None] = {}
    for process in compute:
        before = used.get(process.pid, 0)
        now = process.usedGpuMemory
        used[process.pid] = None if before is None or now is None else before + int(now) // MIB
    found = [GpuProcess(pid, mib) for pid, mib in used.items()]
    for process in graphics:
        if process.pid not in used:
            mib = process.usedGpuMemory
            found.append(
                GpuProcess(process.pid, None if mib is None else int(mib) // MIB, graphics_only=True)
            )
    if loads is None or not loads.keys() <= {process.pid for process in found}:
        return tuple(found)
    return tuple(replace(process, load_percent=loads.get(process.pid, 0.0)) for process in found)


def _sample(identity: _GpuIdentity, index: int, values: _Values) -> GpuSample:
    sample = GpuSample(
        # A GPU without a UUID is identified by its index.
        uuid=f"{UNKNOWN_UUID_PREFIX}{index}" if identity.pci is None else identity.uuid,
        index=index,
        name=identity.name,
        total_mib=values.total_mib,
        used_mib=values.used_mib,
        load_percent=values.load,
        processes=values.processes,
        fault=values.fault,
    )
    return without_impossible_values(sample)


def _fault(nvml: Any, error: Any) -> GpuFault:
    """Returns the fault of one GPU. Raises the error again if it concerns the whole library."""
    whole = (
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        nvml.NVML_ERROR_MEMORY,  # system memory is short, which is not a fault of the GPU
    )
    if error.value in whole:
        raise error
    is_lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
    return LOST if is_lost else GpuFault(FaultKind.QUERY_FAILED, str(error))


def _remedy(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_MEMORY:
        return _NO_MEMORY
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return REBOOT_REMEDY
    return _NOT_ALLOWED if error.value == nvml.NVML_ERROR_NO_PERMISSION else DRIVER_REMEDY


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
