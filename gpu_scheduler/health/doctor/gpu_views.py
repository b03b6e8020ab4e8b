"""Builds placement's view of the managed GPUs from the stored samples, with the scheduler's own code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gpu_scheduler.core.model.gpu import GpuProcess, GpuSample, Snapshot
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.scheduling.facts import Attempt, Facts, Settings
from gpu_scheduler.core.scheduling.gpu_availability import availability
from gpu_scheduler.core.scheduling.needs import LlmConfig
from gpu_scheduler.core.scheduling.placement import GpuAvailability, Limits
from gpu_scheduler.gpus.watch import GpuWatch, with_stored_values
from gpu_scheduler.store.records import GpuRecord


def gpu_views(
    rows: Sequence[GpuRecord],
    paused: Mapping[str, bool],
    attempts: Sequence[Attempt],
    limits: Limits,
    now: Now,
) -> list[GpuAvailability]:
    """Returns a view of each GPU of these rows (`Store.gpus`). attempts: all that are not reconciled."""
    sampled = [(row, json.loads(row["loads"])) for row in rows if row["sampled_at"] is not None]
    watch = GpuWatch()
    # Replays the samples, newest last; of earlier ones only the load is kept and matters.
    for ago in reversed(range(max((len(loads) for _, loads in sampled), default=1) or 1)):
        samples = [_sample(row, loads, ago) for row, loads in sampled if ago < max(1, len(loads))]
        watch.accept_sample(Snapshot(now.boot, tuple(samples)))
    tokens = {attempt.token: attempt.attempt_id for attempt in attempts}
    managed = {row["uuid"]: (row["idx"], paused.get(row["uuid"], False)) for row in rows}
    of = {row["uuid"]: row for row in rows}
    gpus = tuple(with_stored_values(gpu, of[gpu.uuid]) for gpu in watch.gpus(managed, tokens))
    facts = Facts(now, Settings(limits=limits), LlmConfig(), gpus, attempts=tuple(attempts))
    return [availability(gpu, facts) for gpu in gpus]


def _sample(row: GpuRecord, loads: Sequence[float | None], samples_back: int) -> GpuSample:
    listed = None if row["processes"] is None else json.loads(row["processes"])
    return GpuSample(
        uuid=row["uuid"],
        index=row["idx"],
        name=row["name"],
        total_mib=row["total_mib"],
        used_mib=row["used_mib"],
        load_percent=loads[-1 - samples_back] if loads else None,
        processes=None if listed is None else tuple(GpuProcess(*process) for process in listed),
        fault=row["fault"],
    )
