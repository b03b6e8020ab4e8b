"""Writes all actions of a round to the store in one transaction, and the samples of the GPUs."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gpu_scheduler.core.model.event import (
    AttemptDetails,
    AttemptEnded,
    AttemptStarted,
    EventDetails,
    EventKind,
    GpusChanged,
    GpusReserved,
    GpuSuspected,
    JobEnded,
    MisplacedProcess,
    Overuse,
    ReservationDropped,
    StopStarted,
)
from gpu_scheduler.core.model.gpu import FaultKind, GpuFault, GpuSample
from gpu_scheduler.core.model.job import ActiveAttempt, Allocation, Checkpoint, Job
from gpu_scheduler.core.model.job_spec import ParentStatus, status_of
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome, check_transition
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.history import PERIOD_HOURS
from gpu_scheduler.core.scheduling.placement import declared_mib
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import job_lists
from gpu_scheduler.store.attempt_history import COUNTED_UNTIL_KEY, record_measurement, record_run_time
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.events import history_in_errors
from gpu_scheduler.store.records import ATTEMPTS, GPUS, JOBS, stored
from gpu_scheduler.store.store import Store, insert_dependencies

#: Number of load samples to keep for each GPU, which is enough for every mean load.
_LOADS_KEPT = 5


class WriteContext(Struct, frozen=True, dict=True):
    """An open transaction. now: the time of the round; executor: the executor of new attempts."""

    store: Store
    db: sqlite3.Connection
    settings: Settings
    now: Now
    executor: str

    @cached_property
    def _gpus(self) -> dict[str, tuple[int, int | None]]:
        rows = self.db.execute("SELECT uuid, idx, total_mib FROM gpu").fetchall()
        return {uuid: (index, total_mib) for uuid, index, total_mib in rows}

    def gpu_indices(self, gpus: Iterable[str]) -> list[int]:
        """Returns the indices of the given GPUs, with -1 for each unknown GPU."""
        return [self._gpus[gpu][0] if gpu in self._gpus else -1 for gpu in gpus]

    def gpu_total_mib(self, gpu: str) -> int | None:
        """Returns the memory size of a GPU, or None if it is unknown."""
        return self._gpus[gpu][1] if gpu in self._gpus else None

    def add_event(
        self,
        kind: EventKind,
        job_id: int = 0,
        reason: StateReason | WaitReason | None = None,
        details: EventDetails | None = None,
    ) -> None:
        """Adds an event. job_id: 0 if it is not about a job."""
        data = {} if details is None else details.data()
        insert(
            self.db, "event", job_id=job_id, at=self.now.wall, kind=kind.value, reason=stored(reason),
            data=json.dumps(data),
        )  # fmt: skip

    def add_attempt_event(self, kind: EventKind, attempt_id: int) -> None:
        """Adds an event about an attempt."""
        job_id, number = self.db.execute(
            "SELECT job_id, number FROM attempt WHERE id = ?", (attempt_id,)
        ).fetchone()
        self.add_event(kind, job_id, details=AttemptDetails(number))


# The actions that are performed after they are recorded.


#: The columns of an attempt that each of these actions sets to the time of the round.
_TIMES: Mapping[type[act.AttemptAction], tuple[str, ...]] = {
    act.VoidClaim: ("signalled_boot",),
    act.RequestStop: ("signalled_boot", "stopping_boot"),
    act.WakeRunner: ("signalled_boot",),
    act.KillRunner: ("signalled_boot",),
    act.Sweep: ("signalled_boot", "swept_boot"),
}


def _perform_soon(context: WriteContext, action: act.AttemptAction) -> None:
    """Records that an action on an attempt is about to be performed."""
    if isinstance(action, act.Relaunch):
        _relaunch(context, action)
        return
    columns = _TIMES[type(action)]
    if isinstance(action, act.Sweep) and action.kill:
        columns = columns[:1]
    _update(context, "attempt", "id", action.attempt_id, dict.fromkeys(columns, context.now.boot))
    if isinstance(action, act.KillRunner):
        context.add_attempt_event(EventKind.RUNNER_KILLED, action.attempt_id)


def _update(context: WriteContext, table: str, key: str, value: object, changes: Mapping[str, Any]) -> None:
    """Changes the columns of one row. key, value: the column that identifies the row, and its value."""
    if changes:
        names = ", ".join(f"{name} = ?" for name in changes)
        context.db.execute(f"UPDATE {table} SET {names} WHERE {key} = ?", (*changes.values(), value))


def _start(context: WriteContext, action: act.Start) -> int:
    """Opens an attempt with its allocations. Returns the attempt's id."""
    db, now, job_id, process = context.db, context.now, action.job_id, action.process
    # An attempt whose launch failed has not run, so its job keeps the protection against preemptions.
    state, number, follows_preemption, resume_from, *place = db.execute(
        "SELECT job.state, coalesce(max(number), 0) + 1, attempt.outcome IS 'preempted'"
        " OR (attempt.outcome IS 'not_started' AND follows_preemption), resume_from, priority,"
        " position, job.submitted_at FROM job LEFT JOIN attempt ON job_id = job.id WHERE job.id = ?",
        (job_id,),
    ).fetchone()
    check_transition(job_id, f"job {job_id}", JobState(state), JobState.STARTING)
    more: dict[str, Any] = {}
    if process is not None:  # it never queues; its watcher has no output, so it needs no terminal
        more = {"watched_pid": process.pid, "watched_ticks": process.start_ticks}
        more["started_at"] = process.started_at
    elif action.gpus:  # a job without a GPU overtakes nobody
        more = dict(zip(("queue_priority", "queue_position", "submitted_at"), place, strict=True))
    executor = action.engine or (context.executor if process is None else "direct")
    attempt_id = insert(
        db, "attempt", job_id=job_id, number=number, token=secrets.token_hex(16), boot_id=now.boot_id,
        state=AttemptState.STARTING.value, executor=executor,
        learned=action.learned, assumed=action.assumed,
        launch_deadline_boot=now.boot + context.settings.launch_deadline_s, created_at=now.wall,
        resumed_from=resume_from, follows_preemption=follows_preemption, **more,
    )  # fmt: skip
    insert_allocations(db, attempt_id, _allocations(context, action))
    checkpoint = None if resume_from is None else Checkpoint.from_json(resume_from)
    details = AttemptStarted(
        number, context.gpu_indices(action.gpus), action.share, action.vram, action.whole, action.learned,
        action.assumed,
        resumed_from=None if checkpoint is None else checkpoint.path,
        resumed_step=None if checkpoint is None else checkpoint.step,
        watched_pid=None if process is None else process.pid,
        engine=action.engine,
    )  # fmt: skip
    started = {"state": JobState.STARTING.value, "reason": None, "not_before_boot": None}
    _update(context, "job", "id", job_id, started)
    context.add_event(EventKind.STARTING, job_id, details=details)
    return attempt_id


