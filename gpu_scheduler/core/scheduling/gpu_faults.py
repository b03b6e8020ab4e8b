"""Finds the GPUs that must get no jobs: those that make jobs fail, and those that are lost or recovering.

The rules are in docs/design.md, Placement. Each round derives the suspicions anew, from the recorded ends of
attempts and the attempts that run now, so one also ends when the jobs that failed on the GPU have failed in
the same way on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpu_scheduler.core.model.gpu import (
    GOOD_SAMPLES_NEEDED,
    UNKNOWN_UUID_PREFIX,
    UNLISTED,
    FaultKind,
    Gpu,
    GpuFault,
    GpuSample,
    Suspicion,
)
from gpu_scheduler.core.model.states import AttemptState
from gpu_scheduler.core.scheduling.actions import Action, GpuChanged
from gpu_scheduler.core.scheduling.facts import Facts
from gpu_scheduler.core.scheduling.history import QUICK_S, AttemptEnd

#: Seconds within which failures on one GPU count together, and after which a job that tries it has passed.
WINDOW_S = 60.0
#: Number of jobs whose device errors put a GPU aside.
DEVICE_ERRORS = 2


def find_suspects(facts: Facts) -> tuple[Facts, list[Action]]:
    """Returns the facts with the current suspicions, and the changes to those in the store.

    Only device errors make the last usable GPU suspect, so that wrong commands never stop everything.
    """
    judged = facts.gpus if facts.settings.suspect_after else ()
    found = {gpu.uuid: one for gpu in judged if (one := _suspicion(gpu, facts)) is not None}
    if not found and all(gpu.suspicion is None for gpu in facts.gpus):
        return facts, []
    quick = sorted((one.since, uuid) for uuid, one in found.items() if one.error is None)
    certain = {uuid for uuid, one in found.items() if one.error is not None}
    usable = {gpu.uuid for gpu in facts.gpus if gpu.is_in_service} - certain
    for _, uuid in quick:
        if usable <= {uuid}:
            del found[uuid]
        else:
            usable.discard(uuid)
    shown = {uuid: one for uuid, one in found.items() if one.awaits is None}
    changed: list[Action] = [
        GpuChanged(gpu, replace(gpu, suspicion=shown.get(gpu.uuid)))
        for gpu in facts.gpus
        if shown.get(gpu.uuid) != gpu.suspicion
    ]
    if found or changed:
        gpus = tuple(replace(gpu, suspicion=found.get(gpu.uuid)) for gpu in facts.gpus)
        facts = replace(facts, gpus=gpus)
    return facts, changed


def _suspicion(gpu: Gpu, facts: Facts) -> Suspicion | None:
    """Returns the suspicion against a GPU, from what happened there since it was last resumed."""
    counted = facts.history.counted.get(gpu.uuid, ())
    found: Suspicion | None = None
    recent: list[AttemptEnd] = []
    for end in facts.history.on_gpu[gpu.uuid] if counted else ():
        if end.ended_at <= (gpu.usable_since or 0.0):
            continue
        has_failed = end.attempt_id in counted
        has_lasted = end.ended_at - end.started_at >= WINDOW_S and not has_failed
        if found is not None and found.awaits is None:
            if has_failed and end.created_at >= found.trial_at:
                found = found.after_trial(end.job_id, end.ended_at, end.device_error)
            elif end.created_at > found.since and (end.has_completed or has_lasted):
                found, recent = None, []
        elif has_failed:
            begin = end.ended_at - WINDOW_S
            recent = [one for one in recent if one.ended_at > begin and one.job_id != end.job_id]
            recent.append(end)
            found = _judge(gpu.uuid, recent, facts)
        elif end.has_completed:
            found, recent = None, [one for one in recent if one.device_error is not None]
    if found is not None and found.awaits is None:
        for uuids, _, started_at in _running(facts):
            if gpu.uuid in uuids and found.since < started_at <= facts.now.wall - WINDOW_S:
                return None
    return found


def _judge(uuid: str, recent: Sequence[AttemptEnd], facts: Facts) -> Suspicion | None:
    """Returns the suspicion that follows from the failures of different jobs within a minute."""
    errors = [one for one in recent if one.device_error is not None]
    if len(errors) >= DEVICE_ERRORS:
        jobs = tuple(one.job_id for one in errors)
        return Suspicion(jobs, errors[-1].ended_at, errors[-1].device_error)
    quick = [one for one in recent if one.is_quick][-facts.settings.suspect_after :]
    if len(quick) < facts.settings.suspect_after:
        return None
    history, doubt = facts.history, Suspicion(tuple(one.job_id for one in quick), quick[-1].ended_at)
    begin, until = doubt.since - WINDOW_S, quick[0].ended_at + WINDOW_S
    well: set[str] = set()
    for one in history.well:
        if one.ended_at >= begin and min(one.ended_at, one.started_at + QUICK_S) <= until:
            well.update(one.gpus)
    awaited = []
    for uuids, job_id, since in _running(facts):
        if since + QUICK_S <= min(until, facts.now.wall):
            well.update(uuids)
        elif since <= doubt.since and facts.now.wall <= until and uuid not in uuids:
            awaited.append((since, job_id))
    failing = {
        on
        for on, counted in history.counted.items()
        if any(end.attempt_id in counted and begin <= end.ended_at <= until for end in history.on_gpu[on])
    }
    others = failing - well - {uuid}
    well.discard(uuid)
    if well and len(others) < max(1, len(well) - 1):  # otherwise the jobs are to blame
        return doubt
    return replace(doubt, awaits=min(awaited)[1]) if awaited else None


def is_due(gpu: Gpu, facts: Facts) -> bool:
    """Returns whether one job may try a suspect GPU now."""
    doubt = gpu.suspicion
    if doubt is None or doubt.awaits is not None or facts.now.wall < doubt.trial_at:
        return False
    starts = [one.started_at for one in facts.attempts_on(gpu.uuid) if one.state.is_open]
    return all(at is not None and at < doubt.trial_at for at in starts)


def _running(facts: Facts) -> list[tuple[tuple[str, ...], int, float]]:
    """Returns the GPUs, the job and the start of each running attempt, except those of adopted processes."""
    return [
        (one.gpus, one.job_id, one.started_at)
        for one in facts.attempts
        if one.state is AttemptState.RUNNING and one.started_at is not None and one.watched_pid is None
    ]


# Tracks lost and recovering GPUs from one sample to the next.
#
# A faulty GPU gets no new jobs until several samples in a row have been good. The number of good samples is
# part of the fault in the store, so that it survives a restart. If a sample fails as a whole, no GPU counts
# as lost or recovered because of it.


class GpuChange(Struct, frozen=True):
    """A GPU that is lost, or available again (`recovered`), according to this sample."""

    gpu: GpuSample
    recovered: bool


def update_faults(
    samples: Sequence[GpuSample], known: Iterable[GpuSample]
) -> tuple[tuple[GpuSample, ...], tuple[GpuChange, ...]]:
    """Merges a sample with the known GPUs; returns the result ordered by index, and the changes.

    A known GPU that is missing from the sample is added as lost. A GPU that is back keeps a fault while it
    recovers. Unknown GPUs are returned unchanged. known: the GPUs in the store, each with its fault in the
    previous sample.
    """
    before = {gpu.uuid: gpu for gpu in known}
    found = _with_known_uuids(samples, before)
    missing = [gpu for uuid, gpu in before.items() if uuid not in {sample.uuid for sample in found}]
    settled, changes = [], []
    for sample in [*found, *_as_unlisted(missing, {sample.index for sample in found})]:
        last = before.get(sample.uuid)
        if last is not None:
            sample = replace(sample, fault=_next_fault(last.fault, sample.fault))
            if was_usable(last.fault) != (sample.fault is None):
                changes.append(GpuChange(sample, recovered=sample.fault is None))
        settled.append(sample)
    return tuple(sorted(settled, key=lambda sample: sample.index)), tuple(changes)


def was_usable(fault: GpuFault | None) -> bool:
    """Returns whether a GPU with this stored fault counted as usable, rather than as lost."""
    return fault is None or fault.kind is FaultKind.UNREADABLE


def _next_fault(before: GpuFault | None, now: GpuFault | None) -> GpuFault | None:
    if now is not None or before is None or was_usable(before):
        return now
    good = before.good_samples + 1
    return None if good >= GOOD_SAMPLES_NEEDED else GpuFault(FaultKind.RECOVERING, good_samples=good)


def _with_known_uuids(samples: Sequence[GpuSample], known: dict[str, GpuSample]) -> list[GpuSample]:
    """Returns the samples, and identifies each GPU without a UUID as one of the missing known GPUs.

    This is the missing GPU with the same index or, if there is none, any other missing GPU.
    """
    missing = {uuid: gpu for uuid, gpu in known.items() if uuid not in {sample.uuid for sample in samples}}
    found = []
    for sample in samples:
        if missing and sample.uuid.startswith(UNKNOWN_UUID_PREFIX):
            any_one = next(iter(missing.values()))
            gpu = next((m for m in missing.values() if m.index == sample.index), any_one)
            del missing[gpu.uuid]
            sample = replace(sample, uuid=gpu.uuid, name=gpu.name)
        found.append(sample)
    return found


def _as_unlisted(missing: Sequence[GpuSample], taken: set[int]) -> list[GpuSample]:
    """Returns the missing GPUs with their old indices; a GPU whose index is taken gets a higher one."""
    lost = []
    last = max(taken | {gpu.index for gpu in missing}, default=0)
    for gpu in missing:
        last += gpu.index in taken
        index = last if gpu.index in taken else gpu.index
        lost.append(GpuSample(gpu.uuid, index, gpu.name, fault=UNLISTED))
    return lost
