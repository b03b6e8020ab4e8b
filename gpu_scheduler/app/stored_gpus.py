"""Builds the facts with which placement evaluates the managed GPUs, from the stored samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_scheduler.claims.foreign_claims import ForeignClaims
from gpu_scheduler.core.model.gpu import GpuSample, Snapshot
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.facts import Attempt, Facts
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.gpus.watch import GpuWatch, watched_processes, with_stored_values
from gpu_scheduler.store.records import GpuRecord


def stored_facts(
    records: Sequence[GpuRecord],
    paused: Mapping[str, bool],
    attempts: Sequence[Attempt],
    settings: Settings,
    now: Now,
    foreign: ForeignClaims,
) -> Facts:
    """Returns the facts about these GPUs. attempts: all attempts that are not yet reconciled.

    foreign: the claims of other programs.
    """
    sampled = [gpu for gpu in records if gpu.sampled_at is not None]
    watch = GpuWatch()
    # Replays the samples, newest last. Only the GPU load of earlier samples is stored, and only it matters.
    for ago in reversed(range(max((len(gpu.loads) for gpu in sampled), default=1) or 1)):
        samples = [_sample(gpu, ago) for gpu in sampled if ago < max(1, len(gpu.loads))]
        watch.accept_sample(Snapshot(now.boot, tuple(samples)))
    tokens = {attempt.token: attempt.attempt_id for attempt in attempts}
    managed = {gpu.uuid: (gpu.index, paused.get(gpu.uuid, False)) for gpu in records}
    by_uuid = {gpu.uuid: gpu for gpu in records}
    gpus = tuple(
        replace(
            with_stored_values(gpu, by_uuid[gpu.uuid]),
            claims=foreign.claims.get(gpu.uuid, ()),
            claims_problem=foreign.problems.get(gpu.uuid),
        )
        for gpu in watch.gpus(managed, tokens, watched=watched_processes(attempts))
    )
    return Facts(now, settings, LlmConfig(), gpus, attempts=tuple(attempts))


def _sample(gpu: GpuRecord, samples_back: int) -> GpuSample:
    return GpuSample(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        total_mib=gpu.total_mib,
        used_mib=gpu.used_mib,
        load_percent=gpu.loads[-1 - samples_back] if gpu.loads else None,
        processes=gpu.processes,
        fault=gpu.fault,
        exclusive=gpu.exclusive,
        unified=gpu.unified,
    )
