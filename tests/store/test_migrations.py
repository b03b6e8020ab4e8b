"""A record of an earlier version opens, with what it holds."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from gpu_scheduler.store import database
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.store import Store

MIGRATIONS = Path(database.__file__).with_name("migrations")


def columns(store: Store) -> dict[str, list[str]]:
    tables = [row["name"] for row in store.db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: [row["name"] for row in store.db.rows(f"PRAGMA table_info({table})")] for table in tables}


def test_what_open_attempts_of_an_earlier_version_declared(tmp_path: Path) -> None:
    home = Home.of(str(tmp_path / "old.json"))
    home.create()
    old = sqlite3.connect(home.database)
    before = sorted(path for path in MIGRATIONS.glob("*.sql") if path.name < "0005")
    old.executescript("\n".join(path.read_text() for path in before) + "\nPRAGMA user_version = 4;")
    old.execute("INSERT INTO gpu (uuid, idx, name, total_mib) VALUES ('U0', 0, 'card', 24576)")
    old.execute(
        "INSERT INTO job (id, source, kind, identity, text, spec, ask, priority, place, state, created_at)"
        " VALUES (3, 'cli', 'command', 'x', 'true', '{}', '[]', 0, 1, 'running', 1.0)"
    )
    for number, (share, vram, whole) in enumerate(
        ((0, 9000, 0), (250, None, 0), (250, 9000, 0), (500, None, 1), (1000, None, 0), (1000, None, 1))
    ):
        old.execute(
            "INSERT INTO attempt (job_id, number, token, boot_id, gpus, share, vram, whole, baseline,"
            " deadline_boot, created_at) VALUES (3, ?, ?, 'b', ?, ?, ?, ?, '{}', 1.0, 1.0)",
            (number, str(number), '["U0", "gone"]', share, vram, whole),
        )
    old.commit()
    old.close()
    store = Store(home)
    assert [json.loads(row["budgets"]) for row in store.attempts(3)] == [
        {"U0": 9000, "gone": 9000},
        {"U0": 6144, "gone": None},
        {"U0": 9000, "gone": 9000},
        {"U0": 24576, "gone": None},
        {},
        {},
    ]
    store.close()


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
