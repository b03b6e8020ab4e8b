"""A managed GPU as placement sees it: what is booked, what is foreign, what closes it (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.gpu import GpuProcess
from gpu_scheduler.core.placement import IDLE_MIB, GpuView
from gpu_scheduler.core.share import WHOLE


def view(gpu: Gpu, facts: Facts) -> GpuView:
    """The GPU with the bookings of every attempt that still holds a part of it."""
    here = [a for a in facts.attempts if gpu.uuid in a.gpus]
    foreign_mib = foreign_memory(gpu, facts.attempts)
    return GpuView(
        uuid=gpu.uuid,
        index=gpu.index,
        total_mib=gpu.sample.total_mib if gpu.sample else None,
        booked=sum(a.share for a in here if a.released_at is None),
        foreign_mib=foreign_mib,
        foreign=_foreigner(gpu, foreign_mib, facts.attempts),
        load=gpu.load,
        closed=_closed(gpu, here),
    )


def foreign_memory(gpu: Gpu, attempts: Sequence[Attempt]) -> int | None:
    """MiB on this GPU that belong to nobody of ours; None = unknown.

    From the processes where the probe lists them with their memory. Else from the totals: what was used when
    our first job came, raised by whatever exceeds the sum of our budgets.
    """
    sample = gpu.sample
    if sample is None:
        return None
    processes = sample.processes
    if processes is not None and all(p.used_mib is not None for p in processes):
        return sum(p.used_mib or 0 for p in _foreign(gpu, processes, attempts))
    if sample.used_mib is None:
        return None
    ours = [a for a in attempts if gpu.uuid in a.gpus and a.released_at is None]
    if not ours:
        return sample.used_mib
    budgets = sum(a.share * (sample.total_mib or 0) // WHOLE for a in ours)
    return max(max(a.baseline_mib.get(gpu.uuid, 0) for a in ours), sample.used_mib - budgets)


def unclaimed_memory(gpu: Gpu, attempts: Sequence[Attempt]) -> int | None:
    """MiB in use on this GPU that no process accounts for; None = unknown.

    What a dead process has not given back yet shows here. Without a list of processes: foreign memory.
    """
    sample = gpu.sample
    if sample is None or sample.used_mib is None:
        return None
    if sample.processes is None or any(p.used_mib is None for p in sample.processes):
        return foreign_memory(gpu, attempts)
    return max(0, sample.used_mib - sum(p.used_mib or 0 for p in sample.processes))


def _foreign(gpu: Gpu, processes: Sequence[GpuProcess], attempts: Sequence[Attempt]) -> list[GpuProcess]:
    """Those of nobody's of ours, and those of ours that have no business here: no booking speaks for them."""
    here = {attempt.attempt_id for attempt in attempts if gpu.uuid in attempt.gpus}
    return [p for p in processes if not p.graphics_only and gpu.owners.get(p.pid) not in here]


def _foreigner(gpu: Gpu, foreign_mib: int | None, attempts: Sequence[Attempt]) -> str | None:
    processes = gpu.sample.processes if gpu.sample else None
    if processes is None:
        return "memory" if foreign_mib is not None and foreign_mib > IDLE_MIB else None
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
