"""Remembers the items that this store has taken from a Redis queue, and the store's id in that queue."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from gpu_scheduler.store.database import insert
from gpu_scheduler.store.moved_or_copied import recorded_location
from gpu_scheduler.store.requests import add_request, open_requests
from gpu_scheduler.store.store import Store

#: open: it is this store's. ended: its end is written back, too. gone: another box may have it, so its job
#: must not start here; one that runs already goes on. What its job does decides the rest: an ended item whose
#: job is run again is claimed again, and a job of an item that is gone is cancelled unless it has started.
ItemState = Literal["open", "ended", "gone"]
_BOX_KEY, _PROBLEM_KEY = "redis_box", "redis_problem"
_COLUMNS = ("redis_id", "fence", "job_id", "score", "record", "arguments", "state", "written")
#: Seconds after which the claim of an ended item expires in Redis, and its row here.
_KEPT_S = 30 * 86400
_STATUS = """
    CASE WHEN job.state IN ('queued', 'held') THEN 'queued'
        WHEN job.state <> 'finished' THEN 'running'
        WHEN job.outcome = 'completed' THEN 'completed' ELSE 'failed' END"""
#: The items with what their jobs do.
_ITEMS = f"""
    SELECT {", ".join(f"taken_item.{name}" for name in _COLUMNS)},
        job.id IS NULL AS is_forgotten, coalesce(taken_item.status, {_STATUS}) AS status,
        (SELECT json_group_array(idx) FROM (SELECT idx FROM allocation JOIN gpu ON uuid = allocation.gpu
            WHERE attempt_id = attempt.id AND job.state NOT IN ('queued', 'held') ORDER BY idx)) AS gpus,
        CASE WHEN job.state IN ('starting', 'running', 'stopping') THEN attempt.runner_pid END AS pid,
        job.state IN ('queued', 'held') AND json_extract(job.line_wait, '$.kind') IS 'not confirmed'
            AND NOT EXISTS (SELECT 1 FROM request WHERE answered_at IS NULL AND verb = 'confirm'
                AND target = CAST(job.id AS TEXT)) AS is_gated,
        job.state IN ('queued', 'held') AND attempt.id IS NULL AS is_unstarted,
        job.state IS 'queued' AND attempt.id IS NULL AS may_return,
        job.stop_cause IS 'cancelled' AS is_cancelled
    FROM taken_item LEFT JOIN job ON job.id = taken_item.job_id LEFT JOIN attempt ON attempt.job_id = job.id
        AND number = (SELECT max(number) FROM attempt AS one WHERE one.job_id = job.id)
"""
_UNFINISHED = "SELECT id FROM job WHERE state <> 'finished'"


class TakenItem(Struct, frozen=True):
    """An item, with the values of its claim and the state of its job.

    record, arguments: the texts of its record and of its arguments when it was claimed; written: the status
    that was last written back, as JSON; None if there is none. status: that of its job, as the source names
    it; is_forgotten: its job was forgotten, and had this status; is_gated: the job waits for its
    confirmation, which is not requested yet; is_unstarted: it waits and has never been started; may_return:
    it is also queued; is_cancelled: it is being cancelled.
    """

    redis_id: str
    fence: str
    job_id: int
    score: str
    record: str
    arguments: str | None = None
    state: ItemState = "open"
    written: str | None = None
    status: str = "queued"
    gpus: tuple[int, ...] = ()
    pid: int | None = None
    is_forgotten: bool = False
    is_gated: bool = False
    is_unstarted: bool = False
    may_return: bool = False
    is_cancelled: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its job has ended."""
        return self.status in ("completed", "failed")


def add_item(store: Store, item: TakenItem) -> None:
    """Adds an item, in the caller's transaction if there is one."""
    with store.db.transaction() as db:
        insert(db, "taken_item", set_at=time.time(), **{name: getattr(item, name) for name in _COLUMNS})


def open_items(store: Store) -> list[TakenItem]:
    """Returns the items whose jobs have not ended, or whose ends are not written back, oldest first."""
    is_open = "SELECT job_id FROM taken_item WHERE state = 'open'"
    return _items(store, f"taken_item.job_id IN ({is_open} UNION {_UNFINISHED})")


