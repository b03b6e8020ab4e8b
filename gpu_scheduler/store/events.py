"""Reads events from the table `history`, in order."""

from __future__ import annotations

import json
import sqlite3

from gpu_scheduler.core.model.event import Event
from gpu_scheduler.core.model.state_reason import StateReason
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.core.model.wait_reason import WaitReason
from gpu_scheduler.store.store import Store

_EVENT_QUERY = (
    "SELECT history.rowid AS id, history.job_id, history.at, history.state, history.reason, history.data,"
    " job.text, job.name, job.spec, history.job_id <> 0 AND NOT EXISTS (SELECT 1 FROM history AS earlier"
    " WHERE earlier.job_id = history.job_id AND earlier.rowid < history.rowid) AS new"
    " FROM history LEFT JOIN job ON job.id = history.job_id"
)
_JOB_STATES = frozenset(state.value for state in JobState)
#: Key in the data of an event: why the job waits, as JSON.
WAIT_KEY = "wait"
#: Events that `notable_events` omits: a new job was queued, or a job runs after its launch.
_ROUTINE = "history.state = 'running' OR (history.state = 'queued' AND history.reason IS NULL)"


def newest_event_id(store: Store) -> int:
    """Returns the id of the newest event; 0 if there is none."""
    row = store.db.row("SELECT max(rowid) AS id FROM history")
    return (row["id"] if row else None) or 0


def events_after(store: Store, after: int, limit: int) -> list[Event]:
    """Returns the first events after this id, at most `limit`."""
    rows = store.db.rows(
        f"{_EVENT_QUERY} WHERE history.rowid > ? ORDER BY history.rowid LIMIT ?", after, limit
    )
    return [_event(store, row) for row in rows]


def notable_events(store: Store, after: int, until: int) -> list[Event]:
    """Returns the events after `after` up to `until`, without jobs being added or beginning to run."""
    rows = store.db.rows(
        f"{_EVENT_QUERY} WHERE history.rowid > ? AND history.rowid <= ? AND NOT ({_ROUTINE})"
        " ORDER BY history.rowid",
        after,
        until,
    )
    return [_event(store, row) for row in rows]


def events_of_job(store: Store, job_id: int) -> list[Event]:
    """Returns all events of a job."""
    rows = store.db.rows(f"{_EVENT_QUERY} WHERE history.job_id = ? ORDER BY history.rowid", job_id)
    return [_event(store, row) for row in rows]


def id_before_last(store: Store, count: int) -> int:
    """Returns the id after which the last `count` events follow."""
    row = store.db.row("SELECT rowid AS id FROM history ORDER BY rowid DESC LIMIT 1 OFFSET ?", count)
    return row["id"] if row else 0


def is_event(store: Store, event_id: int, time: float, kind: str, job_id: int) -> bool:
    """Returns whether the store has this event. time: wall seconds, compared to the millisecond."""
    row = store.db.row("SELECT job_id, at, state FROM history WHERE rowid = ?", event_id)
    if row is None or (row["state"], row["job_id"]) != (kind, job_id):
        return False
    return abs(float(row["at"]) - time) < 0.002


def finish_event_before(store: Store, event: Event) -> int | None:
    """Returns the id of the event that finished the job before this one; None if it was not finished."""
    row = store.db.row(
        "SELECT rowid AS id, state FROM history WHERE job_id = ? AND rowid < ? AND state IN"
        " ('held', 'queued', 'starting', 'running', 'stopping', 'finished') ORDER BY rowid DESC LIMIT 1",
        event.job_id,
        event.id,
    )
    return row["id"] if row is not None and row["state"] == "finished" else None


def has_changed_since(store: Store, event: Event, after: int) -> bool:
    """Returns whether the job started or finished between the event with id `after` and this event."""
    row = store.db.row(
        "SELECT 1 FROM history WHERE job_id = ? AND rowid > ? AND rowid < ?"
        " AND state IN ('starting', 'finished') LIMIT 1",
        event.job_id,
        after,
        event.id,
    )
    return row is not None


def _event(store: Store, row: sqlite3.Row) -> Event:
    data = json.loads(row["data"])
    wait = data.pop(WAIT_KEY, None)
    if row["state"] == "misplaced process":
        data["allocated"] = _allocated_gpus(store, row["job_id"], data["attempt"])
    elif row["state"] == "finished" and not data:
        data |= _outcome_without_attempt(store, row["job_id"], row["id"])
    reason = row["reason"]
    if reason is not None and row["state"] in _JOB_STATES:
        reason = StateReason.from_json(reason)
    return Event(
        id=row["id"], at=row["at"], kind=row["state"], job_id=row["job_id"], reason=reason,
        data=data, command=row["text"] or "", name=row["name"], spec=row["spec"] or "{}",
        is_new_job=bool(row["new"]), wait=wait and WaitReason.from_json(wait),
    )  # fmt: skip


def _allocated_gpus(store: Store, job_id: int, number: int) -> list[int]:
    """Returns the indices of the GPUs allocated to an attempt."""
    row = store.db.row("SELECT gpus FROM attempt WHERE job_id = ? AND number = ?", job_id, number)
    index = store.gpu_indices()
    return [index.get(uuid, -1) for uuid in json.loads(row["gpus"])] if row else []


def _outcome_without_attempt(store: Store, job_id: int, event_id: int) -> dict[str, str]:
    """Returns the outcome of a job that this event ended without an attempt; empty once the job ran again."""
    row = store.db.row(
        "SELECT outcome FROM job WHERE id = ? AND state = 'finished' AND NOT EXISTS"
        " (SELECT 1 FROM history WHERE job_id = job.id AND rowid > ? AND history.state = 'finished')",
        job_id,
        event_id,
    )
    return {"outcome": row["outcome"]} if row else {}