def _allocations(context: WriteContext, action: act.Start) -> Iterable[Allocation]:
    declares = not action.assumed and bool(action.share or action.vram)
    baseline = dict(action.baseline_mib)
    charge = Allocation(action.share, action.vram, action.whole)
    for gpu in action.gpus:
        budget = declared_mib(charge, context.gpu_total_mib(gpu)) if declares else None
        yield Allocation(action.share, action.vram, action.whole, None, gpu, budget, baseline.get(gpu))


def insert_allocations(db: sqlite3.Connection, attempt_id: int, allocations: Iterable[Allocation]) -> None:
    """Inserts the allocations of a new attempt, in this order."""
    for n, one in enumerate(allocations):
        insert(
            db, "allocation", attempt_id=attempt_id, ordinal=n, gpu=one.gpu, share=one.share, vram=one.vram,
            whole=one.whole, budget_mib=one.budget_mib, baseline_mib=one.baseline_mib,
        )  # fmt: skip


def _relaunch(context: WriteContext, action: act.Relaunch) -> None:
    """Counts another launch of the same attempt and sets the deadline for its claim."""
    deadline = context.now.boot + context.settings.launch_deadline_s
    before = context.store.db.value("SELECT launch_count FROM attempt WHERE id = ?", action.attempt_id)
    context.db.execute(
        "UPDATE attempt SET launch_count = launch_count + 1, launch_deadline_boot = ? WHERE id = ?",
        (deadline, action.attempt_id),
    )
    if before:
        context.add_attempt_event(EventKind.RELAUNCHED, action.attempt_id)


# The changes of rows. Each row is changed by one statement, which contains only the columns that differ.


