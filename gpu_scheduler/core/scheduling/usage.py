"""Records what a new sample contains: use and overuse by attempts, and peaks and load of foreign processes.

Each action depends only on the newest sample and the store, so that nothing is reported twice and a restart
loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.core.model.gpu import LOAD_SAMPLES
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import (
    Action,
    RecordForeignLoad,
    RecordForeignPeaks,
    RecordOveruse,
    RecordUsage,
)
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Gpu
from gpu_scheduler.core.scheduling.gpu_use import foreign_load, foreign_peaks, listed_processes
from gpu_scheduler.core.scheduling.settings import Settings


def record_measurements(facts: Facts) -> list[Action]:
    """Returns the actions that record the newest sample."""
    actions: list[Action] = []
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    for attempt in facts.attempts:
        if attempt.state.is_open and attempt.state is not AttemptState.STARTING:
            actions += _measure_attempt(attempt, gpus, facts.settings)
    for gpu in facts.gpus:
        peaks = foreign_peaks(gpu, facts.attempts)
        if peaks != gpu.foreign_peaks:
            actions.append(
                RecordForeignPeaks(gpu.uuid, tuple((*key, mib) for key, mib in sorted(peaks.items())))
            )
        actions += _measure_foreign_load(gpu, facts)
    return actions


def _measure_foreign_load(gpu: Gpu, facts: Facts) -> list[Action]:
    """Records the foreign load of a sample once, based on the attempts that hold the GPU at that time."""
    if gpu.sample is None or gpu.sampled_at in (None, gpu.foreign_load_at):
        return []
    load = foreign_load(gpu, facts.attempts, facts.settings)
    loads = (*gpu.foreign_loads, load)[-LOAD_SAMPLES:]
    # The lists are equal only if all loads are the same. The store is then up to date.
    return [] if loads == gpu.foreign_loads else [RecordForeignLoad(gpu.uuid, loads, gpu.sampled_at)]


def with_recorded_peaks(attempts: Sequence[Attempt], actions: Sequence[Action]) -> list[Attempt]:
    """Returns the attempts with the peaks that they will have once these actions are recorded."""
    usage = {note.attempt_id: note.usage for note in actions if isinstance(note, RecordUsage)}
    return [_with_peaks(attempt, usage.get(attempt.attempt_id, ())) for attempt in attempts]


def _with_peaks(attempt: Attempt, usage: Sequence[tuple[str, int | None, float | None]]) -> Attempt:
    peaks = dict(attempt.peaks)
    for uuid, mib, _ in usage:
        if mib is not None:
            peaks[uuid] = max(mib, peaks.get(uuid, 0))
    return attempt if peaks == attempt.peaks else replace(attempt, peaks=peaks)


def _measure_attempt(attempt: Attempt, gpus: dict[str, Gpu], settings: Settings) -> list[Action]:
    own = [gpus[uuid] for uuid in attempt.gpus if uuid in gpus]
    times = [gpu.sampled_at for gpu in own if gpu.sampled_at is not None and gpu.sample is not None]
    launched_at = attempt.launch_deadline - settings.launch_deadline_s
    if not times or max(times) < launched_at:
        return []
    if attempt.measured_at is not None and max(times) <= attempt.measured_at:
        return []
    usage = tuple(
        (gpu.uuid, attempt_memory(attempt, gpu), gpu.sample.load_percent if gpu.sample else None)
        for gpu in own
    )
    actions: list[Action] = [RecordUsage(attempt.job_id, attempt.attempt_id, max(times), usage)]
    share = attempt.share if attempt.vram is None else None
    for uuid, mib, _ in usage:
        budget = attempt.budgets.get(uuid)
        if budget is None or mib is None or uuid in attempt.overused_gpus:
            continue
        if mib > budget * (1 + settings.tolerance):
            actions.append(RecordOveruse(attempt.attempt_id, uuid, mib, budget, share))
    return actions


def attempt_memory(attempt: Attempt, gpu: Gpu) -> int | None:
    """Returns the MiB that the processes of an attempt use on a GPU.

    Returns None if the use is unknown or none of the processes is listed, because a probe may miss processes.
    """
    own = [p for p in listed_processes(gpu) or () if gpu.owners.get(p.pid) == attempt.attempt_id]
    return sum(p.used_mib or 0 for p in own) if own else None
