"""Negative control: runs the program without forcing commits and results to the disk.

Usage: python -m tests.stress.no_fsync COMMAND…, with the same arguments as `python -m gpu_scheduler`.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import Any


class _Unsynced(sqlite3.Connection):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Executes the statement, but with `synchronous=OFF` instead of `synchronous=FULL`."""
        return super().execute(sql.replace("synchronous=FULL", "synchronous=OFF"), *values)


def disable_fsync() -> None:
    """Disables fsync and synchronous commits in this process from now on."""
    real = sqlite3.connect

    def connect(*words: Any, **more: Any) -> sqlite3.Connection:
        return real(*words, factory=_Unsynced, **more)

    sqlite3.connect = connect  # type: ignore[assignment]
    os.fsync = lambda fd: None


if __name__ == "__main__":
    disable_fsync()
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