def _change_job(context: WriteContext, action: act.JobChanged, details: EventDetails | None = None) -> None:
    """Changes the row of a job. Adds an event if its state changes. details: those of an attempt's event."""
    old, new = action.old, action.new
    changes = JOBS.changes(old, new)
    # A job that is not queued misses a change of `start --learn`.
    is_back = new.state is JobState.QUEUED and old.state is not JobState.QUEUED
    if is_back or "spec" in changes or "min_vram_mib" in changes:
        changes["spec_key"] = context.store.spec_key(new.spec, new.min_vram_mib)
    _update(context, "job", "id", new.id, changes)
    # A skipped job can also be cancelled.
    if new.state is not old.state or (new.state is JobState.FINISHED and new.outcome is not old.outcome):
        if details is None and new.state is JobState.FINISHED and new.outcome is not None:
            details = JobEnded(new.outcome.value)
        context.add_event(EventKind(new.state.value), new.id, new.reason or action.because, details)


def _change_attempt(context: WriteContext, action: act.AttemptChanged) -> None:
    """Changes the rows of an attempt, its allocations and its job, and adds the events that follow."""
    old, new = action.old, action.new
    _update(context, "attempt", "id", new.id, ATTEMPTS.changes(old, new))
    for before, after in zip(old.allocations, new.allocations, strict=True):
        if after is not before:
            _change_allocation(context, new, before, after)
    for gpu, pid in new.misplaced[len(old.misplaced) :]:
        context.db.execute("INSERT OR IGNORE INTO misplaced_process VALUES (?, ?, ?)", (new.id, gpu, pid))
        allocated = context.gpu_indices(new.gpus)
        process = MisplacedProcess(new.number, context.gpu_indices([gpu])[0], pid, allocated)
        context.add_event(EventKind.MISPLACED_PROCESS, new.job_id, details=process)
    if action.is_end:
        record_measurement(context.db, new, old.job, context.now.wall)
        record_run_time(context.db, new, old.job, context.now.wall)
    kinds = {
        EventKind.RUNNER_LOST: new.runner_died_boot != old.runner_died_boot,
        EventKind.WINDOW_CLOSED: new.window_closed and not old.window_closed,
        EventKind.PREEMPTION_WITHDRAWN: new.state.is_open and old.job.stop and not new.job.stop,
    }
    for kind in (kind for kind, holds in kinds.items() if holds):
        context.add_event(kind, new.job_id, details=AttemptDetails(new.number))
    if new.job is not old.job:
        _change_job(context, act.JobChanged(old.job, new.job), _details(context, action))


def _details(context: WriteContext, action: act.AttemptChanged) -> EventDetails | None:
    """Returns the details of the event that the new state of the job of an attempt adds."""
    new, stop = action.new, action.new.job.stop
    if action.is_end:
        return _details_of_end(context, new, action.old.job)
    # Without an open request, only the file `stop` of the attempt tells why it stops.
    is_asked = new.job.state is JobState.STOPPING and stop is not None
    return StopStarted(stop.cause, stop.grace_s, stop.preemptor) if stop and is_asked else None


def _details_of_end(context: WriteContext, attempt: ActiveAttempt, old: Job) -> AttemptEnded:
    assert attempt.outcome is not None
    has_budget, needed = attempt.has_budget, attempt.job.min_vram_mib
    return AttemptEnded(
        attempt.number,
        outcome=attempt.outcome.value,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        seconds=attempt.run_time_s,
        gpus=context.gpu_indices(attempt.gpus),
        peaks=[one.peak_mib for one in attempt.allocations],
        declared=attempt.vram if has_budget else None,
        budgets=[one.budget_mib for one in attempt.allocations] if has_budget else None,
        share=attempt.share,
        load=attempt.mean_load,
        log=attempt.log,
        survivors=list(attempt.survivors),
        learned=attempt.learned,
        min_vram=None if needed == old.min_vram_mib else needed,
    )


def _change_allocation(
    context: WriteContext, attempt: ActiveAttempt, old: Allocation, new: Allocation
) -> None:
    """Changes the observed use in an allocation, and adds an event for overuse."""
    context.db.execute(
        "UPDATE allocation SET peak_mib = ?, load_sum = ?, load_samples = ?, overuse_logged = ?"
        " WHERE attempt_id = ? AND gpu = ?",
        (new.peak_mib, new.load_sum, new.load_samples, new.overuse_logged, attempt.id, new.gpu),
    )
    if new.overuse_logged and not old.overuse_logged:
        [gpu] = context.gpu_indices([new.gpu])
        share = attempt.share if attempt.vram is None else None
        overuse = Overuse(attempt.number, gpu, new.peak_mib or 0, new.budget_mib or 0, share)
        context.add_event(EventKind.OVERUSE, attempt.job_id, details=overuse)


