"""Records samples of the GPUs and the actions that change GPUs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable

from gpu_scheduler.core.model.event import EventKind, GpusChanged, GpuSuspected
from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_fault import FaultKind, GpuFault
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.gpu_time import PERIOD_HOURS
from gpu_scheduler.store.gpu_time import COUNTED_UNTIL_KEY
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
            "UPDATE gpu SET total_mib = coalesce(?1, total_mib), used_mib = ?2, load_percent = ?3,"
            # While no GPU could be read, no job started anywhere, so no job was overtaken.
            " usable_since = CASE WHEN json_extract(fault, '$.kind') <> ?9 AND ?4 IS NULL THEN ?5"
            " ELSE usable_since END,"
            " fault = ?4, sampled_at = ?5, processes = ?6, loads = ?7, exclusive = ?10, unified = ?11"
            " WHERE uuid = ?8",
            (gpu.total_mib, gpu.used_mib, gpu.load_percent, gpu.fault and gpu.fault.to_json(), at,
             _processes_json(gpu), _recent_loads_json(db, gpu), gpu.uuid, FaultKind.UNREADABLE.value,
             gpu.exclusive, gpu.unified),
        )  # fmt: skip
    if managed is not None:
        listed = json.dumps(list(managed))
        is_managed = "uuid IN (SELECT value FROM json_each(:listed))"
        db.execute(
            "UPDATE gpu SET foreign_loads = '[]', foreign_load_boot = NULL,"
            f" usable_since = CASE WHEN {is_managed} AND NOT managed THEN :at ELSE usable_since END,"
            f" managed = {is_managed}",
            {"listed": listed, "at": at},
        )


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
        "UPDATE gpu SET paused = :paused, usable_since = CASE WHEN :paused THEN usable_since ELSE :now END,"
        " suspicion = CASE WHEN :paused THEN suspicion END"
        " WHERE uuid = :uuid AND (paused <> :paused OR (suspicion IS NOT NULL AND NOT :paused))",
        {"paused": action.paused, "uuid": action.uuid, "now": context.now.wall},
    )
    if cursor.rowcount:
        kind = EventKind.PAUSED if action.paused else EventKind.RESUMED
        details = GpusChanged(context.gpu_indices([action.uuid]), action.cause)
        context.add_event(kind, details=details)


def set_suspicion(context: WriteContext, action: act.SetSuspicion) -> None:
    """Records that a GPU is suspect, or no longer is."""
    found = action.suspicion
    context.db.execute(
        "UPDATE gpu SET suspicion = ? WHERE uuid = ?", (found and found.to_json(), action.uuid)
    )
    gpus = context.gpu_indices([action.uuid])
    if found is None:
        context.add_event(EventKind.SUSPICION_ENDED, details=GpusChanged(gpus))
    else:
        context.add_event(EventKind.SUSPECTED, details=GpuSuspected(gpus, vars(found)))


def record_gpu_time(context: WriteContext, action: act.RecordGpuTime) -> None:
    """Adds GPU time to that of the current hour, and forgets the hours before the counted period."""
    db, hour = context.db, int(action.until // 3600)
    db.execute(
        "INSERT INTO gpu_time VALUES (?, ?, ?) ON CONFLICT (hour) DO UPDATE SET"
        " delivered_s = delivered_s + excluded.delivered_s,"
        " reserved_idle_s = reserved_idle_s + excluded.reserved_idle_s",
        (hour, action.delivered_s, action.reserved_idle_s),
    )
    db.execute("DELETE FROM gpu_time WHERE hour < ?", (hour - PERIOD_HOURS,))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (COUNTED_UNTIL_KEY, repr(action.until)))


def _processes_json(gpu: GpuSample) -> str | None:
    """Returns the processes of a sample in the format of the column `processes`."""
    if gpu.processes is None:
        return None
    return json.dumps([[one.pid, one.used_mib, one.graphics_only] for one in gpu.processes])


def _recent_loads_json(db: sqlite3.Connection, gpu: GpuSample) -> str:
    """Returns the last load samples, including this one, in the format of the column `loads`."""
    row = db.execute("SELECT loads FROM gpu WHERE uuid = ?", (gpu.uuid,)).fetchone()
    return json.dumps([*json.loads(row["loads"]), gpu.load_percent][-_LOADS_KEPT:])
