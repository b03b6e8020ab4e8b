"""Reads events from the store, in order."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_scheduler.core.model.event import Event, EventKind
from gpu_scheduler.core.model.reasons import StateReason, WaitReason
from gpu_scheduler.core.model.request import PauseCause
from gpu_scheduler.core.model.states import IllegalTransitionError, JobState
from gpu_scheduler.store.store import Store

_COLUMNS = (
    "event.id, event.job_id, event.at, event.kind, event.reason, event.data,"
    " job.text, job.name, job.spec, event.job_id <> 0 AND NOT EXISTS (SELECT 1 FROM event AS earlier"
    " WHERE earlier.job_id = event.job_id AND earlier.id < event.id) AS new"
)
_EVENT_QUERY = f"SELECT {_COLUMNS} FROM event LEFT JOIN job ON job.id = event.job_id"
_JOB_STATES = frozenset(state.value for state in JobState)
#: Matches routine events, which `notable_events` omits: a new job is queued, or a launched job is running.
_ROUTINE = "event.kind = 'running' OR (event.kind = 'queued' AND event.reason IS NULL)"


def newest_event_id(store: Store) -> int:
    """Returns the id of the newest event, or 0 if there are no events."""
    return store.db.value("SELECT max(id) FROM event") or 0


def events_after(store: Store, after: int, limit: int) -> list[Event]:
    """Returns at most `limit` of the events with a higher id than `after`, oldest first."""
    rows = store.db.rows(f"{_EVENT_QUERY} WHERE event.id > ? ORDER BY event.id LIMIT ?", after, limit)
    return [_event(row) for row in rows]


def notable_events(store: Store, after: int) -> tuple[list[Event], int]:
    """Returns the events after id `after` except the routine events, and the id of the newest event."""
    rows = store.db.rows(
        f"SELECT {_COLUMNS}, newest_id FROM (SELECT coalesce(max(id), 0) AS newest_id FROM event)"
        f" LEFT JOIN event ON event.id > ? AND NOT ({_ROUTINE}) LEFT JOIN job ON job.id = event.job_id"
        " ORDER BY event.id",
        after,
    )
    return [_event(row) for row in rows if row["id"] is not None], rows[0]["newest_id"]


def events_of_job(store: Store, job_id: int) -> list[Event]:
    """Returns all events of a job, oldest first."""
    rows = store.db.rows(f"{_EVENT_QUERY} WHERE event.job_id = ? ORDER BY event.id", job_id)
    return [_event(row) for row in rows]


@contextmanager
def history_in_errors(store: Store) -> Iterator[None]:
    """Adds the history of the job to an IllegalTransitionError that the block raises."""
    try:
        yield
    except IllegalTransitionError as error:
        rows = store.db.rows("SELECT kind, reason FROM event WHERE job_id = ? ORDER BY id", error.job_id)
        history = tuple(f"{kind} {reason or ''}".strip() for kind, reason in rows)
        raise IllegalTransitionError(error.job_id, error.change, history) from None


def jobs_run_after(store: Store, after: int) -> set[int]:
    """Returns the ids of the jobs that started or finished after the event with this id."""
    sql = "SELECT DISTINCT job_id FROM event WHERE id > ? AND kind IN ('starting', 'finished')"
    return set(store.db.column(sql, after))


def event_id_before(store: Store, time: float) -> int:
    """Returns the id of the newest event that is older than a time in wall seconds, or 0."""
    return store.db.value("SELECT max(id) FROM event WHERE at < ?", time) or 0


def id_before_last(store: Store, count: int) -> int:
    """Returns the id of the event before the last `count` events, or 0 if there is no such event."""
    return store.db.value("SELECT id FROM event ORDER BY id DESC LIMIT 1 OFFSET ?", count) or 0


def is_event(store: Store, event_id: int, time: float, kind: str, job_id: int) -> bool:
    """Returns whether the store contains this event. time: wall seconds, which must match within 2 ms."""
    sql = "SELECT at FROM event WHERE id = ? AND kind = ? AND job_id = ?"
    at = store.db.value(sql, event_id, kind, job_id)
    return at is not None and abs(float(at) - time) < 0.002


def finish_event_before(store: Store, event: Event) -> int | None:
    """Returns the id of the event that finished the job before this event, or None if it was unfinished."""
    row = store.db.row(
        "SELECT id, kind FROM event WHERE job_id = ? AND id < ? AND kind IN"
        " ('held', 'queued', 'starting', 'running', 'stopping', 'finished') ORDER BY id DESC LIMIT 1",
        event.job_id,
        event.id,
    )
    return row["id"] if row is not None and row["kind"] == "finished" else None


def pause_causes(store: Store) -> dict[int, PauseCause | None]:
    """Returns the cause of the last pause of each GPU, by index; None if a command paused it."""
    rows = store.db.rows(
        "SELECT gpu.value, json_extract(data, '$.cause'), max(event.id) FROM event,"
        " json_each(data, '$.gpus') AS gpu WHERE job_id = 0 AND kind = 'paused' GROUP BY gpu.value"
    )
    return {gpu: cause for gpu, cause, _ in rows}


def has_changed_since(store: Store, event: Event, after: int) -> bool:
    """Returns whether the job started or finished between the event with id `after` and this event."""
    sql = "SELECT 1 FROM event WHERE job_id = ? AND id > ? AND id < ? AND kind IN ('starting', 'finished')"
    return store.db.row(sql, event.job_id, after, event.id) is not None


def _event(row: sqlite3.Row) -> Event:
    return Event(
        id=row["id"], at=row["at"], kind=row["kind"], job_id=row["job_id"],
        reason=_reason(row["kind"], row["reason"]), data=json.loads(row["data"]), command=row["text"] or "",
        name=row["name"], spec=row["spec"] or "{}", is_new_job=bool(row["new"]),
    )  # fmt: skip


def _reason(kind: str, reason: str | None) -> StateReason | WaitReason | str | None:
    """Returns the value of a stored reason. In events of some kinds, the reason is plain text."""
    if reason is None:
        return None
    if kind == EventKind.INFEASIBLE:
        return WaitReason.from_json(reason)
    return StateReason.from_json(reason) if kind in _JOB_STATES else reason