def _change_gpu(context: WriteContext, action: act.GpuChanged) -> None:
    """Changes the row of a GPU."""
    old, new = action.old, action.new
    _update(context, "gpu", "uuid", new.uuid, GPUS.changes(old, new))
    gpus = context.gpu_indices([new.uuid])
    is_resumed = new.usable_since != old.usable_since
    if new.paused is not old.paused or is_resumed:
        kind = EventKind.PAUSED if new.paused else EventKind.RESUMED
        context.add_event(kind, details=GpusChanged(gpus, action.cause))
    elif new.suspicion is None and old.suspicion is not None:
        context.add_event(EventKind.SUSPICION_ENDED, details=GpusChanged(gpus))
    elif new.suspicion is not None and new.suspicion != old.suspicion:
        context.add_event(EventKind.SUSPECTED, details=GpuSuspected(gpus, asdict(new.suspicion)))


# The changes of other tables.


#: Maximum number of jobs in a pending group that get an event if the group is infeasible.
_MAX_INFEASIBLE_EVENTS = 5
#: Maximum number of jobs that begin to wait for GPUs when fewer jobs of their name group run.
_MAX_WAITING_ANEW = 64


def _clear_finished(context: WriteContext, action: act.ClearFinished) -> None:
    context.db.execute(
        "UPDATE job SET cleared_at = ? WHERE state = 'finished' AND cleared_at IS NULL", (context.now.wall,)
    )


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


def set_queue_positions(context: WriteContext, action: act.SetQueuePositions) -> None:
    """Sets the queue positions of jobs."""
    context.db.executemany(
        "UPDATE job SET position = ? WHERE id = ?",
        [(position, job_id) for job_id, position in action.positions],
    )


def set_wait_reason(context: WriteContext, action: act.SetWaitReason) -> None:
    """Records why a pending group waits. If the group is infeasible, adds an event for its first jobs.

    Jobs that waited until fewer jobs of their name group run begin to wait for GPUs now.
    """
    db = context.db
    if action.reason.kind is not WaitKind.GROUP_FULL:
        db.execute(
            "UPDATE job SET queued_at = ?1 WHERE id IN (SELECT id FROM job WHERE state = 'queued'"
            " AND unmet_parents = 0 AND adopted IS NULL AND source_missing = 0 AND spec_key = ?2"
            " ORDER BY priority, position, id LIMIT ?4) AND EXISTS (SELECT 1 FROM pending_group AS old"
            " WHERE old.spec_key = ?2 AND json_extract(old.reason, '$.kind') = ?3)",
            (context.now.wall, action.spec_key, WaitKind.GROUP_FULL.value, _MAX_WAITING_ANEW),
        )
    db.execute(
        "INSERT OR REPLACE INTO pending_group (spec_key, reason) VALUES (?, ?)",
        (action.spec_key, action.reason.to_json()),
    )
    if action.reason.is_infeasible:
        jobs = context.store.db.column(
            "SELECT id FROM job WHERE state = 'queued' AND unmet_parents = 0 AND adopted IS NULL"
            " AND spec_key = ? ORDER BY id LIMIT ?",
            action.spec_key, _MAX_INFEASIBLE_EVENTS,
        )  # fmt: skip
        for job_id in jobs:
            context.add_event(EventKind.INFEASIBLE, job_id, action.reason)


def answer_request(context: WriteContext, action: act.AnswerRequest) -> None:
    """Answers a request."""
    answered = {"answered_at": context.now.wall, "answer": action.answer.to_json()}
    _update(context, "request", "id", action.request_id, answered)


# Records the dependencies of jobs, and skips or queues jobs as their parents require.


#: Maximum number of jobs that one round skips or queues again. If more are left, another round follows.
_MAX_SETTLED = 5_000


def set_dependencies(context: WriteContext, action: act.SetDependencies) -> None:
    """Replaces the dependencies of one kind of a job."""
    kind = action.kind.value
    context.db.execute("DELETE FROM dependency WHERE job_id = ? AND kind = ?", (action.job_id, kind))
    insert_dependencies(context.db, action.job_id, action.dependencies)


