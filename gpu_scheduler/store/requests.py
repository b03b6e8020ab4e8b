"""Adds what front ends write beside jobs, and reads it: requests with their answers, the environments of
submitted jobs, and the keys of submissions.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from gpu_scheduler.config import REDIS_URL_VARIABLE
from gpu_scheduler.errors import SchedulerError
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
    answer = store.db.value("SELECT answer FROM request WHERE id = ?", request_id)
    if answer is None:
        return None
    from gpu_scheduler.core.model.request import RequestAnswer

    return RequestAnswer.from_json(answer)


def request_target(store: Store, request_id: int) -> str | None:
    """Returns the target of a request, or None if there is no such request."""
    target: str | None = store.db.value("SELECT target FROM request WHERE id = ?", request_id)
    return target


def open_requests(store: Store) -> list[Request]:
    """Returns the requests that have not been answered yet, oldest first."""
    rows = store.db.rows("SELECT id, verb, target, args FROM request WHERE answered_at IS NULL ORDER BY id")
    if not rows:
        return []
    from gpu_scheduler.core.model.request import Request

    return [Request(request_id, verb, target, json.loads(args)) for request_id, verb, target, args in rows]


def withdraw_request(store: Store, request_id: int) -> bool:
    """Withdraws a request. Returns False if it has already been answered."""
    from gpu_scheduler.core.model.request import AnswerCode, RequestAnswer

    changed = store.db.write(
        "UPDATE request SET answered_at = ?, answer = ? WHERE id = ? AND answered_at IS NULL",
        time.time(), RequestAnswer(AnswerCode.WITHDRAWN).to_json(), request_id,
    )  # fmt: skip
    return changed == 1


# Keeps the environment variables with which jobs were submitted.
#
# They may contain secrets, so only the launch of a job reads them, and no view contains them. Jobs with equal
# variables share one row. A row is kept as long as its jobs, because each of them can be queued again.


def add_environment(store: Store, variables: Mapping[str, str]) -> str:
    """Adds these variables, in the caller's transaction if there is one. Returns their key.

    The URL of a Redis queue is left out, because jobs never get it.
    """
    # Escapes keep bytes that are not UTF-8, which `os.environ` represents as lone surrogates.
    kept = {name: value for name, value in variables.items() if name != REDIS_URL_VARIABLE}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True)
    key = hashlib.sha256(text.encode("ascii")).hexdigest()
    store.db.write("INSERT OR IGNORE INTO environment (hash, variables) VALUES (?, ?)", key, text)
    return key


class LaunchContext(NamedTuple):
    """The parts of the submission of a job that its launch needs.

    environment: the variables with which it was submitted; None if it uses those of the scheduler.
    source_cwd: the working folder of its jobs file; None for any other source.
    """

    environment: Mapping[str, str] | None
    source_cwd: str | None


def launch_context(store: Store, job_id: int) -> LaunchContext:
    """Returns the launch context of a job. Raises KeyError if the store has lost its environment."""
    row = store.db.row(
        "SELECT job.environment, variables, cwd FROM job"
        " LEFT JOIN environment ON hash = job.environment"
        " LEFT JOIN jobs_file ON job.source LIKE 'file:%' AND path = substr(job.source, 6)"
        " WHERE job.id = ?",
        job_id,
    )
    assert row is not None
    if row["environment"] is not None and row["variables"] is None:
        raise KeyError(row["environment"])
    return LaunchContext(None if row["environment"] is None else json.loads(row["variables"]), row["cwd"])


# Remembers the keys of submissions for a day, so that a repeated request adds no second job.


_KEPT_S = 24 * 3600.0


class KeyReusedError(SchedulerError):
    """Raised for a key that belongs to a submission of other jobs."""


class SubmissionKey(Struct, frozen=True):
    """The key that a caller chose for a submission. digest: that of what is submitted."""

    caller: str
    route: str
    key: str
    digest: str


def recorded_answer(store: Store, key: SubmissionKey) -> str | None:
    """Returns the answer to the first submission with this key; None if there was none in the last day.

    Raises KeyReusedError if other jobs were submitted with it.
    """
    row = store.db.row(
        "SELECT digest, answer, job_id FROM submission_key"
        " WHERE caller = ? AND route = ? AND key = ? AND made_at > ?",
        key.caller, key.route, key.key, time.time() - _KEPT_S,
    )  # fmt: skip
    if row is None:
        return None
    if row["digest"] != key.digest:
        raise KeyReusedError(
            f"the key {key.key} belongs to another request, which submitted job {row['job_id']};"
            " nothing was submitted"
        )
    return str(row["answer"])


def record_submission(store: Store, key: SubmissionKey, job_id: int, answer: str) -> None:
    """Records the answer in the caller's transaction, and forgets the keys of the days before."""
    now = time.time()
    with store.db.transaction() as db:
        db.execute("DELETE FROM submission_key WHERE made_at <= ?", (now - _KEPT_S,))
        insert(db, "submission_key", **asdict(key), job_id=job_id, answer=answer, made_at=now)
