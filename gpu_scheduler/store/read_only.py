"""Reads a database without opening it as a store, so nothing is created, changed or upgraded."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from gpu_scheduler.store import permissions


def connect_read_only(path: Path, *, immutable: bool = False, timeout_s: float = 5.0) -> sqlite3.Connection:
    """Opens a database for reading. Raises sqlite3.Error.

    immutable: the caller ensures that no process writes to the database, and SQLite creates no file beside
    it.
    """
    mode = "immutable=1" if immutable else "mode=ro"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=timeout_s)


def query_read_only(path: Path, sql: str) -> list[sqlite3.Row] | None:
    """Returns the rows of a query without changing the database, not even its schema.

    Returns None if there is no database or it cannot be read at the moment.
    """
    if not os.path.exists(path) or not permissions.is_ours(path.parent):  # also if access is denied
        return None
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA query_only = 1")
            return db.execute(sql).fetchall()
    except sqlite3.Error:
        return None  # the next attempt to open the database reports the error


def has_meta(path: Path, key: str) -> bool:
    """Returns whether a readable database has this key in its table `meta`."""
    return read_meta(path, key) is not None


def read_meta(path: Path, key: str) -> str | None:
    """Returns the value of a key in the table `meta`; None if there is none or the database is unreadable."""
    rows = query_read_only(path, "SELECT key, value FROM meta") or []
    return next((row["value"] for row in rows if row["key"] == key), None)


def check_integrity(path: Path, timeout_s: float) -> tuple[int, str | None]:
    """Returns a database's schema version and the damage found within the time limit (None if none).

    Raises sqlite3.Error if the database cannot be read.
    """
    end = time.monotonic() + timeout_s
    with closing(connect_read_only(path, timeout_s=2.0)) as db:
        db.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        schema: int = db.execute("PRAGMA user_version").fetchone()[0]
        try:
            result = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "interrupt" not in str(error):
                raise
            result = "ok"  # too large to be read in time; the part that was read is intact
    return schema, None if result == "ok" else str(result)
