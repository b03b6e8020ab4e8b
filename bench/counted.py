"""Runs the scheduler of the checkout that PYTHONPATH names, and writes what it cost to a file (see `costs`).

It imports nothing else from this checkout. PROFILE in the environment names a file for cProfile.
"""

from __future__ import annotations

import cProfile
import importlib
import json
import os
import runpy
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KINDS = {"SELECT": "reads", "WITH": "reads", "PRAGMA": "pragmas"}
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")
_LOOPS = ("gpu_scheduler.rounds.loop", "gpu_scheduler.loop")

counts = Counter[str]()
_real_connect = sqlite3.connect


class _Connection(sqlite3.Connection):
    """A connection that counts its statements. It counts a commit with a sync as a sync."""

    _synced = True
    _changes = 0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Counts the statement and executes it."""
        word = sql.split(None, 1)[0].upper()
        if threading.current_thread() is threading.main_thread():
            counts[_KINDS.get(word, "writes" if word in _WRITES else word)] += 1
            if word == "PRAGMA" and "synchronous" in sql:
                self._synced = "FULL" in sql.upper()
            if word == "BEGIN":
                self._changes = self.total_changes
            if word == "COMMIT" and self.total_changes != self._changes:
                counts["transactions"] += 1
                counts["syncs"] += self._synced
        return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Counts the statement once and executes it."""
        counts["writes"] += 1
        return super().executemany(sql, *values)


def _connect(*args: Any, **options: Any) -> sqlite3.Connection:
    return _real_connect(*args, factory=_Connection, **options)


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any, **options: Any) -> Any:
        counts[name] += 1
        return function(*args, **options)

    return count


def main(out: str, arguments: list[str]) -> None:
    """Runs the scheduler with these arguments, and writes the counts as JSON."""
    sqlite3.connect = _connect  # type: ignore[assignment]
    os.fsync = _counting("syncs", os.fsync)
    os.fdatasync = _counting("syncs", os.fdatasync)
    loop = next(filter(None, map(_imported, _LOOPS)))
    tick = loop.tick
    profile = cProfile.Profile() if "PROFILE" in os.environ else None
    began: list[float] = []

    def counted_tick(self: Any) -> Any:
        if not began:
            counts.clear()
            began[:] = [time.thread_time()]
            if profile is not None:
                profile.enable()
        counts["rounds"] += 1
        return tick(self)

    loop.tick = counted_tick
    sys.argv = ["gpu_scheduler", *arguments]
    try:
        runpy.run_module("gpu_scheduler", run_name="__main__", alter_sys=True)
    finally:
        counts["cpu_us"] = round((time.thread_time() - began[0]) * 1e6)
        if profile is not None:
            profile.disable()
            profile.dump_stats(os.environ["PROFILE"])
        Path(out).write_text(json.dumps(counts))


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name).Loop
    except ImportError:
        return None


if __name__ == "counted":
    main(sys.argv[1], sys.argv[2:])
