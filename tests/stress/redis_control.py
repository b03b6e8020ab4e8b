"""Negative control: a box on the Redis queue that claims items with a fence, but starts them without confirm.

Usage: python -m tests.stress.redis_control PORT NAME SLOTS. A claim of a box whose counter has not moved for
SILENT_S goes back to the set. Nobody confirms a claim, so this also befalls items that run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import redis

from tests.stress.redis_source import QUEUE

SILENT_S = 1.0
_POLL_S = 0.02
_CLAIM = """
local found = redis.call('zpopmin', KEYS[1])
if #found == 0 then return false end
redis.call('hset', 'claims', found[1], ARGV[1])
return {found[1], redis.call('get', 'scheduler:job:' .. found[1])}
"""
_GIVE_BACK = """
if redis.call('hget', 'claims', ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('hdel', 'claims', ARGV[1])
return redis.call('zadd', KEYS[1], 0, ARGV[1])
"""


class UnconfirmedBox:
    """A box that runs what it has claimed at once."""

    def __init__(self, client: redis.Redis, name: str, slots: int) -> None:
        self._client, self._name, self._slots = client, name, slots
        self._running: dict[bytes, subprocess.Popen[bytes]] = {}
        self._seen: dict[bytes, tuple[bytes, float]] = {}

    def run(self) -> None:
        """Takes items until it is killed."""
        print("ready", flush=True)
        while True:
            self._client.hincrby("boxes", self._name, 1)
            self._give_back()
            for name in [name for name, process in self._running.items() if process.poll() is not None]:
                self._client.hdel("claims", name)
                del self._running[name]
            fence = f"{self._name}:{os.urandom(8).hex()}"
            found: Any = None
            if len(self._running) < self._slots:
                found = self._client.eval(_CLAIM, 1, QUEUE, fence)
            if not found:
                time.sleep(_POLL_S)
                continue
            script = json.loads(found[1])["model_script"]
            self._running[found[0]] = subprocess.Popen(["python", script], start_new_session=True)

    def _give_back(self) -> None:
        now = time.monotonic()
        boxes: Any = self._client.hgetall("boxes")
        claims: Any = self._client.hgetall("claims")
        silent = set()
        for box, counter in boxes.items():
            if self._seen.get(box, (b"", 0.0))[0] != counter:
                self._seen[box] = counter, now
            if now - self._seen[box][1] > SILENT_S:
                silent.add(box)
        for name, claim in claims.items():
            if claim.partition(b":")[0] in silent:
                self._client.eval(_GIVE_BACK, 1, QUEUE, name, claim)


if __name__ == "__main__":
    os.environ["BOX"] = sys.argv[2]
    UnconfirmedBox(redis.Redis(port=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])).run()
