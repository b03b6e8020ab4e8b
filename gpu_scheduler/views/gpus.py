"""Builds the view of each managed GPU from its row and the rows of the attempts that hold it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gpu_scheduler.core.ledger import Booking, memory_of, share_of
from gpu_scheduler.core.placement import Limits
from gpu_scheduler.core.share import WHOLE
from gpu_scheduler.views import report
from gpu_scheduler.views.jobs import Row
from gpu_scheduler.views.report import GpuShown

_DEFAULT = Limits()


def shown(
    gpus: Iterable[Row], attempts: Iterable[Row], paused: Mapping[str, bool], limits: Limits = _DEFAULT
) -> tuple[GpuShown, ...]:
    """Returns the views of the GPUs.

    attempts: those not reconciled; paused: UUID -> whether the GPU is paused once all pending requests are
    applied; limits: those of the scheduler.
    """
    holders: dict[str, list[Row]] = {}
    for attempt in attempts:
        if attempt["released_boot"] is None:
            for uuid in json.loads(attempt["gpus"]):
                holders.setdefault(uuid, []).append(attempt)
    return tuple(
        _shown(gpu, holders.get(gpu["uuid"], []), paused.get(gpu["uuid"], False), limits) for gpu in gpus
    )


def _shown(gpu: Row, holders: list[Row], paused: bool, limits: Limits) -> GpuShown:
    total = gpu["total_mib"]
    bookings = [Booking.of_row(attempt, gpu["uuid"]) for attempt in holders]
    share = sum(share_of(booking, total, limits.spike) for booking in bookings)
    return GpuShown(
        index=gpu["idx"],
        uuid=gpu["uuid"],
        name=gpu["name"],
        state=_state(gpu, share, paused, limits),
        share=share,
        used_mib=gpu["used_mib"],
        total_mib=gpu["total_mib"],
        load_percent=gpu["load_percent"],
        fault=gpu["fault"],
        sampled_at=gpu["sampled_at"],
        jobs=tuple(sorted({attempt["job_id"] for attempt in holders})),
        booked_mib=None if total is None else sum(memory_of(b, total, limits.spike) for b in bookings),
        by_memory=any(booking.vram is not None for booking in bookings),
    )


def _state(gpu: Row, share: int, paused: bool, limits: Limits) -> str:
    if gpu["fault"] is not None:
        return report.LOST
    if paused:
        return report.PAUSED
    return (
        report.BUSY if share >= WHOLE or (share == 0 and _used_by_others(gpu, limits)) else report.AVAILABLE
    )


def _used_by_others(gpu: Row, limits: Limits) -> bool:
    """Returns whether foreign processes use a GPU without jobs so much that it accepts none."""
    used, total, load = gpu["used_mib"], gpu["total_mib"], gpu["load_percent"]
    if used is not None and total and used >= limits.memory * total:
        return True
    return load is not None and load >= 100 * limits.load
