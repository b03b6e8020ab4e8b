"""Writes the actions of a round to the store, all of them in one transaction."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpu_scheduler.core.model.gpu import GpuSample
from gpu_scheduler.core.model.gpu_fault import FaultKind, GpuFault
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import TRANSITIONS, JobState, check_transition
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.accounting import Allocation, declared_mib
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.order import NORMAL_PRIORITY
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.events import WAIT_KEY
from gpu_scheduler.store.measurements import record_measurement
from gpu_scheduler.store.store import Store

#: Number of load samples kept per GPU; no mean is taken over more.
_LOADS_KEPT = 5
#: Of the jobs that are infeasible for one reason, the number that get an event.
_MAX_INFEASIBLE_EVENTS = 5
_NO_DATA: Mapping[str, Any] = {}


class StoreWriter:
    """Changes jobs, attempts, GPUs and requests. Only the scheduler's loop has one."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def record(self, actions: Iterable[act.Action], now: Now) -> dict[int, int]:
        """Records a whole round. Returns job id -> attempt id for each attempt that a Start opened."""
        opened: dict[int, int] = {}
        actions = list(actions)
        synced = not all(isinstance(action, _REPEATABLE) for action in actions)
        with self._store.db.transaction(synced=synced) as db:
            for action in actions:
                attempt_id = _WRITERS[type(action)](self, db, action, now)
                if isinstance(action, act.Start) and attempt_id is not None:
                    opened[action.job_id] = attempt_id
        return opened

    def record_launch_error(self, attempt_id: int, text: str) -> None:
        """Records that a launch failed at once, so that the attempt's deadline is over."""
        with self._store.db.transaction() as db:
            db.execute(
                "UPDATE attempt SET launch_error = ?, deadline_boot = 0 WHERE id = ?", (text, attempt_id)
            )

    def record_shortage(self, attempt_id: int) -> None:
        """Records that a shortage prevented a launch: it does not count, and the next launch is due."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE attempt SET launches = max(launches - 1, 0), deadline_boot = 0 WHERE id = ?",
                (attempt_id,),
            )

    def record_log(self, attempt_id: int, log: str | None, session: str | None) -> None:
        """Records the attempt's log and session, which are known once its folder exists."""
        with self._store.db.transaction(synced=False) as db:
            db.execute("UPDATE attempt SET log = ?, session = ? WHERE id = ?", (log, session, attempt_id))

    def record_gpus(self, samples: Iterable[GpuSample], managed: Collection[str] | None, now: Now) -> None:
        """Records the newest sample. managed: UUIDs of the GPUs that this run manages, None = as before."""
        with self._store.db.transaction(synced=False) as db:
            for gpu in samples:
                db.execute(
                    "INSERT INTO gpu (uuid, idx, name, managed) VALUES (?, ?, ?, 0) ON CONFLICT (uuid)"
                    " DO UPDATE SET idx = excluded.idx, name = excluded.name",
                    (gpu.uuid, gpu.index, gpu.name),
                )
                db.execute(
                    "UPDATE gpu SET total_mib = coalesce(?, total_mib), used_mib = ?, load_percent = ?,"
                    " fault = ?, sampled_at = ?, processes = ?, loads = ? WHERE uuid = ?",
                    (gpu.total_mib, gpu.used_mib, gpu.load_percent,
                     gpu.fault and gpu.fault.to_json(), now.wall, _processes_json(gpu),
                     _recent_loads_json(db, gpu), gpu.uuid),
                )  # fmt: skip
            if managed is not None:
                db.execute("UPDATE gpu SET managed = 0, foreign_loads = '[]', foreign_load_at = NULL")
                db.executemany("UPDATE gpu SET managed = 1 WHERE uuid = ?", [(uuid,) for uuid in managed])

    def record_probe_failure(self, cause: str) -> None:
        """Records that the GPUs cannot be read: their values become unknown, but a lost GPU stays lost."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE gpu SET used_mib = NULL, load_percent = NULL,"
                " fault = CASE WHEN fault IS NULL OR json_extract(fault, '$.kind') = ? THEN ? ELSE fault END"
                " WHERE managed",
                (FaultKind.UNREADABLE.value, GpuFault(FaultKind.UNREADABLE, cause).to_json()),
            )

    def forget_wait_reasons(self) -> None:
        """Deletes the wait reasons of resource specs without queued jobs."""
        with self._store.db.transaction() as db:
            db.execute(
                "DELETE FROM waiting WHERE NOT EXISTS"
                " (SELECT 1 FROM job WHERE state = 'queued' AND job.ask = waiting.ask)"
            )

    def set_line_waits(self, waits: Mapping[int, WaitReason]) -> None:
        """Replaces the set of jobs that must not start because of their lines, with the reasons."""
        with self._store.db.transaction() as db:
            db.execute("UPDATE job SET gone = 0, line_wait = NULL WHERE gone")
            db.executemany(
                "UPDATE job SET gone = 1, line_wait = ? WHERE id = ?",
                [(wait.to_json(), job_id) for job_id, wait in waits.items()],
            )

    def _change_job_state(
        self,
        db: sqlite3.Connection,
        job_id: int,
        state: JobState,
        now: Now,
        reason: StateReason | None,
        data: Mapping[str, Any] = _NO_DATA,
        **values: Any,
    ) -> None:
        row = db.execute("SELECT state FROM job WHERE id = ?", (job_id,)).fetchone()
        old = JobState(row["state"])
        if state is not old and state not in TRANSITIONS[old]:
            story = tuple(f"{h['state']} {h['reason'] or ''}".strip() for h in self._store.history(job_id))
            check_transition(job_id, old, state, story)
        stored = None if reason is None else reason.to_json()
        values = {"state": state.value, "reason": stored, **values}
        names = ", ".join(f"{name} = ?" for name in values)
        db.execute(f"UPDATE job SET {names} WHERE id = ?", (*values.values(), job_id))
        if state is not old:
            _add_event(db, now, state.value, job_id, stored, data)

    def _start(self, db: sqlite3.Connection, action: act.Start, now: Now) -> int:
        row = db.execute(
            "SELECT coalesce(max(number), 0) + 1 AS n FROM attempt WHERE job_id = ?", (action.job_id,)
        ).fetchone()
        cursor = db.execute(
            "INSERT INTO attempt (job_id, number, token, boot_id, gpus, share, baseline, deadline_boot,"
            " created_at, vram, whole, learned, budgets) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (action.job_id, row["n"], secrets.token_hex(16), now.boot_id, json.dumps(action.gpus),
             action.share, json.dumps(dict(action.baseline_mib)),
             now.boot + self._settings.launch_deadline_s, now.wall, action.vram, action.whole,
             action.learned, json.dumps(self._budgets(action))),
        )  # fmt: skip
        data = {
            "attempt": row["n"], "gpus": self._indices(action.gpus),
            "share": action.share, "vram": action.vram, "exclusive": action.whole, "learned": action.learned,
            "assumed": action.assumed,
        }  # fmt: skip
        self._change_job_state(
            db, action.job_id, JobState.STARTING, now, None, data, not_before_boot=None, passed_at=None
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _budgets(self, action: act.Start) -> dict[str, int | None]:
        """Returns UUID -> MiB that the attempt declares there; empty: it declares nothing."""
        allocation = Allocation(action.share, action.vram, action.whole)
        if action.assumed or not (action.share or action.vram):
            return {}
        totals = {row["uuid"]: row["total_mib"] for row in self._store.gpus()}
        return {uuid: declared_mib(allocation, totals.get(uuid)) for uuid in action.gpus}

    def _relaunch(self, db: sqlite3.Connection, action: act.Relaunch, now: Now) -> None:
        deadline = now.boot + self._settings.launch_deadline_s
        again = db.execute("SELECT launches FROM attempt WHERE id = ?", (action.attempt_id,)).fetchone()[0]
        db.execute(
            "UPDATE attempt SET launches = launches + 1, deadline_boot = ? WHERE id = ?",
            (deadline, action.attempt_id),
        )
        if again:
            _add_attempt_event(db, now, "relaunched", action.attempt_id)

    def _forget_launches(self, db: sqlite3.Connection, action: act.ResetLaunchCount, now: Now) -> None:
        db.execute("UPDATE attempt SET launches = 0 WHERE id = ?", (action.attempt_id,))

    def _transition(self, db: sqlite3.Connection, action: act.Transition, now: Now) -> None:
        self._change_job_state(db, action.job_id, action.state, now, None)
        if action.state is JobState.STOPPING:
            _stamp_boot_time(db, "stopping_boot", action.attempt_id, now)
        else:
            db.execute(
                "UPDATE attempt SET started_at = coalesce(started_at, ?), stopping_boot = NULL WHERE id = ?",
                (now.wall, action.attempt_id),
            )

    def _stamp_signalled(
        self,
        db: sqlite3.Connection,
        action: act.VoidClaim | act.WakeRunner | act.RequestStop,
        now: Now,
    ) -> None:
        _stamp_boot_time(db, "signalled_boot", action.attempt_id, now)

    def _record_runner_kill(self, db: sqlite3.Connection, action: act.KillRunner, now: Now) -> None:
        _stamp_boot_time(db, "signalled_boot", action.attempt_id, now)
        _add_attempt_event(db, now, "runner killed", action.attempt_id)

    def _record_runner(self, db: sqlite3.Connection, action: act.RecordRunner, now: Now) -> None:
        db.execute(
            "UPDATE attempt SET runner_pid = ?, runner_ticks = ? WHERE id = ?",
            (action.pid, action.start_ticks, action.attempt_id),
        )

    def _record_runner_death(self, db: sqlite3.Connection, action: act.RecordRunnerDeath, now: Now) -> None:
        _stamp_boot_time(db, "dead_boot", action.attempt_id, now)
        _add_attempt_event(db, now, "runner lost", action.attempt_id)

    def _record_misplaced_process(
        self, db: sqlite3.Connection, action: act.RecordMisplacedProcess, now: Now
    ) -> None:
        db.execute(
            "UPDATE attempt SET strays = json_insert(strays, '$[#]', json_array(?, ?)) WHERE id = ?",
            (action.uuid, action.pid, action.attempt_id),
        )
        data = {"gpu": self._indices([action.uuid])[0], "pid": action.pid}
        _add_attempt_event(db, now, "misplaced process", action.attempt_id, data)

    def _record_window_closed(self, db: sqlite3.Connection, action: act.RecordWindowClosed, now: Now) -> None:
        db.execute("UPDATE attempt SET window_closed = 1 WHERE id = ?", (action.attempt_id,))
        _add_attempt_event(db, now, "window closed", action.attempt_id)

    def _record_usage(self, db: sqlite3.Connection, action: act.RecordUsage, now: Now) -> None:
        row = db.execute("SELECT peaks, loads FROM attempt WHERE id = ?", (action.attempt_id,)).fetchone()
        peaks, loads = json.loads(row["peaks"]), json.loads(row["loads"])
        for uuid, mib, load in action.usage:
            if mib is not None:
                peaks[uuid] = max(mib, peaks.get(uuid, 0))
            if load is not None:
                total, samples = loads.get(uuid, (0.0, 0))
                loads[uuid] = [total + load, samples + 1]
        db.execute(
            "UPDATE attempt SET peaks = ?, loads = ?, measured_boot = ? WHERE id = ?",
            (json.dumps(peaks), json.dumps(loads), action.sampled_at, action.attempt_id),
        )

    def _record_overuse(self, db: sqlite3.Connection, action: act.RecordOveruse, now: Now) -> None:
        db.execute(
            "UPDATE attempt SET exceeded = json_insert(exceeded, '$[#]', ?) WHERE id = ?",
            (action.uuid, action.attempt_id),
        )
        data = {
            "gpu": self._indices([action.uuid])[0], "observed": action.used_mib,
            "declared": action.declared_mib, "share": action.share,
        }  # fmt: skip
        _add_attempt_event(db, now, "exceeded", action.attempt_id, data)

    def _record_foreign_load(self, db: sqlite3.Connection, action: act.RecordForeignLoad, now: Now) -> None:
        db.execute(
            "UPDATE gpu SET foreign_loads = ?, foreign_load_at = ? WHERE uuid = ?",
            (json.dumps(action.loads), action.sampled_at, action.uuid),
        )

    def _record_foreign_peaks(self, db: sqlite3.Connection, action: act.RecordForeignPeaks, now: Now) -> None:
        db.execute("UPDATE gpu SET held = ? WHERE uuid = ?", (json.dumps(action.peaks), action.uuid))

    def _sweep(self, db: sqlite3.Connection, action: act.Sweep, now: Now) -> None:
        _stamp_boot_time(db, "signalled_boot", action.attempt_id, now)
        if not action.kill:
            _stamp_boot_time(db, "swept_boot", action.attempt_id, now)

    def _finish_attempt(self, db: sqlite3.Connection, action: act.FinishAttempt, now: Now) -> None:
        ended_at = action.ended_at if action.ended_at is not None else now.wall
        db.execute(
            "UPDATE attempt SET outcome = ?, exit_code = ?, signal = ?, reason = ?, survivors = ?,"
            " started_at = coalesce(?, started_at), ended_at = ? WHERE id = ?",
            (action.outcome.value, action.exit_code, action.signal,
             None if action.reason is None else action.reason.to_json(),
             json.dumps(action.survivors), action.started_at, ended_at, action.attempt_id),
        )  # fmt: skip
        row = db.execute(
            "SELECT attempt.*, job.spec, job.raised_mib FROM attempt JOIN job ON job.id = attempt.job_id"
            " WHERE attempt.id = ?",
            (action.attempt_id,),
        ).fetchone()
        record_measurement(db, row, now.wall)
        raised: dict[str, Any] = {}
        if action.min_vram_mib is not None:
            resource_spec = ResourceSpec.of(
                JobSpec.from_json(row["spec"]), action.min_vram_mib, learn_needs=self._store.learning
            )
            raised = {"raised_mib": action.min_vram_mib, "ask": resource_spec.key()}
        finished = action.state is JobState.FINISHED
        held = action.state is JobState.HELD
        self._change_job_state(
            db, action.job_id, action.state, now, action.reason, self._attempt_end_data(row, action),
            outcome=action.job_outcome.value if action.job_outcome else None,
            exit_code=action.exit_code, signal=action.signal,
            held_by=action.outcome.value if held else None,
            cancel_cause=None, cancel_grace_s=None, launch_failures=action.launch_failures,
            not_before_boot=action.not_before, boot_id=now.boot_id,
            oom_used=action.oom_retries_used, fail_used=action.fail_retries_used,
            finished_at=ended_at if finished else None, **raised,
        )  # fmt: skip

    def _attempt_end_data(self, row: sqlite3.Row, action: act.FinishAttempt) -> dict[str, Any]:
        """Returns the event data of an attempt's end. gpus: indices, in the order of the other lists."""
        uuids, peaks, loads, budgets = (
            json.loads(row[name]) for name in ("gpus", "peaks", "loads", "budgets")
        )
        sums = [loads[uuid] for uuid in uuids if uuid in loads]
        samples = sum(count for _, count in sums)
        started, ended = row["started_at"], row["ended_at"]
        return {
            "attempt": row["number"], "outcome": action.outcome.value,
            "exit_code": action.exit_code, "signal": action.signal,
            "seconds": None if started is None else max(0.0, ended - started),
            "gpus": self._indices(uuids), "peaks": [peaks.get(uuid) for uuid in uuids],
            "declared": row["vram"] if budgets else None, "learned": bool(row["learned"]),
            "budgets": [budgets.get(uuid) for uuid in uuids] if budgets else None, "share": row["share"],
            "load": sum(total for total, _ in sums) / samples if samples else None,
            "log": row["log"], "survivors": list(action.survivors), "min_vram": action.min_vram_mib,
        }  # fmt: skip

    def _indices(self, uuids: Iterable[str]) -> list[int]:
        index = self._store.gpu_indices()
        return [index.get(uuid, -1) for uuid in uuids]

    def _release_allocation(self, db: sqlite3.Connection, action: act.ReleaseAllocation, now: Now) -> None:
        _stamp_boot_time(db, "released_boot", action.attempt_id, now)

    def _record_memory_released(
        self, db: sqlite3.Connection, action: act.RecordMemoryReleased, now: Now
    ) -> None:
        db.execute("UPDATE attempt SET settled = 1 WHERE id = ?", (action.attempt_id,))

    def _finish_job(self, db: sqlite3.Connection, action: act.FinishJob, now: Now) -> None:
        self._change_job_state(
            db, action.job_id, JobState.FINISHED, now, action.reason, {"outcome": action.outcome.value},
            outcome=action.outcome.value, finished_at=now.wall, held_by=None,
        )  # fmt: skip

    def _hold_job(self, db: sqlite3.Connection, action: act.HoldJob, now: Now) -> None:
        self._change_job_state(db, action.job_id, JobState.HELD, now, action.reason, held_by=action.by)

    def _requeue_job(self, db: sqlite3.Connection, action: act.RequeueJob, now: Now) -> None:
        row = db.execute("SELECT * FROM job WHERE id = ?", (action.job_id,)).fetchone()
        resource_spec = ResourceSpec.of(
            JobSpec.from_json(row["spec"]), row["raised_mib"], learn_needs=self._store.learning
        )
        # A job that was held while it waited for a retry gets no additional retries.
        kept = row["held_by"] in ("user", "line")
        self._change_job_state(
            db, action.job_id, JobState.QUEUED, now, None, outcome=None, exit_code=None, signal=None,
            held_by=None, launch_failures=0, not_before_boot=None, finished_at=None, cancel_cause=None,
            oom_used=row["oom_used"] if kept else 0, fail_used=row["fail_used"] if kept else 0,
            ask=resource_spec.key(),
        )  # fmt: skip
        db.execute(
            "UPDATE history SET reason = ? WHERE rowid = last_insert_rowid()", (action.reason.to_json(),)
        )

    def _open_cancel(self, db: sqlite3.Connection, action: act.RecordCancel, now: Now) -> None:
        db.execute(
            "UPDATE job SET cancel_cause = ?, cancel_grace_s = ? WHERE id = ?",
            (action.cause, action.grace_s, action.job_id),
        )

    def _set_attribute(self, db: sqlite3.Connection, action: act.SetAttribute, now: Now) -> None:
        row = db.execute("SELECT spec, raised_mib FROM job WHERE id = ?", (action.job_id,)).fetchone()
        # Memory that the user sets overrides the memory that an earlier attempt needed.
        raised = None if action.name == "vram" else row["raised_mib"]
        spec = JobSpec.from_json(json.dumps({**json.loads(row["spec"]), action.name: action.value}))
        db.execute(
            "UPDATE job SET spec = ?, ask = ?, name = ?, priority = ?, raised_mib = ? WHERE id = ?",
            (spec.to_json(), ResourceSpec.of(spec, raised, learn_needs=self._store.learning).key(), spec.name,
             NORMAL_PRIORITY if spec.priority is None else spec.priority, raised, action.job_id),
        )  # fmt: skip

    def _set_queue_positions(self, db: sqlite3.Connection, action: act.SetQueuePositions, now: Now) -> None:
        db.executemany(
            "UPDATE job SET place = ? WHERE id = ?", [(place, job_id) for job_id, place in action.positions]
        )

    def _set_paused(self, db: sqlite3.Connection, action: act.SetPaused, now: Now) -> None:
        cursor = db.execute(
            "UPDATE gpu SET paused = ? WHERE uuid = ? AND paused <> ?",
            (action.paused, action.uuid, action.paused),
        )
        if cursor.rowcount:
            data = {"gpus": self._indices([action.uuid])}
            _add_event(db, now, "paused" if action.paused else "resumed", 0, action.reason, data)

    def _set_wait_reason(self, db: sqlite3.Connection, action: act.SetWaitReason, now: Now) -> None:
        db.execute(
            "INSERT OR REPLACE INTO waiting (ask, reason) VALUES (?, ?)",
            (action.spec_key, action.reason.to_json()),
        )
        if action.reason.is_infeasible:
            rows = db.execute(
                "SELECT id FROM job WHERE state = 'queued' AND ask = ? ORDER BY id LIMIT ?",
                (action.spec_key, _MAX_INFEASIBLE_EVENTS),
            ).fetchall()
            for row in rows:
                data = {WAIT_KEY: action.reason.to_json()}
                _add_event(db, now, "infeasible", row["id"], None, data)

    def _record_bypassed(self, db: sqlite3.Connection, action: act.RecordBypassed, now: Now) -> None:
        db.execute(
            "UPDATE job SET passed_at = coalesce(passed_at, ?) WHERE id = ?", (now.wall, action.job_id)
        )

    def _answer_request(self, db: sqlite3.Connection, action: act.AnswerRequest, now: Now) -> None:
        db.execute(
            "UPDATE wish SET done_at = ?, answer = ? WHERE id = ?",
            (now.wall, action.answer.to_json(), action.request_id),
        )

    def _record_nothing(self, db: sqlite3.Connection, action: act.Action, now: Now) -> None:
        """Records nothing: the end of the scheduler needs no entry."""


