"""Determines how a GPU is used: what attempts take up, foreign memory and load, and any pause or fault.

The rules are in docs/design.md, Accounting. `placement` decides what a GPU still accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import LOAD_SAMPLES, Gpu, GpuProcess
from gpu_scheduler.core.model.job import ActiveAttempt, Allocation
from gpu_scheduler.core.model.reasons import GpuObstacle, ObstacleKind
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import AttemptChanged, GpuChanged
from gpu_scheduler.core.scheduling.placement import (
    DRIVER_MIB,
    Holding,
    Ledger,
    allocated_mib,
    claimable_total,
    closing,
    with_spike_buffer,
)
from gpu_scheduler.core.scheduling.settings import Limits, Settings

if TYPE_CHECKING:
    from gpu_scheduler.core.scheduling.facts import Facts

#: Maximum number of processes that the obstacle of a quarantined GPU names.
_MAX_PIDS = 4


def ledger_of(gpu: Gpu, attempts: Iterable[ActiveAttempt], limits: Limits) -> Ledger:
    """Returns the ledger of a GPU with those of the attempts that have not left it."""
    attempts = [one for one in attempts if gpu.uuid in one.gpus]
    # An attempt that has been released still explains the memory that the driver has not freed yet.
    here = [one if one.state.holds_gpus else replace(one, state=AttemptState.ENDED) for one in attempts]
    total, holdings = gpu.last.total_mib, _holdings(gpu, attempts, limits)
    held, claimable = holdings.values(), None
    if gpu.claims:
        others = (claimable_total(total) if claim.mib is None else claim.mib for claim in gpu.claims)
        claimable = claimable_total(total) - sum(others) - sum(one.claimed_mib for one in held)
    return Ledger(
        gpu.uuid,
        gpu.index,
        limits,
        total,
        holdings=holdings,
        allocated_share=sum(one.share for one in held),
        allocated_mib=sum(one.allocated_mib for one in held),
        used_mib=gpu.last.used_mib or 0,
        foreign_mib=foreign_memory(gpu, here, limits),
        foreign_kept_mib=_foreign_kept(gpu, here, limits),
        foreign_peak_mib=_foreign_peak_above_use(gpu, here),
        foreign_pid=_foreign_pid(gpu, here),
        processes_listed=_identified_processes(gpu) is not None,
        mean_load=gpu.mean_load,
        mean_foreign_load=_mean(gpu.foreign_loads),
        closed=_closed(gpu) or closing(held),
        claims=gpu.claims,
        claimable_mib=claimable,
        claims_problem=gpu.claims_problem,
        exclusive=gpu.last.exclusive,
    )


def _closed(gpu: Gpu) -> GpuObstacle | None:
    """Returns why a GPU accepts no new job, whatever is on it, or None."""
    if gpu.paused:
        return GpuObstacle(gpu.index, ObstacleKind.PAUSED)
    if gpu.sample is None:
        return GpuObstacle(gpu.index, ObstacleKind.NOT_SAMPLED)
    if gpu.fault is not None:
        return GpuObstacle(gpu.index, ObstacleKind.FAULT, fault=gpu.fault)
    if gpu.suspicion is not None:
        return GpuObstacle(gpu.index, ObstacleKind.SUSPECT, suspicion=gpu.suspicion)
    return None


def _holdings(gpu: Gpu, attempts: Iterable[ActiveAttempt], limits: Limits) -> dict[int, Holding]:
    """Returns what each of these attempts takes up on a GPU, by its id."""
    used: dict[int | None, int] = {}
    for process in listed_processes(gpu) or ():
        owner = gpu.owners.get(process.pid)
        used[owner] = used.get(owner, 0) + (process.used_mib or 0)
    unlisted_mib, holdings = _unlisted_memory(gpu), {}
    for attempt in attempts:
        taken = Holding.of(attempt.allocation_on(gpu.uuid), gpu.last.total_mib, limits.spike_buffer)
        holdings[attempt.id] = replace(
            taken,
            used_mib=used.get(attempt.id, min(taken.allocated_mib, unlisted_mib)),
            claimed_mib=taken.claimed_mib or claimable_total(gpu.last.total_mib),
            closes=_closes(gpu, attempt),
        )
    return holdings


def _closes(gpu: Gpu, attempt: ActiveAttempt) -> GpuObstacle | None:
    """Returns why a GPU accepts no other job until this attempt has left it, or None."""
    if attempt.state is AttemptState.RELEASED:
        return GpuObstacle(gpu.index, ObstacleKind.AWAITING_MEMORY)
    if attempt.state is not AttemptState.ENDED:
        return None
    pids = (attempt.observed.survivors or ())[:_MAX_PIDS]
    kind = ObstacleKind.QUARANTINED if pids else ObstacleKind.RELEASING
    return GpuObstacle(gpu.index, kind, job_id=attempt.job_id, pids=pids)


def _foreign_kept(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> int | None:
    """Returns the MiB reserved for foreign use; None if unknown.

    This is the sum of the buffered peaks of all foreign processes, plus the unattributed memory.
    """
    if listed_processes(gpu) is None:
        foreign_mib = foreign_memory(gpu, attempts, limits)
        return None if foreign_mib is None else with_spike_buffer(foreign_mib, limits.spike_buffer)
    peaks = foreign_peaks(gpu, attempts).values()
    return sum(with_spike_buffer(peak, limits.spike_buffer) for peak in peaks) + _unattributed_foreign_memory(
        gpu, attempts, limits
    )


def listed_processes(gpu: Gpu) -> tuple[GpuProcess, ...] | None:
    """Returns the processes on a GPU; None if the memory or the owner of one of them is unknown."""
    processes = _identified_processes(gpu)
    return None if any(one.used_mib is None for one in processes or ()) else processes


def foreign_peaks(gpu: Gpu, attempts: Sequence[ActiveAttempt]) -> dict[tuple[int, float], int]:
    """Returns the peak memory use in MiB of each living foreign process, by (pid, start time)."""
    here = _attempt_ids_on(gpu, attempts)
    peaks = dict(gpu.foreign_peaks)
    for process in listed_processes(gpu) or ():
        key = (process.pid, gpu.process_starts.get(process.pid, 0.0))
        if gpu.owners.get(process.pid) in here:
            peaks.pop(key, None)  # the process counted as foreign before its owner was known
        else:
            peaks[key] = max(peaks.get(key, 0), process.used_mib or 0)
    return peaks


def _foreign_peak_above_use(gpu: Gpu, attempts: Sequence[ActiveAttempt]) -> int:
    """Returns the foreign processes' peak memory use in MiB if it exceeds their current use; otherwise 0."""
    processes, here = listed_processes(gpu), _attempt_ids_on(gpu, attempts)
    if processes is None:
        return 0
    now = sum(p.used_mib or 0 for p in processes if gpu.owners.get(p.pid) not in here)
    peak = sum(foreign_peaks(gpu, attempts).values())
    return peak if peak > now else 0


