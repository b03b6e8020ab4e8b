"""The GPUs through NVML, the driver's own library: memory, load and the processes on each.

One GPU's error is that GPU's fault and hides no other. A GPU that was seen and is no longer listed stays in
the answer as lost, at its place. Refuses to know whose the processes are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.core.gpu import GpuProcess, GpuSample
from gpu_scheduler.probes import DRIVER_REMEDY, ProbeError

MIB = 1 << 20

#: A place on the bus: domain, bus, device.
Pci = tuple[int, int, int]


@dataclass(frozen=True)
class _Card:
    """What stays the same about a GPU. `pci` is None for one that never told."""

    uuid: str
    name: str
    pci: Pci | None


class NvmlProbe:
    """Answers from NVML; opens the library at the first sample, and again after it failed as a whole."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._cards: dict[str, _Card] = {}
        self._by_handle_index: dict[int, str] = {}

    def sample(self) -> tuple[GpuSample, ...]:
        """See Probe.sample."""
        nvml = self._open()
        try:
            answers = dict(self._ask(nvml, i) for i in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            self._close()
            raise ProbeError(f"NVML: {error}", _remedy(nvml, error)) from None
        self._add_missing(answers)
        return tuple(
            _sample(self._cards[uuid], index, answers[uuid])
            for index, uuid in enumerate(self._order(answers))
        )

    def _open(self) -> Any:
        if self._nvml is not None:
            return self._nvml
        try:
            import pynvml
        except ImportError as error:
            raise ProbeError(f"NVML: {error}", "pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ProbeError(f"NVML: {error}", _remedy(pynvml, error)) from None
        self._nvml = pynvml
        return pynvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        self._by_handle_index.clear()
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass  # It is opened anew at the next sample, which will say what is wrong.

    def _ask(self, nvml: Any, i: int) -> tuple[str, _Values]:
        """The UUID and the values of NVML's i-th GPU."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if uuid not in self._cards:
                bus = nvml.nvmlDeviceGetPciInfo(handle)
                pci = (int(bus.domain), int(bus.bus), int(bus.device))
                self._cards[uuid] = _Card(uuid, _text(nvml.nvmlDeviceGetName(handle)), pci)
            self._by_handle_index[i] = uuid
        except nvml.NVMLError as error:
            # NVML counts a lost GPU and gives no handle for it; within one opening its index stays the same.
            uuid = self._by_handle_index.setdefault(i, f"unknown-{i}")
            self._cards.setdefault(uuid, _Card(uuid, "unknown", None))
            return uuid, _Values(fault=_fault(nvml, error))
        return uuid, _values(nvml, handle)

    def _add_missing(self, answers: dict[str, _Values]) -> None:
        """Known GPUs that NVML does not name any more are lost; one that gave no handle is taken for one of
        them."""
        nameless = [uuid for uuid in answers if self._cards[uuid].pci is None]
        missing = [uuid for uuid, card in self._cards.items() if card.pci and uuid not in answers]
        for uuid in missing:
            answers[uuid] = answers.pop(nameless.pop(0)) if nameless else _Values(fault="lost")
        self._cards = {uuid: card for uuid, card in self._cards.items() if uuid in answers}

    def _order(self, answers: dict[str, _Values]) -> list[str]:
        """The GPUs by place on the bus. NVML's own order is that too, and serves where a place is unknown."""
        places = {uuid: self._cards[uuid].pci for uuid in answers}
        if any(pci is None for pci in places.values()):
            return list(answers)
        return sorted(answers, key=lambda uuid: places[uuid] or (0, 0, 0))


@dataclass
class _Values:
    total_mib: int | None = None
    used_mib: int | None = None
    load: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    fault: str | None = None


def _values(nvml: Any, handle: Any) -> _Values:
    """What one GPU says of itself; after its first error what it had said, and the fault."""
    values = _Values()
    try:
        memory = _memory(nvml, handle)
        if memory is not None:
            values.total_mib, values.used_mib = int(memory.total) // MIB, int(memory.used) // MIB
        rates = _maybe(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        values.load = None if rates is None else float(rates.gpu)
        compute = _maybe(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = _maybe(nvml, nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        values.processes = None if compute is None else _processes(compute, graphics or ())
    except nvml.NVMLError as error:
        values.fault = _fault(nvml, error)
    return values


def _memory(nvml: Any, handle: Any) -> Any:
    # The first version counts what the driver keeps for itself as used, some 600 MiB on large cards.
    second = getattr(nvml, "nvmlMemory_v2", None)
    found = None if second is None else _maybe(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, second)
    return found if found is not None else _maybe(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)


def _maybe(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """The answer, or None where this GPU, driver or user cannot have it. Raises NVMLError for a fault."""
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


def _processes(compute: Any, graphics: Any) -> tuple[GpuProcess, ...]:
    """One entry per pid: a pid in both lists is a compute process; parts of one pid are added up."""
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
    return tuple(found)


def _sample(card: _Card, index: int, values: _Values) -> GpuSample:
    return GpuSample(
        uuid=card.uuid,
        index=index,
        name=card.name,
        total_mib=values.total_mib,
        used_mib=values.used_mib,
        load_percent=values.load,
        processes=values.processes,
        fault=values.fault,
    )


def _fault(nvml: Any, error: Any) -> str:
    return "lost" if error.value == nvml.NVML_ERROR_GPU_IS_LOST else f"query failed: {error}"


def _remedy(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the driver was updated under a running kernel module: reboot"
    return DRIVER_REMEDY


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
