"""The producer and the readers of the source document, with its keys and its JSON.

Its scheduler, and how it adds and writes records, is in tests/stress/redis_source.py.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import redis

from tests.stress.redis_source import QUEUE, RECORD, record_of, submit

FIELDS = sorted(record_of("", "", 0))


class SourceQueue:
    """The queue as programs use it that follow the source document."""

    def __init__(self, client: redis.Redis) -> None:
        self.r: Any = client

    def submit(self, script: str, memory_mb: int = 1000, **given: Any) -> str:
        """Adds a job: first its id, then its record, as the source does."""
        job = {**record_of(uuid.uuid4().hex[:12], script, memory_mb), **given}
        submit(self.r, job)
        return str(job["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Returns the nine fields of a job. Fails if there are others, as the source's readers do."""
        found: dict[str, Any] = json.loads(self.r.get(RECORD + job_id))
        assert sorted(found) == FIELDS
        return found

    def status(self, job_id: str) -> str:
        """Returns the status of a job."""
        return str(self.job(job_id)["status"])

    def waiting(self) -> list[str]:
        """Returns the ids in the queue, in order."""
        return [one.decode() for one in self.r.zrange(QUEUE, 0, -1)]

    def peek(self, count: int = 10) -> list[dict[str, Any]]:
        """Returns the first jobs of the queue."""
        return [self.job(one.decode()) for one in self.r.zrange(QUEUE, 0, count - 1)]