def foreign_memory(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> int | None:
    """Returns the current foreign memory use on a GPU in MiB; None if unknown.

    If the probe lists the processes with their memory, this is the sum for the foreign processes, plus any
    unattributed memory beyond the amount that a driver may use. Otherwise it is the larger of two values: the
    baseline that was measured when our jobs started, and the memory in use beyond the sum of our allocations.

    The machine itself uses unified memory too: unattributed memory counts there only from --mem-threshold on.
    """
    sample = gpu.sample
    if sample is None:
        return None
    processes = listed_processes(gpu)
    if processes is not None:
        unattributed = max(0, _unattributed_foreign_memory(gpu, attempts, limits) - DRIVER_MIB)
        listed = sum(p.used_mib or 0 for p in _foreign_processes(gpu, processes, attempts))
        if sample.unified and listed + unattributed < limits.mem_threshold * (sample.total_mib or 0):
            return listed
        return listed + unattributed
    if sample.used_mib is None:
        return None
    ours = _holders(gpu, attempts)
    return max(_baseline(gpu, ours), sample.used_mib - _allocated_memory(gpu, ours, limits))


def foreign_load(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> float | None:
    """Returns the load of foreign processes in the newest sample in percent; None if unknown.

    If the driver reports no load per process, the load of the GPU counts as foreign while none of our jobs
    uses the GPU.
    """
    load = _load_of_processes(gpu, attempts, limits)
    if load is not None or gpu.sample is None or _attempt_ids_on(gpu, attempts):
        return load
    return gpu.sample.load_percent


def _load_of_processes(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> float | None:
    processes = _identified_processes(gpu)
    if processes is None:
        return None
    is_listed = listed_processes(gpu) is not None and gpu.sample is not None and not gpu.sample.unified
    if is_listed and _unattributed_foreign_memory(gpu, attempts, limits) > DRIVER_MIB:
        return None  # some process is missing from the driver's list
    loads = [process.load_percent for process in _foreign_processes(gpu, processes, attempts)]
    known = [load for load in loads if load is not None]
    return min(100.0, sum(known)) if len(known) == len(loads) else None


def _mean(loads: Sequence[float | None]) -> float | None:
    known = [load for load in loads if load is not None]
    return sum(known) / len(known) if known else None


def display_memory(gpu: Gpu, limits: Limits) -> int:
    """Returns the buffered memory of display processes in MiB, which always counts as foreign."""
    processes = listed_processes(gpu) or ()
    return sum(with_spike_buffer(p.used_mib or 0, limits.spike_buffer) for p in processes if p.graphics_only)


def unattributed_memory(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> int | None:
    """Returns the memory, in MiB, that is in use on a GPU but by no listed process; None if unknown.

    It includes memory that a dead process has not released yet. Without a process list, the foreign memory is
    returned instead. It is unknown for unified memory, which the rest of the machine uses too.
    """
    sample = gpu.sample
    if sample is None or sample.used_mib is None or sample.unified:
        return None
    if listed_processes(gpu) is None:
        return foreign_memory(gpu, attempts, limits)
    return _unlisted_memory(gpu)


def _unlisted_memory(gpu: Gpu) -> int:
    used = gpu.last.used_mib or 0
    return max(0, used - sum(p.used_mib or 0 for p in listed_processes(gpu) or ()))


def _unattributed_foreign_memory(gpu: Gpu, attempts: Sequence[ActiveAttempt], limits: Limits) -> int:
    """Returns the unattributed memory, in MiB, that unlisted processes of our own attempts cannot explain.

    A probe may miss processes: within a container it does not list processes outside, and some probes list no
    processes at all.
    """
    unattributed = _unlisted_memory(gpu)
    ours = _holders(gpu, attempts)
    owners = {gpu.owners.get(process.pid) for process in listed_processes(gpu) or ()}
    unlisted = [attempt for attempt in ours if attempt.id not in owners]
    return max(
        min(unattributed, _baseline(gpu, ours)), unattributed - _allocated_memory(gpu, unlisted, limits)
    )


def _holders(gpu: Gpu, attempts: Sequence[ActiveAttempt]) -> list[ActiveAttempt]:
    return [a for a in attempts if gpu.uuid in a.gpus and a.state.holds_gpus]


def _baseline(gpu: Gpu, ours: Sequence[ActiveAttempt]) -> int:
    return max((attempt.baseline_mib.get(gpu.uuid, 0) for attempt in ours), default=0)


def _allocated_memory(gpu: Gpu, ours: Sequence[ActiveAttempt], limits: Limits) -> int:
    total = gpu.last.total_mib or 0
    return sum(allocated_mib(attempt.allocation_on(gpu.uuid), total, limits.spike_buffer) for attempt in ours)


def _attempt_ids_on(gpu: Gpu, attempts: Sequence[ActiveAttempt]) -> set[int | None]:
    return {attempt.id for attempt in attempts if gpu.uuid in attempt.gpus}


def _foreign_processes(
    gpu: Gpu, processes: Sequence[GpuProcess], attempts: Sequence[ActiveAttempt]
) -> list[GpuProcess]:
    """Returns the foreign processes and our misplaced processes, which no allocation on this GPU covers."""
    here = _attempt_ids_on(gpu, attempts)
    return [p for p in processes if not p.graphics_only and gpu.owners.get(p.pid) not in here]


def _identified_processes(gpu: Gpu) -> tuple[GpuProcess, ...] | None:
    """Returns the processes on a GPU; None if the owner of one of them is unknown."""
    return None if gpu.has_unmatched_process else gpu.last.processes


def _foreign_pid(gpu: Gpu, attempts: Sequence[ActiveAttempt]) -> int | None:
    """Returns the foreign process that uses the most memory, or None."""
    foreign = _foreign_processes(gpu, _identified_processes(gpu) or (), attempts)
    return min(foreign, key=lambda p: -(p.used_mib or 0)).pid if foreign else None


# Records what a new sample contains: use and overuse by attempts, and peaks and load of foreign processes.
#
# Each action depends only on the newest sample and the store, so that nothing is reported twice and a restart
# loses nothing.


def record_measurements(facts: Facts) -> list[AttemptChanged | GpuChanged]:
    """Returns the changes that record the newest sample."""
    changes: list[AttemptChanged | GpuChanged] = []
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    for attempt in facts.attempts:
        if attempt.state.is_open and attempt.state is not AttemptState.STARTING:
            measured = _measured(attempt, gpus, facts.settings)
            changes += [] if measured is attempt else [AttemptChanged(attempt, measured)]
    for gpu in facts.gpus:
        peaks, loads = foreign_peaks(gpu, facts.attempts), _foreign_loads(gpu, facts)
        new = gpu if peaks == gpu.foreign_peaks else replace(gpu, foreign_peaks=peaks)
        # The lists are equal only if all loads are the same. The store is then up to date.
        if loads != gpu.foreign_loads:
            new = replace(new, foreign_loads=loads, foreign_load_boot=gpu.sampled_boot)
        changes += [] if new is gpu else [GpuChanged(gpu, new)]
    return changes


def _foreign_loads(gpu: Gpu, facts: Facts) -> tuple[float | None, ...]:
    """Returns the foreign loads with that of the newest sample, from the attempts that hold the GPU now."""
    if gpu.sample is None or gpu.sampled_boot in (None, gpu.foreign_load_boot):
        return gpu.foreign_loads
    load = foreign_load(gpu, facts.attempts, facts.settings)
    return (*gpu.foreign_loads, load)[-LOAD_SAMPLES:]


def _measured(attempt: ActiveAttempt, gpus: Mapping[str, Gpu], settings: Settings) -> ActiveAttempt:
    """Returns the attempt with the newest sample in its allocations."""
    own = [gpus[uuid] for uuid in attempt.gpus if uuid in gpus]
    times = [gpu.sampled_boot for gpu in own if gpu.sampled_boot is not None and gpu.sample is not None]
    launched_at = attempt.launch_deadline_boot - settings.launch_deadline_s
    if not times or max(times) < launched_at:
        return attempt
    if attempt.measured_boot is not None and max(times) <= attempt.measured_boot:
        return attempt
    allocations = tuple(
        _with_sample(one, gpus[one.gpu], attempt, settings) if one.gpu in gpus else one
        for one in attempt.allocations
    )
    return replace(attempt, allocations=allocations, measured_boot=max(times))


def _with_sample(one: Allocation, gpu: Gpu, attempt: ActiveAttempt, settings: Settings) -> Allocation:
    """Returns an allocation of the attempt with the newest sample of its GPU."""
    mib, load = attempt_memory(attempt, gpu), gpu.last.load_percent
    budget = attempt.budgets.get(gpu.uuid)
    is_overuse = mib is not None and budget is not None and mib > budget * (1 + settings.tolerance)
    return replace(
        one,
        peak_mib=one.peak_mib if mib is None else max(mib, one.peak_mib or 0),
        load_sum=one.load_sum + (load or 0.0),
        load_samples=one.load_samples + (load is not None),
        overuse_logged=one.overuse_logged or is_overuse,
    )


def attempt_memory(attempt: ActiveAttempt, gpu: Gpu) -> int | None:
    """Returns the MiB that the processes of an attempt use on a GPU.

    Returns None if the use is unknown or none of the processes is listed, because a probe may miss processes.
    """
    own = [p for p in listed_processes(gpu) or () if gpu.owners.get(p.pid) == attempt.id]
    return sum(p.used_mib or 0 for p in own) if own else None
