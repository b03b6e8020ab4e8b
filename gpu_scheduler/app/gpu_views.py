"""Builds the view of each managed GPU from its row and the rows of the attempts that hold it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from gpu_scheduler.app import status_report
from gpu_scheduler.app.job_views import StoreRow
from gpu_scheduler.app.status_report import GpuStatusView
from gpu_scheduler.core.model.share import WHOLE
from gpu_scheduler.core.scheduling.accounting import Allocation, allocated_mib, allocated_share
from gpu_scheduler.core.scheduling.placement import Limits

_DEFAULT_LIMITS = Limits()


def gpu_views(
    gpus: Iterable[StoreRow],
    attempts: Iterable[StoreRow],
    paused: Mapping[str, bool],
    limits: Limits = _DEFAULT_LIMITS,
) -> tuple[GpuStatusView, ...]:
    """Returns the views of the GPUs.

    attempts: those not reconciled; paused: UUID -> whether the GPU is paused once all pending requests are
    applied; limits: those of the scheduler.
    """
    holders: dict[str, list[StoreRow]] = {}
    for attempt in attempts:
        if attempt["released_boot"] is None:
            for uuid in json.loads(attempt["gpus"]):
                holders.setdefault(uuid, []).append(attempt)
    return tuple(
        _gpu_view(gpu, holders.get(gpu["uuid"], []), paused.get(gpu["uuid"], False), limits) for gpu in gpus
    )


def _gpu_view(gpu: StoreRow, holders: list[StoreRow], paused: bool, limits: Limits) -> GpuStatusView:
    total = gpu["total_mib"]
    bookings = [
        Allocation(
            attempt["share"],
            attempt["vram"],
            bool(attempt["whole"]),
            json.loads(attempt["peaks"]).get(gpu["uuid"]),
        )
        for attempt in holders
    ]
    share = sum(allocated_share(booking, total, limits.spike_buffer) for booking in bookings)
    return GpuStatusView(
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
        allocated_mib=None
        if total is None
        else sum(allocated_mib(b, total, limits.spike_buffer) for b in bookings),
        has_declared_memory=any(booking.vram is not None for booking in bookings),
    )


def _state(gpu: StoreRow, share: int, paused: bool, limits: Limits) -> str:
    if gpu["fault"] is not None:
        return status_report.LOST
    if paused:
        return status_report.PAUSED
    return (
        status_report.BUSY
        if share >= WHOLE or (share == 0 and _is_used_by_foreign_processes(gpu, limits))
        else status_report.AVAILABLE
    )


def _is_used_by_foreign_processes(gpu: StoreRow, limits: Limits) -> bool:
    """Returns whether foreign processes use a GPU without jobs so much that it accepts none."""
    used, total, load = gpu["used_mib"], gpu["total_mib"], gpu["load_percent"]
    if used is not None and total and used >= limits.mem_threshold * total:
        return True
    return load is not None and load >= 100 * limits.load_threshold