def settle_dependencies(context: WriteContext, action: act.SettleDependencies) -> None:
    """Skips the queued jobs with a failed parent, and queues the skipped jobs that have none any more.

    Both change the parents of further jobs, so this is repeated until no job is left.
    """
    left, column = _MAX_SETTLED, context.store.db.column
    skipped = "state = 'finished' AND outcome = 'skipped' AND failed_parents = 0"
    while left > 0:
        found = column("SELECT id FROM job WHERE state = 'queued' AND failed_parents > 0 LIMIT ?", left)
        found += column(f"SELECT id FROM job WHERE {skipped} LIMIT ?", left)
        if not found:
            return
        for job_id in found:
            _settle(context, job_id)
        left -= len(found)


def _settle(context: WriteContext, job_id: int) -> None:
    """Skips a job if a parent failed, otherwise queues it again."""
    job = context.store.job(job_id)
    assert job is not None
    parents = job_lists.parents_of(context.store, [job_id]).get(job_id, ())
    failed = next((parent for parent in parents if status_of(parent) is ParentStatus.FAILED), None)
    if failed is None:
        because = StateReason(ReasonKind.PARENT_RETRIED)
        new = job.queued_again(context.now, keeps=True)
        _change_job(context, act.JobChanged(job, new, because))
        return
    reason = StateReason(ReasonKind.PARENT_FAILED, parent=failed.id, parent_outcome=failed.outcome)
    _change_job(context, act.JobChanged(job, job.finished(Outcome.SKIPPED, reason, context.now)))


# Records the actions that reserve GPUs for a job that preempts others.


def reserve(context: WriteContext, action: act.Reserve) -> None:
    """Records the reservation of a queued job, and for which job its victims are preempted."""
    db = context.db
    # The job may have had a reservation by queue order.
    db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    rows = [(action.job_id, gpu) for gpu in action.gpus]
    db.executemany("INSERT INTO reservation (job_id, gpu) VALUES (?, ?)", rows)
    victims = [(action.job_id, attempt_id) for attempt_id in action.victims]
    db.executemany("UPDATE attempt SET preempted_for = ? WHERE id = ?", victims)
    marks = ", ".join("?" * len(action.victims))
    jobs = db.execute(f"SELECT job_id FROM attempt WHERE id IN ({marks}) ORDER BY job_id", action.victims)
    details = GpusReserved(context.gpu_indices(action.gpus), [job_id for (job_id,) in jobs])
    context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)


def drop_reservation(context: WriteContext, action: act.DropReservation) -> None:
    """Deletes the reservation of a job."""
    context.db.execute("DELETE FROM reservation WHERE job_id = ?", (action.job_id,))
    context.add_event(EventKind.RESERVATION_DROPPED, action.job_id)


def set_queue_reservation(context: WriteContext, action: act.SetQueueReservation) -> None:
    """Replaces the reservation by queue order. Only a new job or the end of the reservation is an event."""
    db = context.db
    old = db.execute(
        "SELECT job_id, overtakes FROM reservation WHERE start_at IS NOT NULL LIMIT 1"
    ).fetchone()
    old_job = None if old is None else old["job_id"]
    db.execute("DELETE FROM reservation WHERE start_at IS NOT NULL")
    if old_job not in (None, action.job_id):
        dropped = ReservationDropped(old["overtakes"])
        context.add_event(EventKind.RESERVATION_DROPPED, old_job, details=dropped)
    if action.job_id is None:
        return
    db.executemany(
        "INSERT INTO reservation (job_id, gpu, start_at, overtakes) VALUES (?, ?, ?, ?)",
        [(action.job_id, gpu, action.start_at, action.overtakes) for gpu in action.gpus],
    )
    if action.job_id != old_job:
        details = GpusReserved(
            sorted(context.gpu_indices(action.gpus)), [], action.start_at, action.overtakes
        )
        context.add_event(EventKind.GPUS_RESERVED, action.job_id, details=details)


