"""Reads from the store the facts on which the advice for a job that ran out of GPU memory depends."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.store.recorded_options import recorded_options
from gpu_scheduler.store.records import AttemptRecord, GpuRecord
from gpu_scheduler.store.store import Store

#: A neighbor counts if it ended at most this many seconds before, because it may have died of the same cause.
_RECENT_S = 10.0


@dataclass(frozen=True)
class OomCase:
    """The GPU memory that a job had when it ran out of it.

    gpu_count: how many GPUs it had; had_gpus_alone: no other process used them; at_limit: it declared as
    much memory as a GPU can give; larger_gpus: indices of the GPUs that it may use and that have more memory
    than its own.
    """

    gpu_count: int = 1
    had_gpus_alone: bool = False
    at_limit: bool = False
    larger_gpus: tuple[int, ...] = ()


def oom_case(store: Store, attempt: AttemptRecord, spec: JobSpec, ended_at: float) -> OomCase:
    """Returns the facts about the attempt that ran out of memory; ended_at is in wall seconds."""
    uuids = json.loads(attempt["gpus"])
    limits = recorded_options(store)
    rows = [row for row in store.gpus() if spec.allowed is None or row["idx"] in spec.allowed]
    totals = {row["uuid"]: row["total_mib"] for row in store.gpus() if row["total_mib"]}
    own = max((totals[uuid] for uuid in uuids if uuid in totals), default=0)
    sizes = sorted((row["total_mib"] for row in rows if row["total_mib"]), reverse=True)
    room = (
        sizes[len(uuids) - 1] - limits.margin_mib - limits.idle_threshold_mib
        if len(sizes) >= len(uuids)
        else None
    )
    foreign = max((_foreign_mib(row) for row in rows if row["uuid"] in uuids), default=0)
    return OomCase(
        gpu_count=len(uuids),
        had_gpus_alone=foreign <= limits.idle_threshold_mib and not _has_neighbors(store, attempt, ended_at),
        at_limit=attempt["vram"] is not None and room is not None and attempt["vram"] >= room,
        larger_gpus=tuple(row["idx"] for row in rows if own and (row["total_mib"] or 0) > own),
    )


def _has_neighbors(store: Store, attempt: AttemptRecord, ended_at: float) -> bool:
    """Returns whether another job was on the attempt's GPUs when it ended.

    A job that had ended before the attempt began does not count.
    """
    since = max(ended_at - _RECENT_S, attempt["created_at"])
    return store.was_gpu_shared(attempt, since, ended_at)


def _foreign_mib(gpu: GpuRecord) -> int:
    """Returns the MiB of foreign processes on the GPU in the last sample, without displays."""
    displays = {pid for pid, _, graphics_only in json.loads(gpu["processes"] or "[]") if graphics_only}
    return sum(mib for pid, _, mib in json.loads(gpu["held"]) if pid not in displays)
