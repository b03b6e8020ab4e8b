"""Adds front ends' requests to the store, where the loop reads them, and reads the answers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from gpu_scheduler.store.database import insert
from gpu_scheduler.store.store import Store

if TYPE_CHECKING:
    from gpu_scheduler.core.model.request import Request, RequestAnswer


def add_request(store: Store, verb: str, target: str = "", by: str = "cli", **args: object) -> int:
    """Adds a request for the loop. Returns the request's id, which `request_answer` accepts."""
    with store.db.transaction() as db:
        return insert(
            db, "request", verb=verb, target=target, args=json.dumps(args), by=by, made_at=time.time()
        )


def request_answer(store: Store, request_id: int) -> RequestAnswer | None:
    """Returns the answer to a request, or None if it has not been answered yet."""
    row = store.db.row("SELECT answer FROM request WHERE id = ?", request_id)
    if row is None or row["answer"] is None:
        return None
    from gpu_scheduler.core.model.request import RequestAnswer

    return RequestAnswer.from_json(row["answer"])


def request_target(store: Store, request_id: int) -> str | None:
    """Returns the target of a request, or None if there is no such request."""
    row = store.db.row("SELECT target FROM request WHERE id = ?", request_id)
    return None if row is None else row["target"]


def open_requests(store: Store) -> list[Request]:
    """Returns the requests that have not been answered yet, oldest first."""
    rows = store.db.rows("SELECT id, verb, target, args FROM request WHERE answered_at IS NULL ORDER BY id")
    if not rows:
        return []
    from gpu_scheduler.core.model.request import Request

    return [Request(row["id"], row["verb"], row["target"], json.loads(row["args"])) for row in rows]


def withdraw_request(store: Store, request_id: int) -> bool:
    """Withdraws a request. Returns False if it has already been answered."""
    from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer

    with store.db.transaction() as db:
        cursor = db.execute(
            "UPDATE request SET answered_at = ?, answer = ? WHERE id = ? AND answered_at IS NULL",
            (time.time(), RequestAnswer(AnswerCode.WITHDRAWN).to_json(), request_id),
        )
    return cursor.rowcount == 1