#: The function that records each of the other actions that change the store.
_RECORD: Mapping[type[act.Action], Callable[[WriteContext, Any], None]] = {
    act.JobChanged: _change_job,
    act.AttemptChanged: _change_attempt,
    act.GpuChanged: _change_gpu,
    act.ClearFinished: _clear_finished,
    act.SetDependencies: set_dependencies,
    act.SettleDependencies: settle_dependencies,
    act.SetQueuePositions: set_queue_positions,
    act.Reserve: reserve,
    act.DropReservation: drop_reservation,
    act.SetQueueReservation: set_queue_reservation,
    act.RecordGpuTime: record_gpu_time,
    act.SetWaitReason: set_wait_reason,
    act.AnswerRequest: answer_request,
}


def _is_repeatable(action: act.Action) -> bool:
    """Returns whether a power cut may undo an action.

    It may if the attempt folders record it too, if the power cut ends the processes concerned, or if it only
    reports something about them.
    """
    if isinstance(action, act.AttemptChanged):
        return not action.is_end and action.new.job.stop is action.old.job.stop
    if isinstance(action, act.GpuChanged):
        return action.new.paused is action.old.paused and action.new.suspicion is action.old.suspicion
    return isinstance(action, (act.SetWaitReason, act.RecordGpuTime, act.EndScheduler))


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
        synced = not all(map(_is_repeatable, actions))
        with history_in_errors(self._store), self._store.db.transaction(synced=synced) as db:
            context = WriteContext(self._store, db, self._settings, now, self._executor)
            for action in actions:
                if isinstance(action, act.Start):
                    opened[action.job_id] = _start(context, action)
                elif isinstance(action, act.AttemptAction):
                    _perform_soon(context, action)
                elif not isinstance(action, act.EndScheduler):
                    _RECORD[type(action)](context, action)
        return opened

    def record_launch_error(self, attempt_id: int, text: str) -> None:
        """Records that a launch failed immediately, and sets the attempt's launch deadline to the past."""
        sql = "UPDATE attempt SET launch_error = ?, launch_deadline_boot = 0 WHERE id = ?"
        self._store.db.write(sql, text, attempt_id)

    def record_shortage(self, attempt_id: int) -> None:
        """Records that a shortage prevented a launch, which then does not count. The next one is due now."""
        sets = "launch_count = max(launch_count - 1, 0), launch_deadline_boot = 0"
        self._store.db.write(f"UPDATE attempt SET {sets} WHERE id = ?", attempt_id, synced=False)

    def record_log(self, attempt_id: int, log: str | None, session: str | None) -> None:
        """Records the attempt's log and session, which are known once its folder exists."""
        sql = "UPDATE attempt SET log = ?, session = ? WHERE id = ?"
        self._store.db.write(sql, log, session, attempt_id, synced=False)

    def record_gpus(self, samples: Iterable[GpuSample], managed: Collection[str] | None, now: Now) -> None:
        """Records the newest samples. managed: the UUIDs of the managed GPUs, or None if unchanged."""
        at = now.wall
        with self._store.db.transaction(synced=False) as db:
            loads = dict(map(tuple, self._store.db.rows("SELECT uuid, loads FROM gpu")))
            for gpu in samples:
                recent = [*json.loads(loads.get(gpu.uuid, "[]")), gpu.load_percent][-_LOADS_KEPT:]
                processes = None
                if gpu.processes is not None:
                    listed = [[one.pid, one.used_mib, one.graphics_only] for one in gpu.processes]
                    processes = json.dumps(listed)
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
                     processes, json.dumps(recent), gpu.uuid, FaultKind.UNREADABLE.value,
                     gpu.exclusive, gpu.unified),
                )  # fmt: skip
            if managed is not None:
                is_managed = "uuid IN (SELECT value FROM json_each(:listed))"
                db.execute(
                    "UPDATE gpu SET foreign_loads = '[]', foreign_load_boot = NULL,"
                    f" usable_since = CASE WHEN {is_managed} AND NOT managed THEN :at ELSE usable_since END,"
                    f" managed = {is_managed}",
                    {"listed": json.dumps(list(managed)), "at": at},
                )

    def record_probe_failure(self, cause: str) -> None:
        """Records that the GPUs cannot be read. Memory and load become unknown, but a lost GPU stays lost."""
        self._store.db.write(
            "UPDATE gpu SET used_mib = NULL, load_percent = NULL,"
            " fault = CASE WHEN fault IS NULL OR json_extract(fault, '$.kind') = ? THEN ? ELSE fault END"
            " WHERE managed",
            FaultKind.UNREADABLE.value, GpuFault(FaultKind.UNREADABLE, cause).to_json(), synced=False,
        )  # fmt: skip

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
