"""Reads the memory, load and processes of each GPU through NVML, the driver's own library.

An error makes one field of one GPU unknown. It is a fault of that GPU if the GPU itself does not respond.
Other modules decide to which job a process belongs and which GPUs are missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import (
    LOST,
    MIG_MODE,
    PROHIBITED,
    UNKNOWN_UUID_PREFIX,
    FaultKind,
    GpuFault,
    GpuProcess,
    GpuSample,
    without_impossible_values,
)
from gpu_scheduler.core.model.values import MAX_MIB
from gpu_scheduler.gpus.probes import DRIVER_REMEDY, REBOOT_REMEDY, ProbeError, printable, with_machine_memory

MIB = 1 << 20
#: The period, in microseconds before now, for which the loads of processes are requested. It always contains
#: the newest measurement, because the driver measures at intervals of 1/6 s to 1 s.
LOAD_WINDOW_US = 2_000_000
#: Seconds after which the library is reopened in order to find a GPU that responds again. This is not done
#: more often, because reopening wakes sleeping GPUs.
REOPEN_S = 30.0

_NOT_ALLOWED = "check `ls -l /dev/nvidia*`: you need read and write access to the device files"
_NO_MEMORY = "free system memory, or raise the memory limit of the scheduler (MemoryMax)"

#: Codes of errors, which are the same in all versions.
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _TIMEOUT, _LOST, _MISMATCH, _MEMORY = 3, 4, 6, 10, 15, 18, 20
#: If every GPU answers with one of these, the library has failed: not initialized, no driver, …
_LIBRARY_ERRORS = (1, 9, _MISMATCH, _MEMORY)
#: The answers of a GPU that does not respond, also: interrupt, reset required, not found, unknown.
_FAULTS = (*_LIBRARY_ERRORS, _TIMEOUT, 11, _LOST, 16, 28, 999)
_EXCLUSIVE, _PROHIBITED = (1, 3), 2  # the compute modes; 1: by thread, 3: by process
_UUID = re.compile(rf"(?!SIM-|{UNKNOWN_UUID_PREFIX})[A-Za-z0-9][A-Za-z0-9_.:-]{{0,99}}")

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
            count = min(int(nvml.nvmlDeviceGetCount()), 1024)  # more than any machine has
        except nvml.NVMLError as error:
            self._close()
            raise ProbeError(f"NVML: {error}", _remedy(error)) from None
        devices = [_Device(nvml, i, self._identities) for i in range(count)]
        found = [device for device in devices if not device.is_denied]
        if devices and not found:
            raise ProbeError(f"NVML: this user may not use any GPU ({count} found)", _NOT_ALLOWED)
        failures = [device.library_error for device in found if device.library_error is not None]
        if failures and len(failures) == len(found):
            self._close()
            raise ProbeError(f"NVML: {failures[0]}", _remedy(failures[0]))
        self._has_fault = any(device.gpu.fault not in (None, MIG_MODE, PROHIBITED) for device in found)
        if all(device.pci is not None for device in found):  # otherwise, NVML's order is the same
            found.sort(key=lambda device: device.pci or (0, 0, 0))
        return _numbered([device.gpu for device in found])

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
            raise ProbeError(f"NVML: {error}", _remedy(error)) from None
        self._nvml, self._opened_at = pynvml, time.monotonic()
        return pynvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        try:
            nvml.nvmlShutdown()
        except Exception:  # noqa: BLE001 - the next sample opens the library again and reports any problem
            pass


def _numbered(gpus: list[GpuSample]) -> tuple[GpuSample, ...]:
    """Returns the GPUs with their indices. A GPU without a UUID of its own is identified by its index."""
    found: dict[str, GpuSample] = {}
    for index, gpu in enumerate(gpus):
        uuid, fault = gpu.uuid, gpu.fault
        if not _UUID.fullmatch(uuid) or uuid in found:
            uuid = f"{UNKNOWN_UUID_PREFIX}{index}"
            fault = fault or GpuFault(FaultKind.QUERY_FAILED, "its UUID cannot be read")
        gpu = without_impossible_values(replace(gpu, uuid=uuid, index=index, fault=fault))
        found[uuid] = with_machine_memory(gpu)
    return tuple(found.values())


class _Device:
    """NVML's i-th GPU, with all fields that can be read.

    identities: the known names and PCI addresses by UUID, to which this GPU is added. gpu: the sample; its
    UUID is "" if it cannot be read. is_denied: whether this user may not open the GPU, which is then not
    counted, as in CUDA. library_error: an error that may concern the whole library.
    """

    def __init__(self, nvml: Any, i: int, identities: dict[str, tuple[str, Pci]]) -> None:
        self._nvml, self._code = nvml, 0
        self._fault: GpuFault | None = None
        self.library_error: Exception | None = None
        self.pci: Pci | None = None
        handle = self._read(lambda: nvml.nvmlDeviceGetHandleByIndex(i))
        self.is_denied = handle is None and self._code == _NO_PERMISSION
        if handle is not None:
            self.gpu = self._sample(handle, i, identities)
        else:  # NVML counts a lost GPU, but does not return a handle for it
            fault = self._fault or GpuFault(FaultKind.QUERY_FAILED, f"no handle (code {self._code})")
            self.gpu = GpuSample("", i, "unknown", fault=fault)

    def _read(self, read: Callable[[], Any], can_fault: bool = True) -> Any:
        """Returns the result of a call; None if it fails, after noting the code and any fault of the GPU."""
        if self._fault is not None and self._code in (_TIMEOUT, _LOST):
            return None  # each further call could take as long
        self._code = 0
        try:
            return read()
        except self._nvml.NVMLError as error:
            self._code = error.value
            if can_fault and error.value in _FAULTS:
                fault = GpuFault(FaultKind.QUERY_FAILED, printable(str(error)))
                self._fault = self._fault or (LOST if error.value == _LOST else fault)
                self.library_error = error if error.value in _LIBRARY_ERRORS else self.library_error
        except Exception:  # noqa: BLE001 - an answer that the library or this module does not understand
            pass
        return None

    def _sample(self, handle: Any, i: int, identities: dict[str, tuple[str, Pci]]) -> GpuSample:
        nvml, read = self._nvml, self._read
        uuid = read(lambda: _text(lambda: nvml.nvmlDeviceGetUUID(handle))) or ""
        name, self.pci = identities.get(uuid, (None, None))
        if self.pci is None:
            name = read(lambda: _text(lambda: nvml.nvmlDeviceGetName(handle)))
            self.pci = read(lambda: _pci(nvml.nvmlDeviceGetPciInfo(handle)))
            if uuid and name and self.pci is not None:
                identities[uuid] = name, self.pci
        # Version 1 counts memory that the driver reserves as used, about 600 MiB on large GPUs.
        memory = read(lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)))
        memory = memory or read(lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)))
        unified = memory is None and self._code == _NOT_SUPPORTED
        load = read(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        compute = read(lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
        graphics = read(lambda: list(nvml.nvmlDeviceGetGraphicsRunningProcesses(handle))) or []
        loads = read(lambda: _process_loads(nvml, handle), can_fault=False)
        if self._code == _NOT_FOUND:
            loads = {}  # no process is active, so there are no measurements
        processes = None if compute is None else read(lambda: _processes(compute, graphics, loads))
        mig = read(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])  # the mode now; [1] applies after a reset
        mode = read(lambda: nvml.nvmlDeviceGetComputeMode(handle))
        total, used = memory or (None, None)
        fault = self._fault or (MIG_MODE if mig else PROHIBITED if mode == _PROHIBITED else None)
        return GpuSample(
            uuid, i, name or "unknown", total, used, load, processes, fault,
            exclusive=mode in _EXCLUSIVE, unified=unified and fault in (None, PROHIBITED),
        )  # fmt: skip


def _text(read: Callable[[], str | bytes]) -> str:
    """Returns a text that a call returns, with `?` or U+FFFD for whatever cannot be shown."""
    try:
        value = read()
    except UnicodeDecodeError as error:  # some drivers return arbitrary bytes
        value = error.object
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _pci(bus: Any) -> Pci:
    return int(bus.domain), int(bus.bus), int(bus.device)


def _mib(value: Any) -> int | None:
    """Returns a number of bytes in MiB; None if it is unknown or impossible."""
    mib = -1 if value is None else int(value) // MIB
    return mib if 0 <= mib <= MAX_MIB else None


def _memory(memory: Any) -> tuple[int, int]:
    return int(memory.total) // MIB, int(memory.used) // MIB


def _process_loads(nvml: Any, handle: Any) -> dict[int, float]:
    """Returns the load in percent, by pid, of each process that loads the GPU."""
    measured = nvml.nvmlDeviceGetProcessUtilization(handle, time.time_ns() // 1000 - LOAD_WINDOW_US)
    # A pid usually has one measurement. Of several, the newest counts; measurements of the same time are
    # added.
    newest: dict[int, tuple[int, float]] = {}
    for one in measured:
        if not 0 <= one.smUtil <= 100:
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
        before, now = used.get(int(process.pid), 0), _mib(process.usedGpuMemory)
        used[int(process.pid)] = None if before is None or now is None else before + now
    found = [GpuProcess(pid, mib) for pid, mib in used.items()]
    found += [
        GpuProcess(int(process.pid), _mib(process.usedGpuMemory), graphics_only=True)
        for process in graphics
        if process.pid not in used
    ]
    if loads is None or not loads.keys() <= {process.pid for process in found}:
        return tuple(found)
    return tuple(replace(process, load_percent=loads.get(process.pid, 0.0)) for process in found)


def _remedy(error: Any) -> str:
    if error.value == _MEMORY:
        return _NO_MEMORY
    if error.value == _MISMATCH:
        return REBOOT_REMEDY
    return _NOT_ALLOWED if error.value == _NO_PERMISSION else DRIVER_REMEDY