def _add_event(
    db: sqlite3.Connection,
    now: Now,
    kind: str,
    job_id: int,
    reason: str | None = None,
    data: Mapping[str, Any] = _NO_DATA,
) -> None:
    """Adds an event: a row of `history`."""
    db.execute(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?)", (job_id, now.wall, kind, reason, json.dumps(dict(data)))
    )


def _add_attempt_event(
    db: sqlite3.Connection, now: Now, kind: str, attempt_id: int, data: Mapping[str, Any] = _NO_DATA
) -> None:
    row = db.execute("SELECT job_id, number FROM attempt WHERE id = ?", (attempt_id,)).fetchone()
    _add_event(db, now, kind, row["job_id"], None, {"attempt": row["number"], **data})


def _processes_json(gpu: GpuSample) -> str | None:
    """Returns the processes of a sample in the form of the column `processes`."""
    if gpu.processes is None:
        return None
    return json.dumps([[one.pid, one.used_mib, one.graphics_only] for one in gpu.processes])


def _recent_loads_json(db: sqlite3.Connection, gpu: GpuSample) -> str:
    """Returns the last load samples including this one, in the form of the column `loads`."""
    row = db.execute("SELECT loads FROM gpu WHERE uuid = ?", (gpu.uuid,)).fetchone()
    return json.dumps([*json.loads(row["loads"]), gpu.load_percent][-_LOADS_KEPT:])