def kept_items(store: Store) -> list[TakenItem]:
    """Returns all items that are this store's, ended ones too. Drops those of more than 30 days ago."""
    old = f"state <> 'open' AND set_at < ? AND job_id NOT IN ({_UNFINISHED})"
    store.db.write(f"DELETE FROM taken_item WHERE {old}", time.time() - _KEPT_S)
    return _items(store, "taken_item.state IN ('open', 'ended')")


def _items(store: Store, which: str) -> list[TakenItem]:
    rows = store.db.rows(f"{_ITEMS} WHERE {which} ORDER BY taken_item.job_id")
    return [TakenItem(**{**dict(row), "gpus": tuple(json.loads(row["gpus"]))}) for row in rows]


def has_item(store: Store, redis_id: str, fence: str) -> bool:
    """Returns whether this store has taken an item with this fence, and has not given it up."""
    sql = "SELECT 1 FROM taken_item WHERE redis_id = ? AND fence = ? AND state <> 'gone'"
    return store.db.row(sql, redis_id, fence) is not None


def set_item(store: Store, item: TakenItem, state: ItemState, written: str | None = None) -> None:
    """Records the state of an item and what was written back, in the caller's transaction if there is one."""
    store.db.write(
        "UPDATE taken_item SET state = ?, written = coalesce(?, written), set_at = ?"
        " WHERE redis_id = ? AND fence = ?",
        state, written, time.time(), item.redis_id, item.fence,
    )  # fmt: skip


def keep_statuses(db: sqlite3.Connection) -> None:
    """Records what the jobs of the items do, before all jobs are forgotten.

    A job that never started is still queued, so its item can be given back; another one has failed.
    """
    unstarted = "NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job_id = job.id)"
    db.execute(
        f"UPDATE taken_item SET status = (SELECT CASE WHEN job.state = 'finished' THEN {_STATUS}"
        f" WHEN {unstarted} THEN 'queued' ELSE 'failed' END FROM job WHERE job.id = taken_item.job_id)"
        " WHERE status IS NULL"
    )


def request(store: Store, verb: str, jobs: Collection[int], **args: object) -> None:
    """Requests `confirm`, `unconfirm` or `cancel` for jobs, except those of which this is requested."""
    newest = {one.target: one.verb for one in open_requests(store)} if jobs else {}
    wanted = [str(one) for one in jobs if newest.get(str(one)) != verb]
    if wanted:
        with store.db.transaction():
            for job_id in wanted:
                add_request(store, verb, job_id, "redis", **args)
        store.data_dir.ring_doorbell()


def give_up(store: Store, item: TakenItem) -> None:
    """Requests the cancel of a job that must not start here, and records that its item is gone."""
    with store.db.transaction():
        request(store, "cancel", [item.job_id], given_back=True)
        set_item(store, item, "gone")


def newest_job_of(store: Store, redis_id: str) -> int | None:
    """Returns the newest job of an item; None if this store has never taken it."""
    job_id: int | None = store.db.value("SELECT max(job_id) FROM taken_item WHERE redis_id = ?", redis_id)
    return job_id


def box_id(store: Store) -> str:
    """Returns the id of this store in Redis queues. Creates it if there is none.

    A copy of a store gets another id and forgets the items, because they belong to the original; their jobs
    that have started here go on. A scheduler must have been started with this store, so that it has an id of
    its own.
    """
    location = recorded_location(store)
    assert location is not None
    known = json.loads(store.db.meta(_BOX_KEY) or "null")
    if known is None or known["folder"] != location.id:
        known = {"box": os.urandom(8).hex(), "folder": location.id}
        with store.db.transaction() as db:
            store.db.set_meta(_BOX_KEY, json.dumps(known))
            db.execute("UPDATE taken_item SET state = 'gone'")
    return str(known["box"])


def redis_problem(store: Store) -> str | None:
    """Returns what keeps the agent of this store from its queue, as a text; None if nothing does."""
    return store.db.meta(_PROBLEM_KEY) or None


def set_redis_problem(store: Store, problem: str | None) -> None:
    """Records what keeps the agent from its queue."""
    if problem != redis_problem(store):
        store.db.set_meta(_PROBLEM_KEY, problem or "", synced=False)
