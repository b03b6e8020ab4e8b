"""Lists the pending groups, their wait reasons, and the jobs that may start next or later by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.store.store import Marks, Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.values import Now
    from gpu_scheduler.core.scheduling.actions import Action
    from gpu_scheduler.core.scheduling.facts import (
        EngineState,
        PendingGroup,
        QueuedJob,
        QueueReservation,
        ReservedJob,
    )
    from gpu_scheduler.core.scheduling.forecast import WaitingJob
    from gpu_scheduler.core.scheduling.needs import ResourceSpec


#: The condition of the index `job_queue`, which leaves out adopted processes and the jobs that wait for other
#: jobs.
_IN_QUEUE = "state = 'queued' AND unmet_parents = 0 AND adopted IS NULL"

#: The columns from which `_queued_jobs` builds a job.
_QUEUED_JOB_COLUMNS = (
    "id, priority, position, submitted_at, queued_at, identity, spec, fail_retries_used,"
    # The GPUs of the last attempt that ran, if the job is retried, but not because memory ran out.
    " CASE WHEN fail_retries_used THEN (SELECT json_group_array(gpu) FROM allocation, attempt AS last"
    " WHERE attempt_id = last.id AND last.outcome = 'failed'"
    " AND json_extract(last.reason, '$.failure') IS NOT 'cuda_oom' AND last.id ="
    " (SELECT max(id) FROM attempt WHERE job_id = job.id AND outcome <> 'not_started')) END AS failed_on"
)

#: The condition for a queued job to wait only for GPUs. Its parameters: the time since boot, and the boot id.
IS_STARTABLE = (
    f"{_IN_QUEUE} AND source_missing = 0"
    " AND (not_before_boot IS NULL OR not_before_boot <= ? OR boot_id <> ?)"
    " AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id"
    " AND attempt.state = 'ended' AND attempt.state <> 'closed')"
)

#: The condition for a queued job to start without the help of a user, if its parents complete.
#: The redundant condition lets SQLite use the index job_open.
_STARTS_BY_ITSELF = (
    "state = 'queued' AND state <> 'finished' AND failed_parents = 0 AND source_missing = 0"
    " AND adopted IS NULL"
)

_RESERVED_GPUS = "(SELECT json_group_array(gpu) FROM reservation WHERE job_id = job.id)"


def wait_reasons(store: Store) -> Mapping[str, WaitReason]:
    """Returns the recorded wait reason of each pending group, by spec key."""
    rows = store.db.rows("SELECT spec_key, reason FROM pending_group")
    return {key: WaitReason.from_json(reason) for key, reason in rows}


def wait_reason_by_spec(store: Store) -> dict[str, WaitReason | None]:
    """Returns the wait reason of each pending group, by spec key; None if no reason is recorded.

    Omits the groups in which every job waits for its line or for other jobs. The query is a skip scan, so its
    cost does not grow with the queue.
    """
    rows = store.db.rows(
        f"WITH RECURSIVE queued (spec_key) AS (SELECT min(spec_key) FROM job WHERE {_IN_QUEUE}"
        f" UNION ALL SELECT (SELECT min(spec_key) FROM job WHERE {_IN_QUEUE}"
        " AND job.spec_key > queued.spec_key) FROM queued WHERE queued.spec_key IS NOT NULL)"
        " SELECT spec_key, reason FROM queued LEFT JOIN pending_group USING (spec_key) WHERE EXISTS"
        f" (SELECT 1 FROM job WHERE {_IN_QUEUE} AND job.spec_key = queued.spec_key"
        " AND source_missing = 0)"
    )
    return {spec_key: None if reason is None else WaitReason.from_json(reason) for spec_key, reason in rows}


def wait_counts(store: Store, now: Now, *, is_up: bool) -> dict[WaitKind, int]:
    """Returns the number of queued and held jobs that wait for each kind of reason, as their views show them.

    is_up: whether a scheduler is running. A request that no round has answered yet changes nothing here.
    """
    rows = store.db.rows(
        "SELECT kind, CASE WHEN kind IS NULL THEN spec_key END AS spec, count(*) FROM (SELECT spec_key, CASE"
        " WHEN state = 'held' THEN 'held'"
        " WHEN unmet_parents THEN coalesce(json_extract(line_wait, '$.kind'), 'parents')"
        " WHEN reason IS NOT NULL AND NOT (not_before_boot IS NOT NULL"
        " AND (not_before_boot <= ? OR boot_id IS NOT ?)) THEN 'retry delay'"
        " WHEN adopted IS NOT NULL THEN 'not watched'"
        " WHEN line_wait IS NOT NULL THEN json_extract(line_wait, '$.kind')"
        " WHEN EXISTS (SELECT 1 FROM attempt WHERE job_id = job.id AND state = 'ended'"
        " AND state <> 'closed') THEN 'processes left'"
        " WHEN ? THEN (SELECT CASE WHEN start_at IS NULL THEN 'preempting' ELSE 'reserved' END"
        " FROM reservation WHERE job_id = job.id LIMIT 1) END AS kind"
        " FROM job WHERE state IN ('queued', 'held') AND state <> 'finished') GROUP BY kind, spec",
        now.boot, now.boot_id, is_up,
    )  # fmt: skip
    reasons, found = wait_reasons(store), dict.fromkeys(WaitKind, 0)
    for kind, spec_key, jobs in rows:
        reason = reasons.get(spec_key)
        if kind is None and reason is not None and (is_up or reason.is_infeasible):
            kind = reason.kind
        found[WaitKind(kind or (WaitKind.NOT_TRIED if is_up else WaitKind.NO_SCHEDULER))] += jobs
    return found


def _queued_jobs(
    store: Store, columns: str, where: str, *values: object
) -> list[tuple[QueuedJob, list[Any]]]:
    """Returns the jobs that a condition selects, each with the values of these further columns."""
    from gpu_scheduler.core.scheduling.facts import QueuedJob
    from gpu_scheduler.core.scheduling.history import RunTimeKey

    found = []
    for row in store.db.rows(f"SELECT {_QUEUED_JOB_COLUMNS}{columns} FROM job WHERE {where}", *values):
        job_id, priority, position, submitted_at, since, identity, spec, retries, failed_on, *more = row
        run_time, gpus = RunTimeKey(identity, spec), tuple(json.loads(failed_on or "[]"))
        job = QueuedJob(job_id, priority, position, submitted_at, since, run_time, retries, gpus)
        found.append((job, more))
    return found


def startable_jobs(store: Store, spec_key: str, boot: float, boot_id: str, limit: int) -> list[QueuedJob]:
    """Returns the first `limit` jobs in a pending group that are waiting only for GPUs, in queue order.

    Omits the jobs for which others are preempted.
    """
    found = _queued_jobs(
        store, "", f"{IS_STARTABLE} AND spec_key = ?"
        " AND NOT EXISTS (SELECT 1 FROM reservation WHERE reservation.job_id = job.id AND start_at IS NULL)"
        " ORDER BY priority, position, id LIMIT ?",
        boot, boot_id, spec_key, limit,
    )  # fmt: skip
    return [job for job, _ in found]


def waiting_jobs(
    store: Store,
    now: Now,
    limit: int | None = None,
    max_parents: int | None = None,
    *,
    with_unconfirmed: bool = False,
) -> list[WaitingJob]:
    """Returns the first `limit` queued jobs, in queue order, that start without the help of a user.

    They wait for GPUs, for other jobs, or for the delay after a failed launch. Omits the jobs that wait for
    more than `max_parents` others. with_unconfirmed: include the jobs from a Redis queue that are not
    confirmed yet.
    """
    from gpu_scheduler.core.scheduling.forecast import WaitingJob
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    starts = _STARTS_BY_ITSELF
    if with_unconfirmed:
        gate = "(source_missing = 0 OR json_extract(line_wait, '$.kind') = 'not confirmed')"
        starts = starts.replace("source_missing = 0", gate)
    found = _queued_jobs(
        store, ", spec_key, CASE WHEN boot_id = ? THEN coalesce(not_before_boot, 0) ELSE 0 END,"
        " CASE WHEN unmet_parents > 0 THEN (SELECT json_group_array(parent_id) FROM dependency"
        " LEFT JOIN job AS parent ON parent.id = parent_id"
        " WHERE job_id = job.id AND parent.state IS NOT 'finished') END",
        f"{starts} AND unmet_parents <= coalesce(?, unmet_parents) ORDER BY priority, position, id LIMIT ?",
        now.boot_id, max_parents, -1 if limit is None else limit,
    )  # fmt: skip
    return [
        WaitingJob(
            job, ResourceSpec.from_key(key), tuple(json.loads(parents or "[]")),
            now.wall + not_before - now.boot if not_before > now.boot else 0.0,
        )
        for job, (key, not_before, parents) in found
    ]  # fmt: skip


def queued_job_of(store: Store, job_id: int) -> QueuedJob:
    """Returns a job as a queued job."""
    [(job, _)] = _queued_jobs(store, "", "id = ?", job_id)
    return job


def next_retry(store: Store, now: Now) -> float | None:
    """Returns when the next failed launch may be retried, in seconds since boot, or None."""
    sql = (
        "SELECT min(not_before_boot) FROM job WHERE state = 'queued' AND boot_id = ? AND not_before_boot > ?"
    )
    at: float | None = store.db.value(sql, now.boot_id, now.boot)
    return at


# Lists the jobs for which GPUs are reserved, and the jobs that are preempted for them.


class QueueReservationRecord(NamedTuple):
    """The reservation by queue order.

    gpus: UUIDs. start_at: when the job is expected to start, in seconds since 1970. overtakes: how often it
    had been overtaken.
    """

    job_id: int
    gpus: tuple[str, ...]
    start_at: float
    overtakes: int


def queue_reservation_record(store: Store) -> QueueReservationRecord | None:
    """Returns the reservation by queue order, or None."""
    row = store.db.row(
        "SELECT job_id, json_group_array(gpu), start_at, overtakes FROM reservation"
        " WHERE start_at IS NOT NULL GROUP BY job_id"
    )
    if row is None:
        return None
    job_id, gpus, start_at, overtakes = row
    return QueueReservationRecord(job_id, tuple(json.loads(gpus)), start_at, overtakes)


def reserved_jobs(store: Store, now: Now) -> list[ReservedJob]:
    """Returns the queued jobs for which others are preempted and GPUs are therefore reserved."""
    from gpu_scheduler.core.scheduling.facts import ReservedJob
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    found = _queued_jobs(
        store, f", spec_key, {_RESERVED_GPUS}, {IS_STARTABLE}",
        "id IN (SELECT job_id FROM reservation WHERE start_at IS NULL)", now.boot, now.boot_id,
    )  # fmt: skip
    return [
        ReservedJob(job, ResourceSpec.from_key(key), tuple(json.loads(gpus)), bool(is_startable))
        for job, (key, gpus, is_startable) in found
    ]


def queue_reservation(store: Store) -> QueueReservation | None:
    """Returns the reservation by queue order, or None."""
    from gpu_scheduler.core.scheduling.facts import QueueReservation
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    found = _queued_jobs(
        store, f", spec_key, {_RESERVED_GPUS}, (SELECT max(start_at) FROM reservation WHERE job_id = job.id),"
        " (SELECT max(overtakes) FROM reservation WHERE job_id = job.id),"
        " source_missing AND json_extract(line_wait, '$.kind') IN (?, ?)",
        "id IN (SELECT job_id FROM reservation WHERE start_at IS NOT NULL)",
        WaitKind.LINE_REMOVED.value, WaitKind.LINE_CHANGED.value,
    )  # fmt: skip
    for job, (key, gpus, start_at, overtakes, is_delayed) in found:
        spec, reserved = ResourceSpec.from_key(key), tuple(sorted(json.loads(gpus)))
        return QueueReservation(job, spec, reserved, start_at, overtakes, bool(is_delayed))
    return None


def reserved_gpus(store: Store) -> Mapping[str, tuple[int, ...]]:
    """Returns the jobs for which each reserved GPU is reserved, by the UUID of the GPU."""
    found: dict[str, tuple[int, ...]] = {}
    for uuid, job_id in store.db.rows("SELECT gpu, job_id FROM reservation ORDER BY job_id"):
        found[uuid] = (*found.get(uuid, ()), job_id)
    return found


def victims_by_job(store: Store) -> Mapping[int, tuple[int, ...]]:
    """Returns, for each job that preempts others, the jobs that are preempted for it and hold GPUs still."""
    rows = store.db.rows(
        "SELECT DISTINCT reservation.job_id, attempt.job_id FROM reservation LEFT JOIN attempt"
        " ON attempt.preempted_for = reservation.job_id AND attempt.state <> 'closed'"
        " WHERE reservation.start_at IS NULL"
        " ORDER BY attempt.job_id"
    )
    victims: dict[int, tuple[int, ...]] = {}
    for job_id, victim in rows:
        victims[job_id] = victims.get(job_id, ()) + (() if victim is None else (victim,))
    return victims


# Reads the groups for the rounds: first all of them, and afterwards only those that have changed.
#
# The table `group_change` names the groups whose startable jobs have changed. Only the passing of time
# changes others: a failed launch may be retried after a delay.


#: Maximum number of jobs that a round reads from one pending group. If it starts them all, another round
#: follows.
JOBS_PER_GROUP = 64


class PendingGroupsReader:
    """Reads the pending groups. A new reader reads all of them, with the same result."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[str, PendingGroup] = {}
        self._in_order: tuple[PendingGroup, ...] = ()
        self._newest_change = 0
        self._read_at: Now | None = None

    def read(self, now: Now, marks: Marks) -> tuple[PendingGroup, ...]:
        """Returns the groups with jobs that may start now, in the order of their first jobs."""
        before = self._read_at
        # Read before the groups, so that a group that changes in between is read again.
        changes = self._changes() if marks.newest_group_change > self._newest_change else []
        if before is None or before.boot_id != now.boot_id or before.boot > now.boot:
            self._groups, self._in_order = {}, ()
            reasons = wait_reason_by_spec(self._store)
        else:
            keys = {key for _, key in changes}
            if marks.has_delayed:
                keys |= self._retried_groups(before, now)
            reasons = {key: self._stored_reason(key) for key in keys}
        self._replace({key: self._group(key, reason, now) for key, reason in reasons.items()})
        if changes:
            self._newest_change = changes[-1][0]
        self._read_at = now
        return self._in_order

    def accept(self, recorded: Iterable[Action]) -> None:
        """Accepts the wait reasons of these actions, which are in the store now."""
        from gpu_scheduler.core.scheduling.actions import SetWaitReason

        reasons = {one.spec_key: one.reason for one in recorded if isinstance(one, SetWaitReason)}
        self._replace(
            {
                key: replace(self._groups[key], reason=reason)
                for key, reason in reasons.items()
                if key in self._groups
            }
        )

    def _replace(self, changes: Mapping[str, PendingGroup | None]) -> None:
        """Replaces these groups. None removes a group."""
        if not changes and self._in_order:
            return
        for key, group in changes.items():
            self._groups.pop(key, None)
            if group is not None:
                self._groups[key] = group
        from gpu_scheduler.core.scheduling.pending_queue import queue_key

        self._in_order = tuple(sorted(self._groups.values(), key=lambda one: queue_key(one.jobs[0])))

    def _group(self, key: str, reason: WaitReason | None, now: Now) -> PendingGroup | None:
        from gpu_scheduler.core.scheduling.facts import PendingGroup
        from gpu_scheduler.core.scheduling.needs import ResourceSpec

        jobs = tuple(startable_jobs(self._store, key, now.boot, now.boot_id, JOBS_PER_GROUP + 1))
        if not jobs:
            return None
        has_more = len(jobs) > JOBS_PER_GROUP
        return PendingGroup(ResourceSpec.from_key(key), jobs[:JOBS_PER_GROUP], has_more, reason)

    def _changes(self) -> list[tuple[int, str]]:
        sql = "SELECT id, spec_key FROM group_change WHERE id > ? ORDER BY id"
        return [tuple(row) for row in self._store.db.rows(sql, self._newest_change)]

    def _stored_reason(self, key: str) -> WaitReason | None:
        reason = self._store.db.value("SELECT reason FROM pending_group WHERE spec_key = ?", key)
        return None if reason is None else WaitReason.from_json(reason)

    def _retried_groups(self, before: Now, now: Now) -> set[str]:
        """Returns the groups with a job whose retry delay has run out since the last reading."""
        found = self._store.db.column(
            "SELECT DISTINCT spec_key FROM job WHERE state = 'queued' AND boot_id = ?"
            " AND not_before_boot > ? AND not_before_boot <= ?",
            now.boot_id, before.boot, now.boot,
        )  # fmt: skip
        return set(found)


