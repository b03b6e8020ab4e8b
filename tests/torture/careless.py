"""The program with its record kept carelessly: commits and results are not brought to the disk.

Usage: python -m tests.torture.careless COMMAND…, as `python -m gpu_scheduler`.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import Any


class _Careless(sqlite3.Connection):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run it, with less than what was asked for."""
        return super().execute(sql.replace("synchronous=FULL", "synchronous=OFF"), *values)


def be_careless() -> None:
    """From here on this process believes that what it wrote is on the disk."""
    real = sqlite3.connect

    def connect(*words: Any, **more: Any) -> sqlite3.Connection:
        return real(*words, factory=_Careless, **more)

    sqlite3.connect = connect  # type: ignore[assignment]
    os.fsync = lambda fd: None


if __name__ == "__main__":
    be_careless()
    from gpu_scheduler.cli import main

    sys.exit(main(sys.argv[1:]))
