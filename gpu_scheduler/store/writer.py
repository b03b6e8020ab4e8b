"""Writes all actions of a round to the store in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from gpu_scheduler.core.model.event import EventKind, GpusChanged, GpuSuspected
from gpu_scheduler.core.model.gpu import FaultKind, GpuFault, GpuSample
from gpu_scheduler.core.model.units import Now
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.history import PERIOD_HOURS
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import write_attempts, write_jobs
from gpu_scheduler.store.attempt_history import COUNTED_UNTIL_KEY
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.write_jobs import WriteContext

#: Number of load samples to keep for each GPU, which is enough for every mean load.
_LOADS_KEPT = 5


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
        context.add_event(EventKind.SUSPECTED, details=GpuSuspected(gpus, asdict(found)))


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


#: The SQL statement for each action that changes only one row. Its parameters are the fields of the action,
#: with tuples as JSON, and the time of the round as :boot and :wall.
_UPDATES: Mapping[type[act.Action], str] = {
    act.ResetLaunchCount: "UPDATE attempt SET launch_count = 0 WHERE id = :attempt_id",
    act.VoidClaim: "UPDATE attempt SET signalled_boot = :boot WHERE id = :attempt_id",
    act.RequestStop: "UPDATE attempt SET signalled_boot = :boot, stopping_boot = :boot"
    " WHERE id = :attempt_id",
    act.WakeRunner: "UPDATE attempt SET signalled_boot = :boot WHERE id = :attempt_id",
    act.KillRunner: "UPDATE attempt SET signalled_boot = :boot WHERE id = :attempt_id",
    act.Sweep: "UPDATE attempt SET signalled_boot = :boot,"
    " swept_boot = CASE WHEN :kill THEN swept_boot ELSE :boot END WHERE id = :attempt_id",
    act.RecordRunner: "UPDATE attempt SET runner_pid = :pid, runner_start_ticks = :start_ticks"
    " WHERE id = :attempt_id",
    act.RecordWindowClosed: "UPDATE attempt SET window_closed = 1 WHERE id = :attempt_id",
    act.RecordForeignLoad: "UPDATE gpu SET foreign_loads = :loads, foreign_load_boot = :sampled_at"
    " WHERE uuid = :uuid",
    act.RecordForeignPeaks: "UPDATE gpu SET foreign_peaks = :peaks WHERE uuid = :uuid",
    act.ClearJob: "UPDATE job SET cleared_at = coalesce(cleared_at, :wall) WHERE id = :job_id",
    # A job that has been started stays confirmed, because its attempt is here.
    act.SetConfirmed: "UPDATE job SET source_missing = NOT :confirmed, queued_at = :wall,"
    " line_wait = CASE WHEN NOT :confirmed THEN json_object('kind', 'not confirmed') END WHERE id = :job_id"
    " AND CASE WHEN :confirmed THEN json_extract(line_wait, '$.kind') = 'not confirmed'"
    " ELSE NOT EXISTS (SELECT 1 FROM attempt WHERE job_id = :job_id) END",
    act.ClearFinished: "UPDATE job SET cleared_at = :wall WHERE state = 'finished' AND cleared_at IS NULL",
}

#: The kind of event that each of these actions adds.
_ATTEMPT_EVENTS = {
    act.KillRunner: EventKind.RUNNER_KILLED,
    act.RecordWindowClosed: EventKind.WINDOW_CLOSED,
}

#: The function that records each of the other actions that change the store.
_RECORD: Mapping[type[act.Action], Callable[[WriteContext, Any], int | None]] = {
    act.Start: write_attempts.start,
    act.Relaunch: write_attempts.relaunch,
    act.Transition: write_attempts.record_transition,
    act.RecordRunnerDeath: write_attempts.record_runner_death,
    act.RecordMisplacedProcess: write_attempts.record_misplaced_process,
    act.RecordUsage: write_attempts.record_usage,
    act.RecordOveruse: write_attempts.record_overuse,
    act.FinishAttempt: write_attempts.finish_attempt,
    act.RecordStop: write_jobs.record_stop,
    act.ClearStop: write_jobs.clear_stop,
    act.ReleaseAllocation: write_attempts.release_allocation,
    act.RecordMemoryReleased: write_attempts.record_memory_released,
    act.SetPaused: set_paused,
    act.SetSuspicion: set_suspicion,
    act.FinishJob: write_jobs.finish_job,
    act.HoldJob: write_jobs.hold_job,
    act.RequeueJob: write_jobs.requeue_job,
    act.SetAttribute: write_jobs.set_attribute,
    act.SetDependencies: write_jobs.set_dependencies,
    act.SettleDependencies: write_jobs.settle_dependencies,
    act.SetQueuePositions: write_jobs.set_queue_positions,
    act.Reserve: write_jobs.reserve,
    act.DropReservation: write_jobs.drop_reservation,
    act.SetQueueReservation: write_jobs.set_queue_reservation,
    act.RecordGpuTime: record_gpu_time,
    act.SetWaitReason: write_jobs.set_wait_reason,
    act.AnswerRequest: write_jobs.answer_request,
}

#: Actions that a power cut may undo, because the attempt folders record them too or because the power cut
#: ends the processes concerned.
_REPEATABLE = (
    act.RecordUsage, act.RecordForeignLoad, act.RecordForeignPeaks, act.RecordRunner, act.Transition,
    act.ReleaseAllocation, act.RecordMemoryReleased, act.SetWaitReason, act.RecordGpuTime,
    act.EndScheduler,
)  # fmt: skip


class StoreWriter:
    """Changes jobs, attempts, GPUs and requests. Only the scheduler's loop has one.

    executor: the name of the executor that launches new attempts.
    """

    def __init__(self, store: Store, settings: Settings, executor: str = "direct") -> None:
        self._store = store
        self._settings = settings
        self._executor = executor

    def record(self, actions: Iterable[act.Action], now: Now) -> dict[int, int]:
        """Records all actions of a round. Returns the ids of the attempts that it opened, by job id."""
        opened: dict[int, int] = {}
        actions = list(actions)
        synced = not all(isinstance(action, _REPEATABLE) for action in actions)
        with self._store.db.transaction(synced=synced) as db:
            context = WriteContext(self._store, db, self._settings, now, self._executor)
            for action in actions:
                if type(action) in _UPDATES:
                    _update(context, action)
                elif not isinstance(action, act.EndScheduler):
                    attempt_id = _RECORD[type(action)](context, action)
                    if isinstance(action, act.Start) and attempt_id is not None:
                        opened[action.job_id] = attempt_id
        return opened

    def record_launch_error(self, attempt_id: int, text: str) -> None:
        """Records that a launch failed immediately, and sets the attempt's launch deadline to the past."""
        with self._store.db.transaction() as db:
            db.execute(
                "UPDATE attempt SET launch_error = ?, launch_deadline_boot = 0 WHERE id = ?",
                (text, attempt_id),
            )

    def record_shortage(self, attempt_id: int) -> None:
        """Records that a shortage prevented a launch, which then does not count. The next one is due now."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE attempt SET launch_count = max(launch_count - 1, 0), launch_deadline_boot = 0"
                " WHERE id = ?",
                (attempt_id,),
            )

    def record_log(self, attempt_id: int, log: str | None, session: str | None) -> None:
        """Records the attempt's log and session, which are known once its folder exists."""
        with self._store.db.transaction(synced=False) as db:
            db.execute("UPDATE attempt SET log = ?, session = ? WHERE id = ?", (log, session, attempt_id))

    def record_gpus(self, samples: Iterable[GpuSample], managed: Collection[str] | None, now: Now) -> None:
        """Records the newest samples. managed: the UUIDs of the managed GPUs, or None if unchanged."""
        at = now.wall
        with self._store.db.transaction(synced=False) as db:
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

    def record_probe_failure(self, cause: str) -> None:
        """Records that the GPUs cannot be read. Memory and load become unknown, but a lost GPU stays lost."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE gpu SET used_mib = NULL, load_percent = NULL,"
                " fault = CASE WHEN fault IS NULL OR json_extract(fault, '$.kind') = ? THEN ? ELSE fault END"
                " WHERE managed",
                (FaultKind.UNREADABLE.value, GpuFault(FaultKind.UNREADABLE, cause).to_json()),
            )

    def forget_wait_reasons(self) -> None:
        """Deletes the wait reasons and the changes of pending groups without queued jobs.

        A reader of the pending groups that exists already may miss these changes.
        """
        with self._store.db.transaction() as db:
            for table in ("pending_group", "group_change"):
                db.execute(
                    f"DELETE FROM {table} WHERE NOT EXISTS"
                    " (SELECT 1 FROM job WHERE state = 'queued' AND unmet_parents = 0 AND adopted IS NULL"
                    f" AND job.spec_key = {table}.spec_key)"
                )

    def set_line_waits(self, waits: Mapping[int, WaitReason]) -> None:
        """Records which jobs must not start because of their lines, and why. Forgets all earlier records."""
        with self._store.db.transaction() as db:
            db.execute(
                "UPDATE job SET source_missing = 0, line_wait = NULL WHERE source_missing"
                " AND json_extract(line_wait, '$.kind') IS NOT ?",
                (WaitKind.NOT_CONFIRMED.value,),
            )
            db.executemany(
                "UPDATE job SET source_missing = 1, line_wait = ? WHERE id = ?",
                [(wait.to_json(), job_id) for job_id, wait in waits.items()],
            )


def _update(context: WriteContext, action: Any) -> None:
    """Records an action with its statement in `_UPDATES`."""
    values = {
        name: json.dumps(one) if isinstance(one, tuple) else one for name, one in asdict(action).items()
    }
    context.db.execute(_UPDATES[type(action)], {**values, "boot": context.now.boot, "wall": context.now.wall})
    if type(action) in _ATTEMPT_EVENTS:
        context.add_attempt_event(_ATTEMPT_EVENTS[type(action)], action.attempt_id)
