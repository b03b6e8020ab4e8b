"""Reads the memory, load and processes of each GPU through NVML, the driver's own library.

If an error concerns one GPU, it becomes that GPU's fault and does not affect the other GPUs. Other modules
decide to which job a process belongs and which GPUs are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_scheduler.core.model.gpu import UNKNOWN_UUID_PREFIX, GpuProcess, GpuSample, without_impossible_values
from gpu_scheduler.core.model.gpu_fault import LOST, MIG_MODE, FaultKind, GpuFault
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError

MIB = 1 << 20
#: The period, in microseconds before now, for which the loads of processes are requested. It always contains
#: the newest measurement, because the driver measures at intervals of 1/6 s to 1 s.
LOAD_WINDOW_US = 2_000_000
#: Seconds after which the library is reopened in order to find a GPU that responds again. This is not done
#: more often, because reopening wakes sleeping GPUs.
REOPEN_S = 30.0

_NOT_ALLOWED = "check `ls -l /dev/nvidia*`: you need read and write access to the device files"
_NO_MEMORY = "free system memory, or raise the memory limit of the scheduler (MemoryMax)"

#: A PCI address: domain, bus, device.
Pci = tuple[int, int, int]


class NvmlProbe:
    """A probe that uses NVML.

    Opens the library at the first sample and again after it has failed. While a GPU does not respond, also
    reopens it occasionally, because NVML keeps the state of a GPU until the library is closed.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._opened_at = 0.0
        self._has_fault = False
        #: The name and PCI address of each GPU, which never change, by UUID.
        self._identities: dict[str, tuple[str, Pci]] = {}

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
            raise ProbeError(f"NVML: this user may not use any GPU ({len(found)} found)", _NOT_ALLOWED)
        self._has_fault = any(gpu.fault not in (None, MIG_MODE) for _, gpu in answers)
        return tuple(_with_index(gpu, index, pci) for index, (pci, gpu) in enumerate(_ordered(answers)))

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
            pass  # the next sample opens the library again and reports any problem

    def _query(self, nvml: Any, i: int) -> tuple[Pci | None, GpuSample] | None:
        """Returns NVML's i-th GPU with its PCI address; None if this user may not open the GPU.

        The address is None if it could never be read. A GPU that the user may not open is not counted,
        because CUDA does not count it either. Raises NVMLError if the library itself has failed.
        """
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if uuid not in self._identities:
                bus = nvml.nvmlDeviceGetPciInfo(handle)
                pci = (int(bus.domain), int(bus.bus), int(bus.device))
                self._identities[uuid] = _text(nvml.nvmlDeviceGetName(handle)), pci
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                return None
            # NVML counts a lost GPU, but does not return a handle for it.
            return None, GpuSample(f"{UNKNOWN_UUID_PREFIX}{i}", i, "unknown", fault=_fault(nvml, error))
        name, pci = self._identities[uuid]
        return pci, _with_values(nvml, handle, GpuSample(uuid, i, name))


def _ordered(answers: list[tuple[Pci | None, GpuSample]]) -> list[tuple[Pci | None, GpuSample]]:
    """Returns the GPUs, sorted by PCI address. If one is unknown, keeps NVML's order, which is the same."""
    if any(pci is None for pci, _ in answers):
        return answers
    return sorted(answers, key=lambda answer: answer[0] or (0, 0, 0))


def _with_index(gpu: GpuSample, index: int, pci: Pci | None) -> GpuSample:
    # A GPU without a UUID is identified by its index.
    uuid = f"{UNKNOWN_UUID_PREFIX}{index}" if pci is None else gpu.uuid
    return without_impossible_values(replace(gpu, uuid=uuid, index=index))


def _with_values(nvml: Any, handle: Any, gpu: GpuSample) -> GpuSample:
    """Returns the GPU with its values; after an error, with the fault and the values read before it."""
    try:
        memory = _memory(nvml, handle)
        if memory is not None:
            gpu = replace(gpu, total_mib=int(memory.total) // MIB, used_mib=int(memory.used) // MIB)
        rates = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        gpu = replace(gpu, load_percent=None if rates is None else float(rates.gpu))
        compute = _optional(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = _optional(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if compute is not None:
            processes = _processes(compute, graphics or (), _process_loads(nvml, handle))
            gpu = replace(gpu, processes=processes)
        return replace(gpu, fault=MIG_MODE) if _in_mig_mode(nvml, handle) else gpu
    except nvml.NVMLError as error:
        return replace(gpu, fault=_fault(nvml, error))


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    query = getattr(nvml, "nvmlDeviceGetMigMode", None)
    modes = None if query is None else _optional(nvml, query, handle)
    return modes is not None and bool(modes[0])  # the mode now; modes[1] applies after the next reset


def _memory(nvml: Any, handle: Any) -> Any:
    # Prefer version 2. Version 1 counts memory that the driver reserves as used, about 600 MiB on large GPUs.
    second = getattr(nvml, "nvmlMemory_v2", None)
    found = None if second is None else _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, second)
    return found if found is not None else _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)


def _optional(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call, or None if the GPU, the driver or the user's rights do not allow it.

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
    """Returns the load in percent, by pid, of each process that loads the GPU; None if it is unknown."""
    query = getattr(nvml, "nvmlDeviceGetProcessUtilization", None)
    if query is None:
        return None
    try:
        measured = query(handle, time.time_ns() // 1000 - LOAD_WINDOW_US)
    except nvml.NVMLError as error:
        # If no process is active, there are no measurements.
        return {} if error.value == nvml.NVML_ERROR_NOT_FOUND else None
    # A pid usually has one measurement. Of several, the newest counts; measurements of the same time are
    # added.
    newest: dict[int, tuple[int, float]] = {}
    for one in measured:
        if one.smUtil > 100:
            continue  # some drivers pad the list with invalid entries
        at, load = newest.get(one.pid, (one.timeStamp, 0.0))
        if one.timeStamp >= at:
            newest[one.pid] = (one.timeStamp, (load if one.timeStamp == at else 0.0) + one.smUtil)
    return {pid: min(100.0, load) for pid, (_, load) in newest.items() if load}


def _processes(compute: Any, graphics: Any, loads: dict[int, float] | None) -> tuple[GpuProcess, ...]:
    """Returns one entry per pid, with the sum of the memory if NVML lists the pid several times.

    A pid in both lists is a compute process. If any load belongs to a pid that is not listed, all loads are
    unknown: in a container, the driver may list a process by its inner pid but measure it by its outer pid. A
    process that has just ended has the same effect until the next sample.
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


def _fault(nvml: Any, error: Any) -> GpuFault:
    """Returns the fault of the GPU that an error concerns. Raises the error again if it concerns all GPUs."""
    whole = (
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        nvml.NVML_ERROR_MEMORY,  # a shortage of system memory, which is not a fault of the GPU
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