# What the agent of an engine and the loop tell each other about it, besides the attempts.


def engine_specs(store: Store, engine: str) -> list[ResourceSpec]:
    """Returns the resource specs of the queued jobs that run on an engine."""
    from gpu_scheduler.core.scheduling.needs import ResourceSpec

    keys = store.db.rows("SELECT DISTINCT spec_key FROM job WHERE state = 'queued' AND state <> 'finished'")
    specs = [ResourceSpec.from_key(key) for (key,) in keys]
    default = store.recorded_options().on
    return [one for one in specs if one.engine(default) == engine]


#: Seconds after which the agent of an engine says again that it works.
_SAY_AGAIN_S = 20.0


def engine_state(store: Store, engine: str) -> EngineState:
    """Returns what the agent of an engine last said. Before it has said anything, no job is handed over."""
    from gpu_scheduler.core.scheduling.facts import EngineState

    return msgspec.json.decode(store.db.meta(f"engine_{engine}") or "{}", type=EngineState)


def set_engine_state(store: Store, engine: str, state: EngineState) -> bool:
    """Records what the agent of an engine says. Returns whether that is new."""
    known = engine_state(store, engine)
    is_new = replace(state, at=known.at) != known
    if is_new or state.at is None or known.at is None or not 0 <= state.at - known.at < _SAY_AGAIN_S:
        store.db.set_meta(f"engine_{engine}", msgspec.json.encode(state).decode(), synced=False)
    return is_new or known.at is None
