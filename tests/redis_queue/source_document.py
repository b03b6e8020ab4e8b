"""The producer, the readers and the scheduler's queue of the source document, with its keys and its JSON."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import redis

QUEUE, PREFIX = "scheduler:queue", "scheduler:job:"


class SourceQueue:
    """The queue as programs use it that follow the source document."""

    def __init__(self, client: redis.Redis) -> None:
        self.r: Any = client

    def submit(self, script: str, memory_mb: int = 1000, **given: Any) -> str:
        """Adds a job: first its id, then its record, as the source does."""
        job = {
            "model_script": script, "gpu_memory_mb": memory_mb, "num_gpus": 1, "priority": 200,
            "job_id": uuid.uuid4().hex[:12], "status": "queued", "assigned_gpus": [],
            "created_at": time.time(), "pid": None, **given,
        }  # fmt: skip
        self.again(job)
        return str(job["job_id"])

    def again(self, job: dict[str, Any]) -> None:
        """Adds a job, or one that was popped, once more."""
        self.r.zadd(QUEUE, {job["job_id"]: job["priority"] * 1e10 + job["created_at"]})
        self.r.set(PREFIX + job["job_id"], json.dumps(job))

    def pop_next(self) -> dict[str, Any] | None:
        """Pops the first job, as the source's own scheduler does."""
        found = self.r.zpopmin(QUEUE, count=1)
        raw = self.r.get(PREFIX + found[0][0].decode()) if found else None
        return None if raw is None else json.loads(raw)

    def job(self, job_id: str) -> dict[str, Any]:
        """Returns the nine fields of a job. Fails if there are others."""
        found: dict[str, Any] = json.loads(self.r.get(PREFIX + job_id))
        assert sorted(found) == sorted((
            "model_script", "gpu_memory_mb", "num_gpus", "priority", "job_id", "status", "assigned_gpus",
            "created_at", "pid",
        ))  # fmt: skip
        return found

    def status(self, job_id: str) -> str:
        """Returns the status of a job."""
        return str(self.job(job_id)["status"])

    def waiting(self) -> list[str]:
        """Returns the ids in the queue, in order."""
        return [one.decode() for one in self.r.zrange(QUEUE, 0, -1)]
