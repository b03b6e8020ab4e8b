"""Records what a new sample shows: resource use and overuse of running attempts, foreign peaks and load.

Each action follows from the newest sample and the store alone, so that nothing is reported twice and nothing
is lost by a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_scheduler.core.actions import Action, NoteExceeded, NoteForeignLoad, NoteHeld, NoteUse
from gpu_scheduler.core.facts import Attempt, Facts, Gpu, Settings
from gpu_scheduler.core.gpu import LOAD_SAMPLES
from gpu_scheduler.core.gpuview import foreign_load, held_now, listed
from gpu_scheduler.core.states import JobState


def measure(facts: Facts) -> list[Action]:
    """Returns the actions that record the newest sample."""
    actions: list[Action] = []
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    for attempt in facts.attempts:
        if attempt.outcome is None and attempt.job_state in (JobState.RUNNING, JobState.STOPPING):
            actions += _of_attempt(attempt, gpus, facts.settings)
    for gpu in facts.gpus:
        peaks = held_now(gpu, facts.attempts)
        if peaks != gpu.held:
            actions.append(NoteHeld(gpu.uuid, tuple((*key, mib) for key, mib in sorted(peaks.items()))))
        actions += _of_foreign_load(gpu, facts)
    return actions


def _of_foreign_load(gpu: Gpu, facts: Facts) -> list[Action]:
    """Records the foreign load of a sample once, given the attempts that hold the GPU at that time."""
    if gpu.sample is None or gpu.sampled_at in (None, gpu.foreign_load_at):
        return []
    load = foreign_load(gpu, facts.attempts, facts.settings.limits)
    loads = (*gpu.foreign_loads, load)[-LOAD_SAMPLES:]
    # Equal only if all loads are the same; then the store is up to date.
    return [] if loads == gpu.foreign_loads else [NoteForeignLoad(gpu.uuid, loads, gpu.sampled_at)]


def measured(attempts: Sequence[Attempt], notes: Sequence[Action]) -> list[Attempt]:
    """Returns the attempts with their peaks as they will be once these actions are recorded."""
    usage = {note.attempt_id: note.seen for note in notes if isinstance(note, NoteUse)}
    return [_with(attempt, usage.get(attempt.attempt_id, ())) for attempt in attempts]


def _with(attempt: Attempt, seen: Sequence[tuple[str, int | None, float | None]]) -> Attempt:
    peaks = dict(attempt.peaks)
    for uuid, mib, _ in seen:
        if mib is not None:
            peaks[uuid] = max(mib, peaks.get(uuid, 0))
    return attempt if peaks == attempt.peaks else replace(attempt, peaks=peaks)


def _of_attempt(attempt: Attempt, gpus: dict[str, Gpu], settings: Settings) -> list[Action]:
    own = [gpus[uuid] for uuid in attempt.gpus if uuid in gpus]
    times = [gpu.sampled_at for gpu in own if gpu.sampled_at is not None and gpu.sample is not None]
    launched_at = attempt.launch_deadline - settings.launch_deadline_s
    if not times or max(times) < launched_at:
        return []
    if attempt.measured_at is not None and max(times) <= attempt.measured_at:
        return []
    usage = tuple(
        (gpu.uuid, used_by(attempt, gpu), gpu.sample.load_percent if gpu.sample else None) for gpu in own
    )
    actions: list[Action] = [NoteUse(attempt.job_id, attempt.attempt_id, max(times), usage)]
    share = attempt.share if attempt.vram is None else None
    for uuid, mib, _ in usage:
        budget = attempt.budgets.get(uuid)
        if budget is None or mib is None or uuid in attempt.exceeded:
            continue
        if mib > budget * (1 + settings.tolerance):
            actions.append(NoteExceeded(attempt.job_id, attempt.attempt_id, uuid, mib, budget, share))
    return actions


def used_by(attempt: Attempt, gpu: Gpu) -> int | None:
    """Returns the MiB that the processes of an attempt use on a GPU.

    None = unknown, or none of them is listed: a probe may miss processes.
    """
    own = [p for p in listed(gpu) or () if gpu.owners.get(p.pid) == attempt.attempt_id]
    return sum(p.used_mib or 0 for p in own) if own else None
