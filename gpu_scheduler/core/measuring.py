"""What a new sample adds to the record: what running attempts use, whether that is more than they declared,
and the peaks and the load of everybody else's processes.

Each is planned from the newest sample and the record, and is on the record in the next round, so that nothing
is said twice and a restart forgets nothing.
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
    """What is to be noted of the newest sample."""
    notes: list[Action] = []
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    for attempt in facts.attempts:
        if attempt.outcome is None and attempt.job_state in (JobState.RUNNING, JobState.STOPPING):
            notes += _of_attempt(attempt, gpus, facts.settings)
    for gpu in facts.gpus:
        held = held_now(gpu, facts.attempts)
        if held != gpu.held:
            notes.append(NoteHeld(gpu.uuid, tuple((*key, mib) for key, mib in sorted(held.items()))))
        notes += _of_foreign_load(gpu, facts)
    return notes


def _of_foreign_load(gpu: Gpu, facts: Facts) -> list[Action]:
    """Each sample is judged once, by the attempts that hold the GPU when it comes."""
    if gpu.sample is None or gpu.sampled_at in (None, gpu.foreign_load_at):
        return []
    load = foreign_load(gpu, facts.attempts, facts.settings.limits)
    loads = (*gpu.foreign_loads, load)[-LOAD_SAMPLES:]
    # Equal only where every load is the same: then the record says all there is to say.
    return [] if loads == gpu.foreign_loads else [NoteForeignLoad(gpu.uuid, loads, gpu.sampled_at)]


def measured(attempts: Sequence[Attempt], notes: Sequence[Action]) -> list[Attempt]:
    """The attempts with the peaks that they have once these notes are on the record."""
    seen = {note.attempt_id: note.seen for note in notes if isinstance(note, NoteUse)}
    return [_with(attempt, seen.get(attempt.attempt_id, ())) for attempt in attempts]


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
    seen = tuple(
        (gpu.uuid, used_by(attempt, gpu), gpu.sample.load_percent if gpu.sample else None) for gpu in own
    )
    notes: list[Action] = [NoteUse(attempt.job_id, attempt.attempt_id, max(times), seen)]
    share = attempt.share if attempt.vram is None else None
    for uuid, mib, _ in seen:
        budget = attempt.budgets.get(uuid)
        if budget is None or mib is None or uuid in attempt.exceeded:
            continue
        if mib > budget * (1 + settings.tolerance):
            notes.append(NoteExceeded(attempt.job_id, attempt.attempt_id, uuid, mib, budget, share))
    return notes


def used_by(attempt: Attempt, gpu: Gpu) -> int | None:
    """MiB that the processes of an attempt use on a GPU; None where that cannot be told, or none is listed:
    a probe need not list every process."""
    own = [p for p in listed(gpu) or () if gpu.owners.get(p.pid) == attempt.attempt_id]
    return sum(p.used_mib or 0 for p in own) if own else None
