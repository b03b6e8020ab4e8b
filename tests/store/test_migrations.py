"""A record of an earlier version opens, with what it holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gpu_scheduler.store import database
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store

MIGRATIONS = Path(database.__file__).with_name("migrations")


def columns(store: Store) -> dict[str, list[str]]:
    tables = [row["name"] for row in store.db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: [row["name"] for row in store.db.rows(f"PRAGMA table_info({table})")] for table in tables}


def test_the_first_version_opens_and_becomes_the_newest(tmp_path: Path) -> None:
    fresh = Store(Home.of(str(tmp_path / "fresh.json")), create=True)
    home = Home.of(str(tmp_path / "old.json"))
    home.create()
    old = sqlite3.connect(home.database)
    old.executescript((MIGRATIONS / "0001_initial.sql").read_text() + "\nPRAGMA user_version = 1;")
    old.execute("INSERT INTO gpu (uuid, idx, name) VALUES ('U0', 0, 'card')")
    old.execute(
        "INSERT INTO job (id, source, kind, identity, text, spec, ask, priority, place, state, created_at)"
        " VALUES (3, 'cli', 'command', 'x', 'true', '{}', '[]', 0, 1, 'running', 1.0)"
    )
    old.execute(
        "INSERT INTO attempt (job_id, number, token, boot_id, gpus, share, baseline, deadline_boot,"
        " created_at) VALUES (3, 1, 't', 'b', '[\"U0\"]', 1000, '{}', 1.0, 1.0)"
    )
    old.commit()
    old.close()
    store = Store(home)
    assert columns(store) == columns(fresh)
    [attempt], [gpu] = store.attempts(3), store.gpus()
    assert (attempt["strays"], gpu["processes"], gpu["loads"]) == ("[]", None, "[]")
    store.close()
    fresh.close()
