"""The loop's pen: every action of a round becomes a change of the record, all of them in one transaction."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable
from typing import Any

from gpu_scheduler.core import actions as act
from gpu_scheduler.core.facts import Settings
from gpu_scheduler.core.gpu import GpuSample
from gpu_scheduler.core.jobspec import JobSpec
from gpu_scheduler.core.needs import Ask
from gpu_scheduler.core.now import Now
from gpu_scheduler.core.order import NORMAL
from gpu_scheduler.core.recovery import UNREADABLE
from gpu_scheduler.core.states import CHANGES, JobState, check_change
from gpu_scheduler.store.store import Store

#: Loads of a GPU that are kept: as many as anybody takes the mean of.
_LOADS = 5


class Recorder:
    """Changes of jobs, attempts, GPUs and wishes. Only the loop of the one scheduler has one."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def record(self, actions: Iterable[act.Action], now: Now) -> dict[int, int]:
        """Write a whole round down. Returns the attempt opened for each job that a Start names."""
        opened: dict[int, int] = {}
        actions = list(actions)
        synced = not all(isinstance(action, _TOLD_AGAIN) for action in actions)
        with self._store.db.transaction(synced=synced) as db:
            for action in actions:
                attempt_id = _WRITERS[type(action)](self, db, action, now)
                if isinstance(action, act.Start) and attempt_id is not None:
                    opened[action.job_id] = attempt_id
        return opened

    def note_launch_error(self, attempt_id: int, text: str) -> None:
        """A launch that failed at once: the attempt is not waited for."""
        with self._store.db.transaction() as db:
            db.execute(
                "UPDATE attempt SET launch_error = ?, deadline_boot = 0 WHERE id = ?", (text, attempt_id)
            )

    def note_log(self, attempt_id: int, log: str | None, session: str | None) -> None:
        """Where the attempt's output goes; known once its folder is made."""
        with self._store.db.transaction(synced=False) as db:
            db.execute("UPDATE attempt SET log = ?, session = ? WHERE id = ?", (log, session, attempt_id))

    def note_gpus(self, samples: Iterable[GpuSample], managed: Collection[str] | None, now: Now) -> None:
        """The newest values of every GPU; `managed` = the UUIDs that this run manages, None = as before."""
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
                    (gpu.total_mib, gpu.used_mib, gpu.load_percent, gpu.fault, now.wall,
                     _listed(gpu), _loads(db, gpu), gpu.uuid),
                )  # fmt: skip
            if managed is not None:
                db.execute("UPDATE gpu SET managed = 0")
                db.executemany("UPDATE gpu SET managed = 1 WHERE uuid = ?", [(uuid,) for uuid in managed])

    def note_blind(self, why: str) -> None:
        """The GPUs cannot be read: nothing is known of the managed ones, but that a lost one was lost."""
        with self._store.db.transaction(synced=False) as db:
            db.execute(
                "UPDATE gpu SET used_mib = NULL, load_percent = NULL,"
                " fault = CASE WHEN fault IS NULL OR fault LIKE ? THEN ? ELSE fault END WHERE managed",
                (f"{UNREADABLE}%", UNREADABLE + why),
            )

    def forget_waits(self) -> None:
        """Forget why jobs wait that wait no more."""
        with self._store.db.transaction() as db:
            db.execute(
                "DELETE FROM waiting WHERE NOT EXISTS"
                " (SELECT 1 FROM job WHERE state = 'queued' AND job.ask = waiting.ask)"
            )

    def set_gone(self, gone: Iterable[int]) -> None:
        """The waiting jobs whose lines are not in their file as it stands now; no other job's are."""
        with self._store.db.transaction() as db:
            db.execute("UPDATE job SET gone = 0 WHERE gone")
            db.executemany("UPDATE job SET gone = 1 WHERE id = ?", [(job_id,) for job_id in gone])

    def _move(
        self,
        db: sqlite3.Connection,
        job_id: int,
        state: JobState,
        now: Now,
        reason: str | None,
        **values: Any,
    ) -> None:
        row = db.execute("SELECT state FROM job WHERE id = ?", (job_id,)).fetchone()
        old = JobState(row["state"])
        if state is not old and state not in CHANGES[old]:
            story = tuple(f"{h['state']} {h['reason'] or ''}".strip() for h in self._store.history(job_id))
            check_change(job_id, old, state, story)
        values = {"state": state.value, "reason": reason, **values}
        names = ", ".join(f"{name} = ?" for name in values)
        db.execute(f"UPDATE job SET {names} WHERE id = ?", (*values.values(), job_id))
        if state is not old:
            db.execute("INSERT INTO history VALUES (?, ?, ?, ?)", (job_id, now.wall, state.value, reason))

    def _start(self, db: sqlite3.Connection, action: act.Start, now: Now) -> int:
        row = db.execute(
            "SELECT coalesce(max(number), 0) + 1 AS n FROM attempt WHERE job_id = ?", (action.job_id,)
        ).fetchone()
        cursor = db.execute(
            "INSERT INTO attempt (job_id, number, token, boot_id, gpus, share, baseline, deadline_boot,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (action.job_id, row["n"], secrets.token_hex(16), now.boot_id, json.dumps(action.gpus),
             action.share, json.dumps(dict(action.baseline_mib)),
             now.boot + self._settings.launch_deadline_s, now.wall),
        )  # fmt: skip
        self._move(db, action.job_id, JobState.STARTING, now, None, not_before_boot=None, passed_at=None)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _relaunch(self, db: sqlite3.Connection, action: act.Relaunch, now: Now) -> None:
        deadline = now.boot + self._settings.launch_deadline_s
        db.execute(
            "UPDATE attempt SET launches = launches + 1, deadline_boot = ? WHERE id = ?",
            (deadline, action.attempt_id),
        )

    def _change_state(self, db: sqlite3.Connection, action: act.Move, now: Now) -> None:
        self._move(db, action.job_id, action.state, now, None)
        if action.state is JobState.STOPPING:
            _stamp(db, "stopping_boot", action.attempt_id, now)
        else:
            db.execute(
                "UPDATE attempt SET started_at = coalesce(started_at, ?), stopping_boot = NULL WHERE id = ?",
                (now.wall, action.attempt_id),
            )

    def _signalled(
        self,
        db: sqlite3.Connection,
        action: act.TakeClaim | act.Nudge | act.KillRunner | act.WriteStop,
        now: Now,
    ) -> None:
        _stamp(db, "signalled_boot", action.attempt_id, now)

    def _dead(self, db: sqlite3.Connection, action: act.NoteDead, now: Now) -> None:
        _stamp(db, "dead_boot", action.attempt_id, now)

    def _stray(self, db: sqlite3.Connection, action: act.NoteStray, now: Now) -> None:
        db.execute(
            "UPDATE attempt SET strays = json_insert(strays, '$[#]', json_array(?, ?)) WHERE id = ?",
            (action.uuid, action.pid, action.attempt_id),
        )

    def _sweep(self, db: sqlite3.Connection, action: act.Sweep, now: Now) -> None:
        _stamp(db, "signalled_boot", action.attempt_id, now)
        if not action.kill:
            _stamp(db, "swept_boot", action.attempt_id, now)

    def _close(self, db: sqlite3.Connection, action: act.Close, now: Now) -> None:
        ended_at = action.ended_at if action.ended_at is not None else now.wall
        db.execute(
            "UPDATE attempt SET outcome = ?, exit_code = ?, signal = ?, reason = ?, survivors = ?,"
            " started_at = coalesce(?, started_at), ended_at = ? WHERE id = ?",
            (action.outcome.value, action.exit_code, action.signal, action.reason,
             json.dumps(action.survivors), action.started_at, ended_at, action.attempt_id),
        )  # fmt: skip
        finished = action.state is JobState.FINISHED
        held = action.state is JobState.HELD
        self._move(
            db, action.job_id, action.state, now, action.reason,
            outcome=action.job_outcome.value if action.job_outcome else None,
            exit_code=action.exit_code, signal=action.signal,
            held_by=action.outcome.value if held else None,
            cancel_cause=None, cancel_grace_s=None, launch_failures=action.launch_failures,
            not_before_boot=action.not_before, boot_id=now.boot_id,
            finished_at=ended_at if finished else None,
        )  # fmt: skip

    def _release(self, db: sqlite3.Connection, action: act.Release, now: Now) -> None:
        _stamp(db, "released_boot", action.attempt_id, now)

    def _cooled(self, db: sqlite3.Connection, action: act.Cooled, now: Now) -> None:
        db.execute("UPDATE attempt SET settled = 1 WHERE id = ?", (action.attempt_id,))

    def _finish(self, db: sqlite3.Connection, action: act.Finish, now: Now) -> None:
        self._move(
            db, action.job_id, JobState.FINISHED, now, action.reason,
            outcome=action.outcome.value, finished_at=now.wall, held_by=None,
        )  # fmt: skip

    def _hold(self, db: sqlite3.Connection, action: act.Hold, now: Now) -> None:
        self._move(db, action.job_id, JobState.HELD, now, action.reason, held_by=action.by)

    def _requeue(self, db: sqlite3.Connection, action: act.Requeue, now: Now) -> None:
        self._move(
            db, action.job_id, JobState.QUEUED, now, None, outcome=None, exit_code=None, signal=None,
            held_by=None, launch_failures=0, not_before_boot=None, finished_at=None, cancel_cause=None,
        )  # fmt: skip
        db.execute("UPDATE history SET reason = ? WHERE rowid = last_insert_rowid()", (action.reason,))

    def _open_cancel(self, db: sqlite3.Connection, action: act.OpenCancel, now: Now) -> None:
        db.execute(
            "UPDATE job SET cancel_cause = ?, cancel_grace_s = ? WHERE id = ?",
            (action.cause, action.grace_s, action.job_id),
        )

    def _set_attribute(self, db: sqlite3.Connection, action: act.SetAttribute, now: Now) -> None:
        row = db.execute("SELECT spec FROM job WHERE id = ?", (action.job_id,)).fetchone()
        spec = JobSpec.from_json(json.dumps({**json.loads(row["spec"]), action.name: action.value}))
        db.execute(
            "UPDATE job SET spec = ?, ask = ?, name = ?, priority = ? WHERE id = ?",
            (spec.to_json(), Ask.of(spec).key(), spec.name,
             NORMAL if spec.priority is None else spec.priority, action.job_id),
        )  # fmt: skip

    def _set_places(self, db: sqlite3.Connection, action: act.SetPlaces, now: Now) -> None:
        db.executemany(
            "UPDATE job SET place = ? WHERE id = ?", [(place, job_id) for job_id, place in action.places]
        )

    def _set_paused(self, db: sqlite3.Connection, action: act.SetPaused, now: Now) -> None:
        db.execute("UPDATE gpu SET paused = ? WHERE uuid = ?", (action.paused, action.uuid))

    def _wait(self, db: sqlite3.Connection, action: act.Wait, now: Now) -> None:
        db.execute(
            "INSERT OR REPLACE INTO waiting VALUES (?, ?, ?)", (action.ask, action.reason, action.infeasible)
        )

    def _passed(self, db: sqlite3.Connection, action: act.PassedOver, now: Now) -> None:
        db.execute(
            "UPDATE job SET passed_at = coalesce(passed_at, ?) WHERE id = ?", (now.wall, action.job_id)
        )

    def _wish_done(self, db: sqlite3.Connection, action: act.WishDone, now: Now) -> None:
        db.execute(
            "UPDATE wish SET done_at = ?, answer = ? WHERE id = ?", (now.wall, action.answer, action.wish_id)
        )

    def _nothing(self, db: sqlite3.Connection, action: act.Action, now: Now) -> None:
        """The scheduler's end: nothing to record beforehand."""


