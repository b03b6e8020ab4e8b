"""A store of an earlier version opens with its content."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.errors import SchemaError, StoreNotFoundError
from gpu_scheduler.store import database
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store

MIGRATIONS = Path(database.__file__).with_name("migrations")


def columns(store: Store) -> dict[str, list[str]]:
    tables = [row["name"] for row in store.db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: [row["name"] for row in store.db.rows(f"PRAGMA table_info({table})")] for table in tables}


def upgraded(data_dir: DataDir) -> Store:
    """Opens the store as `start` does."""
    store = Store(data_dir, create=True)
    with store.db.upgraded():
        pass
    return store


def test_upgrades_the_declared_memory_of_open_attempts(tmp_path: Path) -> None:
    data_dir = DataDir.of(str(tmp_path / "old.json"))
    data_dir.create()
    old = sqlite3.connect(data_dir.database)
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
    store = upgraded(data_dir)
    assert [json.loads(row["budgets"]) for row in store.attempts(3)] == [
        {"U0": 9000, "gone": 9000},
        {"U0": 6144, "gone": None},
        {"U0": 9000, "gone": 9000},
        {"U0": 24576, "gone": None},
        {},
        {},
    ]
    store.close()


def make_old(path: Path, version: int) -> None:
    """Creates an empty database with this schema."""
    steps = sorted(MIGRATIONS.glob("*.sql"))[:version]
    with closing(sqlite3.connect(path)) as old:
        old.executescript("".join(step.read_text() for step in steps))
        old.execute(f"PRAGMA user_version = {version}")


def test_an_upgrade_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    make_old(path, 3)
    with closing(database.Database(path, create=True)) as db:
        with pytest.raises(ZeroDivisionError), db.upgraded():
            print(1 // (db.schema_version - database.newest_schema_version()))
        assert db.schema_version == 3
        with db.upgraded():
            pass
        with closing(database.Database(path)) as reader:
            assert reader.schema_version == len(list(MIGRATIONS.glob("*.sql")))


@pytest.mark.parametrize("version", [1, 9])
def test_a_reader_keeps_another_schema_and_names_the_remedy(tmp_path: Path, version: int) -> None:
    path = tmp_path / "scheduler.db"
    make_old(path, version)
    before = path.read_bytes()
    with pytest.raises(SchemaError) as raised:
        database.Database(path)
    newest = database.newest_schema_version()
    assert str(raised.value) == (
        f"the store in {tmp_path} has schema {version}; this version reads schema {newest}:"
        " `start` with this version upgrades it"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_treats_an_empty_database_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    path.touch()
    with pytest.raises(StoreNotFoundError):
        database.Database(path)
    assert path.stat().st_size == 0


def test_upgrades_a_database_of_the_first_version(tmp_path: Path) -> None:
    fresh = Store(DataDir.of(str(tmp_path / "fresh.json")), create=True)
    data_dir = DataDir.of(str(tmp_path / "old.json"))
    data_dir.create()
    old = sqlite3.connect(data_dir.database)
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
    store = upgraded(data_dir)
    assert columns(store) == columns(fresh)
    [attempt], [gpu] = store.attempts(3), store.gpus()
    assert (attempt["strays"], gpu["processes"], gpu["loads"]) == ("[]", None, "[]")
    store.close()
    fresh.close()
