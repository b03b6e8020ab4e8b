"""The queue and the scheduler of the source document on Redis: what other programs on the same keys do.

Usage: python -m tests.stress.redis_source PORT SLOTS. Runs a scheduler that pops an item, runs it if one of
its slots is free, and otherwise adds it again. It is a negative control, too: killed, it loses what it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import redis

QUEUE, RECORD = "scheduler:queue", "scheduler:job:"
#: Names of the states in a record.
QUEUED, RUNNING, COMPLETED, FAILED = "queued", "running", "completed", "failed"
NORMAL, HIGH = 200, 100
_POLL_S = 0.02


def record_of(name: str, script: str, memory_mb: int, priority: int = NORMAL) -> dict[str, Any]:
    """Returns a new record, with exactly the nine fields of the source."""
    return {
        "model_script": script, "gpu_memory_mb": memory_mb, "num_gpus": 1, "priority": priority,
        "job_id": name, "status": QUEUED, "assigned_gpus": [], "created_at": time.time(), "pid": None,
    }  # fmt: skip


def submit(client: redis.Redis, record: dict[str, Any]) -> None:
    """Adds an item as the source's producer does: first to the set, then its record."""
    client.zadd(QUEUE, {record["job_id"]: record["priority"] * 1e10 + record["created_at"]})
    client.set(RECORD + record["job_id"], json.dumps(record))


def status_of(client: redis.Redis, name: str) -> str | None:
    """Returns the status in the record of an item; None if there is no record."""
    raw = client.get(RECORD + name)
    return None if raw is None else str(json.loads(raw)["status"])


class SourceScheduler:
    """The source's scheduler, with slots instead of GPUs."""

    def __init__(self, client: redis.Redis, slots: int) -> None:
        self._client, self._slots = client, slots
        self._running: dict[str, tuple[subprocess.Popen[bytes], dict[str, Any]]] = {}

    def run(self) -> None:
        """Takes items until it is killed."""
        print("ready", flush=True)
        while True:
            self._reap()
            found: Any = self._client.zpopmin(QUEUE, count=1)
            raw: Any = self._client.get(RECORD + found[0][0].decode()) if found else None
            if raw is None:
                time.sleep(_POLL_S)
                continue
            record = json.loads(raw)
            if len(self._running) >= self._slots:
                submit(self._client, record)
                time.sleep(_POLL_S)
                continue
            process = subprocess.Popen(["python", record["model_script"]], start_new_session=True)
            self._write(record, RUNNING, process.pid)
            self._running[record["job_id"]] = process, record

    def _reap(self) -> None:
        for name, (process, record) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                self._write(record, FAILED if code else COMPLETED, process.pid)
                del self._running[name]

    def _write(self, record: dict[str, Any], status: str, pid: int) -> None:
        record |= {"status": status, "pid": pid}
        self._client.set(RECORD + record["job_id"], json.dumps(record))


if __name__ == "__main__":
    os.environ["BOX"] = "source"
    SourceScheduler(redis.Redis(port=int(sys.argv[1])), int(sys.argv[2])).run()