def _stamp_boot_time(db: sqlite3.Connection, column: str, attempt_id: int, now: Now) -> None:
    db.execute(f"UPDATE attempt SET {column} = ? WHERE id = ?", (now.boot, attempt_id))


#: Actions that a power cut may undo: the folders have them too, or they concern processes that it ends.
_REPEATABLE = (
    act.RecordUsage, act.RecordForeignLoad, act.RecordForeignPeaks, act.RecordRunner, act.Transition,
    act.ReleaseAllocation, act.RecordMemoryReleased, act.SetWaitReason, act.RecordBypassed, act.EndScheduler,
)  # fmt: skip

_WRITERS: dict[type[act.Action], Callable[[StoreWriter, sqlite3.Connection, Any, Now], int | None]] = {
    act.Start: StoreWriter._start,
    act.Relaunch: StoreWriter._relaunch,
    act.ResetLaunchCount: StoreWriter._forget_launches,
    act.VoidClaim: StoreWriter._stamp_signalled,
    act.Transition: StoreWriter._transition,
    act.RequestStop: StoreWriter._stamp_signalled,
    act.WakeRunner: StoreWriter._stamp_signalled,
    act.KillRunner: StoreWriter._record_runner_kill,
    act.RecordRunner: StoreWriter._record_runner,
    act.RecordRunnerDeath: StoreWriter._record_runner_death,
    act.RecordMisplacedProcess: StoreWriter._record_misplaced_process,
    act.RecordWindowClosed: StoreWriter._record_window_closed,
    act.RecordUsage: StoreWriter._record_usage,
    act.RecordOveruse: StoreWriter._record_overuse,
    act.RecordForeignLoad: StoreWriter._record_foreign_load,
    act.RecordForeignPeaks: StoreWriter._record_foreign_peaks,
    act.Sweep: StoreWriter._sweep,
    act.FinishAttempt: StoreWriter._finish_attempt,
    act.ReleaseAllocation: StoreWriter._release_allocation,
    act.RecordMemoryReleased: StoreWriter._record_memory_released,
    act.FinishJob: StoreWriter._finish_job,
    act.HoldJob: StoreWriter._hold_job,
    act.RequeueJob: StoreWriter._requeue_job,
    act.RecordCancel: StoreWriter._open_cancel,
    act.SetAttribute: StoreWriter._set_attribute,
    act.SetQueuePositions: StoreWriter._set_queue_positions,
    act.SetPaused: StoreWriter._set_paused,
    act.SetWaitReason: StoreWriter._set_wait_reason,
    act.RecordBypassed: StoreWriter._record_bypassed,
    act.AnswerRequest: StoreWriter._answer_request,
    act.EndScheduler: StoreWriter._record_nothing,
}
