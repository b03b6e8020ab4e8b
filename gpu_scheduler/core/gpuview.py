"""A managed GPU as placement sees it: what is booked, foreign, or closes it (docs/design.md, Accounting)."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.gpu import GpuProcess
from gpu_scheduler.core.ledger import DRIVER_MIB, buffered, memory_of, share_of
from gpu_scheduler.core.placement import GpuView, Limits


def view(gpu: Gpu, facts: Facts) -> GpuView:
    """The GPU with the bookings of every attempt that still holds a part of it."""
    here = [a for a in facts.attempts if gpu.uuid in a.gpus]
    holders = _holders(gpu, facts.attempts)
    limits = facts.settings.limits
    total = gpu.sample.total_mib if gpu.sample else None
    foreign_mib = foreign_memory(gpu, facts.attempts, limits)
    return GpuView(
        uuid=gpu.uuid,
        index=gpu.index,
        total_mib=total,
        booked=sum(share_of(a.booking(gpu.uuid), total, limits.spike) for a in holders),
        memory_mib=None if total is None else _memory(gpu, holders, facts.attempts, limits),
        taken=bool(holders),
        foreign_mib=foreign_mib,
        foreign=_foreigner(gpu, foreign_mib, facts.attempts, limits),
        past_mib=_past_peaks(gpu, facts.attempts),
        load=gpu.load,
        foreign_load=_mean(gpu.foreign_loads),
        closed=_closed(gpu, here),
    )


def _memory(gpu: Gpu, holders: Sequence[Attempt], attempts: Sequence[Attempt], limits: Limits) -> int | None:
    """The memory ledger: what ours book, what others hold with its buffer, and never less than is in use."""
    others = _held_by_others(gpu, attempts, limits)
    if others is None:
        return None
    used = gpu.sample.used_mib if gpu.sample else None
    return max(_budgets(gpu, holders, limits) + others, used or 0)


def _held_by_others(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> int | None:
    """MiB that everybody else holds: each process at its peak so far, with the buffer, and what no process
    accounts for; None = unknown."""
    if listed(gpu) is None:
        foreign_mib = foreign_memory(gpu, attempts, limits)
        return None if foreign_mib is None else buffered(foreign_mib, limits.spike)
    peaks = held_now(gpu, attempts).values()
    return sum(buffered(peak, limits.spike) for peak in peaks) + _hidden(gpu, attempts, limits)


def listed(gpu: Gpu) -> tuple[GpuProcess, ...] | None:
    """The processes on a GPU, where all of them, their memory and their owners are known; else None."""
    processes = gpu.sample.processes if gpu.sample else None
    if processes is None or gpu.unmatched or any(p.used_mib is None for p in processes):
        return None
    return processes


def held_now(gpu: Gpu, attempts: Sequence[Attempt]) -> dict[tuple[int, float], int]:
    """(pid, start) of each foreign process that lives -> the most MiB that it was seen to use."""
    here = _on_it(gpu, attempts)
    peaks = dict(gpu.held)
    for process in listed(gpu) or ():
        key = (process.pid, gpu.starts.get(process.pid, 0.0))
        if gpu.owners.get(process.pid) in here:
            peaks.pop(key, None)  # taken for foreign before it could be told whose it is
        else:
            peaks[key] = max(peaks.get(key, 0), process.used_mib or 0)
    return peaks


def _past_peaks(gpu: Gpu, attempts: Sequence[Attempt]) -> int:
    """What foreign processes were seen to use at most, MiB, if that is more than they use now; else 0."""
    processes, here = listed(gpu), _on_it(gpu, attempts)
    if processes is None:
        return 0
    now = sum(p.used_mib or 0 for p in processes if gpu.owners.get(p.pid) not in here)
    peak = sum(held_now(gpu, attempts).values())
    return peak if peak > now else 0


def foreign_memory(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> int | None:
    """MiB on this GPU that belong to nobody of ours, as they are now; None = unknown.

    From the processes where the probe lists them with their memory, and what more is in use than processes
    and a driver account for. Else from the totals: what was used when our first job came, raised by whatever
    exceeds the sum of our budgets.
    """
    sample = gpu.sample
    if sample is None:
        return None
    processes = listed(gpu)
    if processes is not None:
        hidden = max(0, _hidden(gpu, attempts, limits) - DRIVER_MIB)
        return sum(p.used_mib or 0 for p in _foreign(gpu, processes, attempts)) + hidden
    if sample.used_mib is None:
        return None
    ours = _holders(gpu, attempts)
    return max(_baseline(gpu, ours), sample.used_mib - _budgets(gpu, ours, limits))


def foreign_load(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> float | None:
    """The load that foreign processes make in the newest sample, percent; None = cannot be told.

    Where the driver does not say which process makes the load, that of the card is theirs if no job of ours
    is on it.
    """
    load = _load_of_processes(gpu, attempts, limits)
    if load is not None or gpu.sample is None or _on_it(gpu, attempts):
        return load
    return gpu.sample.load_percent


def _load_of_processes(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> float | None:
    processes = gpu.sample.processes if gpu.sample else None
    if processes is None or gpu.unmatched:
        return None
    if listed(gpu) is not None and _hidden(gpu, attempts, limits) > DRIVER_MIB:
        return None  # somebody is there whom the driver does not list
    loads = [process.load_percent for process in _foreign(gpu, processes, attempts)]
    known = [load for load in loads if load is not None]
    return min(100.0, sum(known)) if len(known) == len(loads) else None


def _mean(loads: Sequence[float | None]) -> float | None:
    known = [load for load in loads if load is not None]
    return sum(known) / len(known) if known else None


def displays(gpu: Gpu, limits: Limits) -> int:
    """MiB that displays hold: memory that is foreign, and stays so."""
    processes = listed(gpu) or ()
    return sum(buffered(p.used_mib or 0, limits.spike) for p in processes if p.graphics_only)


def unclaimed_memory(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> int | None:
    """MiB in use on this GPU that no process accounts for; None = unknown.

    What a dead process has not given back yet shows here. Without a list of processes: foreign memory.
    """
    sample = gpu.sample
    if sample is None or sample.used_mib is None:
        return None
    processes = listed(gpu)
    if processes is None:
        return foreign_memory(gpu, attempts, limits)
    return max(0, sample.used_mib - sum(p.used_mib or 0 for p in processes))


def _hidden(gpu: Gpu, attempts: Sequence[Attempt], limits: Limits) -> int:
    """MiB that no listed process accounts for, and no attempt of ours of which none is listed.

    A probe need not list every process: one within a container lists none of those outside, some none at all.
    """
    unclaimed = unclaimed_memory(gpu, attempts, limits) or 0
    ours = _holders(gpu, attempts)
    seen = {gpu.owners.get(process.pid) for process in listed(gpu) or ()}
    unseen = [attempt for attempt in ours if attempt.attempt_id not in seen]
    return max(min(unclaimed, _baseline(gpu, ours)), unclaimed - _budgets(gpu, unseen, limits))


def _holders(gpu: Gpu, attempts: Sequence[Attempt]) -> list[Attempt]:
    return [a for a in attempts if gpu.uuid in a.gpus and a.released_at is None]


def _baseline(gpu: Gpu, ours: Sequence[Attempt]) -> int:
    return max((attempt.baseline_mib.get(gpu.uuid, 0) for attempt in ours), default=0)


def _budgets(gpu: Gpu, ours: Sequence[Attempt], limits: Limits) -> int:
    total = (gpu.sample.total_mib if gpu.sample else None) or 0
    return sum(memory_of(attempt.booking(gpu.uuid), total, limits.spike) for attempt in ours)


def _on_it(gpu: Gpu, attempts: Sequence[Attempt]) -> set[int | None]:
    return {attempt.attempt_id for attempt in attempts if gpu.uuid in attempt.gpus}


def _foreign(gpu: Gpu, processes: Sequence[GpuProcess], attempts: Sequence[Attempt]) -> list[GpuProcess]:
    """Those of nobody's of ours, and those of ours that have no business here: no booking speaks for them."""
    here = _on_it(gpu, attempts)
    return [p for p in processes if not p.graphics_only and gpu.owners.get(p.pid) not in here]


def _foreigner(gpu: Gpu, foreign_mib: int | None, attempts: Sequence[Attempt], limits: Limits) -> str | None:
    processes = gpu.sample.processes if gpu.sample and not gpu.unmatched else None
    if processes is None:
        return "memory" if foreign_mib is not None and foreign_mib > limits.idle_mib else None
    foreign = sorted(_foreign(gpu, processes, attempts), key=lambda p: -(p.used_mib or 0))
    return f"process {foreign[0].pid}" if foreign else None


def _closed(gpu: Gpu, here: Sequence[Attempt]) -> str | None:
    if gpu.paused:
        return "paused"
    if gpu.sample is None:
        return "not seen by the probe"
    if gpu.sample.fault is not None:
        return gpu.sample.fault
    for attempt in here:
        if attempt.outcome is not None and attempt.released_at is None:
            pids = ", ".join(str(pid) for pid in (attempt.survivors or ())[:4])
            return (
                f"quarantined: process {pids} of job {attempt.job_id} is left" if pids else "being released"
            )
    if any(attempt.released_at is not None for attempt in here):
        return "cooling"
    return None