def _listed(gpu: GpuSample) -> str | None:
    """The processes of a sample, as the column `processes` has them."""
    if gpu.processes is None:
        return None
    return json.dumps([[one.pid, one.used_mib, one.graphics_only] for one in gpu.processes])


def _loads(db: sqlite3.Connection, gpu: GpuSample) -> str:
    """The last loads, with that of this sample."""
    row = db.execute("SELECT loads FROM gpu WHERE uuid = ?", (gpu.uuid,)).fetchone()
    return json.dumps([*json.loads(row["loads"]), gpu.load_percent][-_LOADS:])


def _stamp(db: sqlite3.Connection, column: str, attempt_id: int, now: Now) -> None:
    db.execute(f"UPDATE attempt SET {column} = ? WHERE id = ?", (now.boot, attempt_id))


#: What a power cut may take from the record: the folders say it again, or no process outlives it.
_TOLD_AGAIN = (act.Move, act.Release, act.Cooled, act.Wait, act.PassedOver, act.EndScheduler)

_WRITERS: dict[type[act.Action], Callable[[Recorder, sqlite3.Connection, Any, Now], int | None]] = {
    act.Start: Recorder._start,
    act.Relaunch: Recorder._relaunch,
    act.TakeClaim: Recorder._signalled,
    act.Move: Recorder._change_state,
    act.WriteStop: Recorder._signalled,
    act.Nudge: Recorder._signalled,
    act.KillRunner: Recorder._signalled,
    act.NoteDead: Recorder._dead,
    act.NoteStray: Recorder._stray,
    act.Sweep: Recorder._sweep,
    act.Close: Recorder._close,
    act.Release: Recorder._release,
    act.Cooled: Recorder._cooled,
    act.Finish: Recorder._finish,
    act.Hold: Recorder._hold,
    act.Requeue: Recorder._requeue,
    act.OpenCancel: Recorder._open_cancel,
    act.SetAttribute: Recorder._set_attribute,
    act.SetPlaces: Recorder._set_places,
    act.SetPaused: Recorder._set_paused,
    act.Wait: Recorder._wait,
    act.PassedOver: Recorder._passed,
    act.WishDone: Recorder._wish_done,
    act.EndScheduler: Recorder._nothing,
}
