"""Finds the GPUs that a process uses, from the samples of a scheduler or of a probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_scheduler.app.gpu_source import open_source
from gpu_scheduler.app.location import Location
from gpu_scheduler.app.store_access import scheduler_pid_of
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.errors import SchedulerError, UsageError
from gpu_scheduler.system.procfs import Proc
from gpu_scheduler.system.running_process import RunningProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_scheduler.app.adopt import Adoption
    from gpu_scheduler.store.store import Store


def find_gpus(
    location: Location, store: Store | None, process: RunningProcess, wanted: Adoption
) -> tuple[GpuSample, ...]:
    """Returns the GPUs that the user named or, if none, those on which the process or a descendant is listed.

    store: None if no scheduler has run yet. Raises UsageError for a GPU that does not exist, SchedulerError
    if the GPUs cannot be found, and GpuStateError if they cannot be read.
    """
    managed = _managed(store)
    if wanted.gpus is not None:
        return _named(wanted.gpus, managed or _probed(location, None, wanted))
    if store is not None and scheduler_pid_of(store) is not None:
        found = _used(managed, process)
        if found:
            return found
    # The newest sample of the scheduler may be older than the process.
    samples = _probed(location, store if managed else None, wanted)
    used = _used(samples, process)
    if not used:
        raise SchedulerError(_not_found(process.pid, samples))
    unmanaged = [str(gpu.index) for gpu in used if managed and gpu.uuid not in {one.uuid for one in managed}]
    if unmanaged:
        raise SchedulerError(
            f"PID {process.pid} uses GPU {', '.join(unmanaged)}, which this scheduler does not manage\n"
            "start the scheduler with these GPUs (--gpus), or name only the others with `adopt --gpus`"
        )
    return used


def _managed(store: Store | None) -> tuple[GpuSample, ...]:
    """Returns the GPUs of the scheduler with the processes of its newest sample."""
    if store is None:
        return ()
    return tuple(
        GpuSample(gpu.uuid, gpu.index, gpu.name, gpu.total_mib, gpu.used_mib, processes=gpu.processes)
        for gpu in store.gpus()
    )


def _probed(location: Location, store: Store | None, wanted: Adoption) -> tuple[GpuSample, ...]:
    """Reads the GPUs, like the scheduler of the store if there is one."""
    options = None if store is None or wanted.simulate is not None else store.recorded_options()
    source = open_source(
        wanted.probe if options is None else options.gpu_probe,
        wanted.simulate if options is None else options.simulate,
        location,
    )
    try:
        return tuple(source.probe.sample().gpus)
    finally:
        source.probe.close()


def _named(indices: tuple[int, ...], samples: Iterable[GpuSample]) -> tuple[GpuSample, ...]:
    by_index = {gpu.index: gpu for gpu in samples}
    unknown = [index for index in indices if index not in by_index]
    if unknown:
        there = ", ".join(map(str, sorted(by_index)))
        raise UsageError(f"--gpus: there is no GPU {unknown[0]}; the GPUs are {there}")
    return tuple(by_index[index] for index in indices)


def _used(samples: Iterable[GpuSample], process: RunningProcess) -> tuple[GpuSample, ...]:
    """Returns the GPUs on which the process or a descendant is listed."""
    proc = Proc()
    mine: dict[int, bool] = {}

    def is_mine(pid: int) -> bool:
        if pid not in mine:
            found = proc.process(pid)
            line = proc.ancestry(found) if found is not None else ()
            mine[pid] = any((link.pid, link.start) == (process.pid, process.start_ticks) for link in line)
        return mine[pid]

    return tuple(gpu for gpu in samples if any(is_mine(one.pid) for one in gpu.processes or ()))


def _not_found(pid: int, samples: Iterable[GpuSample]) -> str:
    if any(gpu.processes is None for gpu in samples):
        return f"the driver does not list the processes on each GPU: name the GPUs of PID {pid} with --gpus"
    return f"PID {pid} does not use a GPU yet: try again later, or name its GPUs with --gpus"
