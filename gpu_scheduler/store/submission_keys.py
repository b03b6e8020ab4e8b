"""Remembers the keys of submissions for a day, so that a repeated request adds no second job."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.store import Store

_KEPT_S = 24 * 3600.0


class KeyReusedError(SchedulerError):
    """Raised for a key that belongs to a submission of other jobs."""


@dataclass(frozen=True)
class SubmissionKey:
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
        insert(db, "submission_key", **vars(key), job_id=job_id, answer=answer, made_at=now)
