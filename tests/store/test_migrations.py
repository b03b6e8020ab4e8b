"""A record of an earlier version opens, with what it holds."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

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


def test_two_processes_open_a_record_of_an_earlier_version_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scheduler.db"
    first = min(MIGRATIONS.glob("*.sql"))
    with closing(sqlite3.connect(path)) as old:
        old.executescript(f"{first.read_text()}\nPRAGMA user_version = 1;")
    upgrade = database.Database._upgrade

    def after_another(self: database.Database, number: int, script: str) -> None:
        """The other process comes between the look at the version and the first step."""
        monkeypatch.undo()
        database.Database(path).close()
        upgrade(self, number, script)

    monkeypatch.setattr(database.Database, "_upgrade", after_another)
    late = database.Database(path)
    newest = database.Database(tmp_path / "fresh.db", create=True)
    for db in (late, newest):
        assert db.row("PRAGMA user_version")[0] == len(list(MIGRATIONS.glob("*.sql")))  # type: ignore[index]
    schema = "SELECT sql FROM sqlite_master WHERE name = 'attempt'"
    assert list(late.rows(schema)[0]) == list(newest.rows(schema)[0])
    late.close()
    newest.close()


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
