"""Remembers the items that this store has taken from a Redis queue, and the store's id in that queue."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.store.database import insert
from gpu_scheduler.store.location import recorded_location
from gpu_scheduler.store.store import Store

#: open: its job has not ended, or its end is not written back yet. ended: it is. gone: another box may have
#: it, and its job never started here. second: its job goes on although the item was given to another box.
ItemState = Literal["open", "ended", "gone", "second"]
_BOX_KEY, _PROBLEM_KEY = "redis_box", "redis_problem"


@dataclass(frozen=True)
class TakenItem:
    """An item, with the values of its claim. record: the text of its record when it was claimed.

    written: the status that was last written back, as JSON; None if there is none.
    """

    redis_id: str
    fence: str
    job_id: int
    score: str
    record: str
    state: ItemState = "open"
    written: str | None = None


def add_item(store: Store, item: TakenItem) -> None:
    """Adds an item, in the caller's transaction if there is one."""
    with store.db.transaction() as db:
        insert(db, "taken_item", **vars(item))


def open_items(store: Store) -> list[TakenItem]:
    """Returns the items whose jobs have not ended, or whose ends are not written back, oldest first."""
    sql = "SELECT * FROM taken_item WHERE state IN ('open', 'second') ORDER BY job_id"
    return [TakenItem(**dict(row)) for row in store.db.rows(sql)]


def kept_items(store: Store) -> list[TakenItem]:
    """Returns all items that no other box may run, ended ones too."""
    rows = store.db.rows("SELECT * FROM taken_item WHERE state <> 'gone' ORDER BY job_id")
    return [TakenItem(**dict(row)) for row in rows]


def set_item(store: Store, item: TakenItem, state: ItemState, written: str | None = None) -> None:
    """Records the state of an item and what was written back, in the caller's transaction if there is one."""
    with store.db.transaction() as db:
        db.execute(
            "UPDATE taken_item SET state = ?, written = coalesce(?, written)"
            " WHERE redis_id = ? AND fence = ?",
            (state, written, item.redis_id, item.fence),
        )


def newest_job_of(store: Store, redis_id: str) -> int | None:
    """Returns the newest job of an item; None if this store has never taken it."""
    row = store.db.row("SELECT max(job_id) AS id FROM taken_item WHERE redis_id = ?", redis_id)
    return None if row is None else row["id"]


def box_id(store: Store) -> tuple[str, bool]:
    """Returns the id of this store in Redis queues, and whether it is new. Creates it if there is none.

    A copy of a store gets another id, because the items belong to the original. A scheduler must have been
    started with this store, so that it has an id of its own.
    """
    location = recorded_location(store)
    assert location is not None
    folder = location.id
    known = json.loads(store.db.meta(_BOX_KEY) or "null")
    if known is not None and known["folder"] == folder:
        return str(known["box"]), False
    made = os.urandom(8).hex()
    store.db.set_meta(_BOX_KEY, json.dumps({"box": made, "folder": folder}))
    return made, True


def redis_problem(store: Store) -> str | None:
    """Returns why the agent of this store cannot reach its queue; None if it can or there is none."""
    return store.db.meta(_PROBLEM_KEY) or None


def set_redis_problem(store: Store, problem: str | None) -> None:
    """Records why the agent cannot reach its queue."""
    if problem != redis_problem(store):
        store.db.set_meta(_PROBLEM_KEY, problem or "", synced=False)


def forget_items(store: Store, jobs: Sequence[int]) -> None:
    """Forgets the items of a copied store. jobs: those that have started."""
    with store.db.transaction() as db:
        db.execute("DELETE FROM taken_item WHERE state <> 'open'")
        db.execute(
            "UPDATE taken_item SET state = CASE WHEN job_id IN (SELECT value FROM json_each(?))"
            " THEN 'second' ELSE 'open' END", (json.dumps(list(jobs)),),
        )  # fmt: skip
