"""The queue and the scheduler of the source document on Redis: what other programs on the same keys do.

Usage: python -m tests.stress.redis_source PORT GPUS. Runs a scheduler that pops an item, runs it if enough of
its GPUs are free, and otherwise adds it again. For a critical item, it ends the job with the largest priority
and adds that one again. It is a negative control, too: killed, it loses what it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import redis

QUEUE, RECORD = "scheduler:queue", "scheduler:job:"
#: Names of the states in a record.
QUEUED, RUNNING, COMPLETED, FAILED = "queued", "running", "completed", "failed"
NORMAL, HIGH, CRITICAL = 200, 100, 0
_POLL_S = 0.02
#: The word before the name of an item that the scheduler has taken out of the set and lost.
DROPPED = "dropped"


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
    """The source's scheduler. Each of its GPUs has room for one job. env: the variables of the jobs."""

    def __init__(self, client: redis.Redis, gpus: int, env: Mapping[str, str] = os.environ) -> None:
        self._client, self._gpus, self._env = client, range(gpus), env
        self._running: dict[str, tuple[subprocess.Popen[bytes], list[int]]] = {}

    def run(self) -> None:
        """Takes items until it is killed."""
        print("ready", flush=True)
        while True:
            if self.round() is None:
                time.sleep(_POLL_S)

    def round(self) -> str | None:
        """Records what has ended, and pops an item. Returns its name if it starts, otherwise None."""
        self._reap()
        found: Any = self._client.zpopmin(QUEUE, count=1)
        if not found:
            return None
        name: str = found[0][0].decode()
        record = self._read(name)
        if record is None:  # its producer has not written it yet, so nobody has the item any more
            print(f"{DROPPED} {name}", flush=True)
            return None
        free = self._free(record)
        if free is None and record["priority"] == CRITICAL and self._preempt():
            free = self._free(record)
        if free is None:
            submit(self._client, record)
            return None
        env = {**self._env, "CUDA_VISIBLE_DEVICES": ",".join(map(str, free))}
        process = subprocess.Popen(["python", record["model_script"]], env=env, start_new_session=True)
        self._write(record | {"status": RUNNING, "assigned_gpus": free, "pid": process.pid})
        self._running[name] = process, free
        return name

    def end(self) -> None:
        """Ends its jobs."""
        for process, _ in self._running.values():
            process.kill()
            process.wait()

    def _free(self, record: Mapping[str, Any]) -> list[int] | None:
        taken = {gpu for _, gpus in self._running.values() for gpu in gpus}
        free, wanted = [gpu for gpu in self._gpus if gpu not in taken], record["num_gpus"]
        return free[:wanted] if len(free) >= wanted else None

    def _preempt(self) -> bool:
        """Ends the running job with the largest priority, if it is not critical, and adds it again."""
        known = [record for name in self._running if (record := self._read(name)) is not None]
        victim = max(known, key=lambda one: one["priority"], default=None)
        if victim is None or victim["priority"] <= CRITICAL:
            return False
        process, _ = self._running.pop(victim["job_id"])
        process.terminate()
        process.wait(30)
        submit(self._client, victim | {"status": QUEUED, "pid": None})
        return True

    def _reap(self) -> None:
        for name, (process, _) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                record = self._read(name)
                if record is not None:
                    self._write(record | {"status": FAILED if code else COMPLETED})
                del self._running[name]

    def _read(self, name: str) -> dict[str, Any] | None:
        raw: Any = self._client.get(RECORD + name)
        return None if raw is None else json.loads(raw)

    def _write(self, record: Mapping[str, Any]) -> None:
        self._client.set(RECORD + record["job_id"], json.dumps(record))


if __name__ == "__main__":
    os.environ["BOX"] = "source"
    SourceScheduler(redis.Redis(port=int(sys.argv[1])), int(sys.argv[2])).run()
