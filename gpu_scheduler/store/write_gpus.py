"""Records samples of the GPUs and the actions that change GPUs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable

from gpu_scheduler.core.model.event import EventKind, GpusChanged
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_fault import FaultKind, GpuFault
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.store.write_context import WriteContext

#: Number of load samples to keep for each GPU, which is enough for every mean load.
_LOADS_KEPT = 5


def record_samples(
    db: sqlite3.Connection, samples: Iterable[GpuSample], managed: Collection[str] | None, at: float
) -> None:
    """Records the newest sample of each GPU.

    managed: the UUIDs of the GPUs that this run manages, or None if they have not changed; at: the time of
    the samples in wall seconds.
    """
    for gpu in samples:
        db.execute(
            "INSERT INTO gpu (uuid, idx, name, managed) VALUES (?, ?, ?, 0) ON CONFLICT (uuid)"
            " DO UPDATE SET idx = excluded.idx, name = excluded.name",
            (gpu.uuid, gpu.index, gpu.name),
        )
        db.execute(
            "UPDATE gpu SET total_mib = coalesce(?, total_mib), used_mib = ?, load_percent = ?,"
            " fault = ?, sampled_at = ?, processes = ?, loads = ? WHERE uuid = ?",
            (gpu.total_mib, gpu.used_mib, gpu.load_percent, gpu.fault and gpu.fault.to_json(), at,
             _processes_json(gpu), _recent_loads_json(db, gpu), gpu.uuid),
        )  # fmt: skip
    if managed is not None:
        db.execute("UPDATE gpu SET managed = 0, foreign_loads = '[]', foreign_load_boot = NULL")
        db.executemany("UPDATE gpu SET managed = 1 WHERE uuid = ?", [(uuid,) for uuid in managed])


def record_probe_failure(db: sqlite3.Connection, cause: str) -> None:
    """Records that the GPUs cannot be read. Memory use and load become unknown, but a lost GPU stays lost."""
    db.execute(
        "UPDATE gpu SET used_mib = NULL, load_percent = NULL,"
        " fault = CASE WHEN fault IS NULL OR json_extract(fault, '$.kind') = ? THEN ? ELSE fault END"
        " WHERE managed",
        (FaultKind.UNREADABLE.value, GpuFault(FaultKind.UNREADABLE, cause).to_json()),
    )


def set_paused(context: WriteContext, action: act.SetPaused) -> None:
    """Pauses or resumes a GPU."""
    cursor = context.db.execute(
        "UPDATE gpu SET paused = ? WHERE uuid = ? AND paused <> ?",
        (action.paused, action.uuid, action.paused),
    )
    if cursor.rowcount:
        kind = EventKind.PAUSED if action.paused else EventKind.RESUMED
        details = GpusChanged(context.gpu_indices([action.uuid]), action.cause)
        context.add_event(kind, details=details)


def _processes_json(gpu: GpuSample) -> str | None:
    """Returns the processes of a sample in the format of the column `processes`."""
    if gpu.processes is None:
        return None
    return json.dumps([[one.pid, one.used_mib, one.graphics_only] for one in gpu.processes])


def _recent_loads_json(db: sqlite3.Connection, gpu: GpuSample) -> str:
    """Returns the last load samples, including this one, in the format of the column `loads`."""
    row = db.execute("SELECT loads FROM gpu WHERE uuid = ?", (gpu.uuid,)).fetchone()
    return json.dumps([*json.loads(row["loads"]), gpu.load_percent][-_LOADS_KEPT:])
