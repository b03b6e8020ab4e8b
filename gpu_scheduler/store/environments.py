"""Keeps the environment variables with which jobs were submitted.

They may contain secrets, so only the launch of a job reads them, and no view contains them. Jobs with equal
variables share one row. A row is kept as long as its jobs, because each of them can be queued again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from gpu_scheduler.config import REDIS_URL_VARIABLE
from gpu_scheduler.store.store import Store


def add_environment(store: Store, variables: Mapping[str, str]) -> str:
    """Adds these variables, in the caller's transaction if there is one. Returns their key.

    The URL of a Redis queue is left out, because jobs never get it.
    """
    # Escapes keep bytes that are not UTF-8, which `os.environ` represents as lone surrogates.
    kept = {name: value for name, value in variables.items() if name != REDIS_URL_VARIABLE}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True)
    key = hashlib.sha256(text.encode("ascii")).hexdigest()
    with store.db.transaction() as db:
        db.execute("INSERT OR IGNORE INTO environment (hash, variables) VALUES (?, ?)", (key, text))
    return key


def environment_of_job(store: Store, job_id: int) -> dict[str, str] | None:
    """Returns the variables with which a job was submitted; None if it uses those of the scheduler.

    Raises KeyError if the variables are missing from the store.
    """
    row = store.db.row(
        "SELECT job.environment, variables FROM job LEFT JOIN environment ON hash = job.environment"
        " WHERE job.id = ?",
        job_id,
    )
    if row is None or row["environment"] is None:
        return None
    if row["variables"] is None:
        raise KeyError(row["environment"])
    variables: dict[str, str] = json.loads(row["variables"])
    return variables
