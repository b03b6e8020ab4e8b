"""A store with an earlier schema opens with all its data. A development version's store is refused."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job import Allocation
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.errors import SchemaError, StoreNotFoundError
from gpu_scheduler.store import database, scheduler_lock
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.requests import open_requests
from gpu_scheduler.store.store import Store
from tests.store.golden_store import restore_golden

MIGRATIONS = Path(database.__file__).with_name("migrations")


def schema(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """Returns the columns of each table and, by the key "", the other objects of the schema."""
    tables = [row["name"] for row in store.db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: [tuple(row) for row in store.db.rows(f"PRAGMA table_info({table})")] for table in tables}
    others = store.db.rows(
        "SELECT type, name, tbl_name FROM sqlite_master WHERE type <> 'table' ORDER BY name"
    )
    return found | {"": [tuple(row) for row in others]}


def kept_store(folder: Path) -> DataDir:
    """Creates a data directory with the golden store of schema 1."""
    data_dir = DataDir.of(str(folder / "kept.json"))
    data_dir.create()
    restore_golden(data_dir.database)
    return data_dir


@pytest.fixture
def next_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Adds a migration to those of this version. Yields the migration's number."""
    number = database.newest_schema_version() + 1
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / f"{number:04}_test.sql").write_text(
        "ALTER TABLE job ADD COLUMN weight INTEGER NOT NULL DEFAULT 1; -- a column\n"
        "UPDATE job SET weight = 2 WHERE name = 'bert';\n"
    )
    monkeypatch.setattr(database, "_MIGRATIONS", folder)
    database._migration_files.cache_clear()
    yield number
    database._migration_files.cache_clear()


def test_opens_the_golden_store_of_schema_1(tmp_path: Path) -> None:
    store = Store(kept_store(tmp_path), create=True)
    with store.db.upgraded():
        pass
    done, runs, waits = (store.job(number) for number in (1, 2, 3))
    assert done is not None
    assert runs is not None
    assert waits is not None
    assert (done.state, done.outcome, done.exit_code) == (JobState.FINISHED, Outcome.FAILED, 3)
    assert (runs.state, runs.name, runs.spec.vram) == (JobState.RUNNING, "bert", 9000)
    assert waits.state is JobState.QUEUED
    [attempt] = store.active_attempts()
    assert attempt.allocations == (
        Allocation(0, 9000, False, 9500, "U1", 9000, 100, 80.0, 1, True),
        Allocation(0, 9000, False, None, "U0", 9000, None, 20.0, 1),
    )
    assert (attempt.job_id, attempt.runner, attempt.misplaced) == (2, (4711, 99, "boot"), (("U2", 78),))
    assert [(gpu.index, gpu.paused, gpu.last.used_mib) for gpu in store.gpus()] == [
        (0, True, 600),
        (1, False, 600),
    ]
    assert [(one.verb, one.args) for one in open_requests(store)] == [("cancel", {"grace_s": 5.0})]
    store.close()


def test_an_upgraded_schema_equals_a_new_schema(tmp_path: Path, next_schema: int) -> None:
    fresh = Store(DataDir.of(str(tmp_path / "fresh.json")), create=True)
    old = Store(kept_store(tmp_path), create=True)
    assert schema(old) != schema(fresh)
    with old.db.upgraded():
        pass
    assert old.db.schema_version == fresh.db.schema_version == next_schema
    assert schema(old) == schema(fresh)
    assert [row["weight"] for row in old.db.rows("SELECT weight FROM job ORDER BY id")] == [1, 2, 1]
    old.close()
    fresh.close()


def test_an_upgrade_is_atomic(tmp_path: Path, next_schema: int) -> None:
    path = kept_store(tmp_path).database
    with closing(database.Database(path, create=True)) as db:
        with pytest.raises(ZeroDivisionError), db.upgraded():
            print(1 // (db.schema_version - next_schema))
        assert db.schema_version == 1
        with db.upgraded():
            pass
        with closing(database.Database(path)) as reader:
            assert reader.schema_version == next_schema


def test_a_reader_does_not_upgrade_an_earlier_schema_and_names_the_remedy(
    tmp_path: Path, next_schema: int
) -> None:
    path = kept_store(tmp_path).database
    before = path.read_bytes()
    with pytest.raises(SchemaError) as raised:
        database.Database(path)
    assert str(raised.value) == (
        f"the store in {path.parent} has schema version 1, but this version of gpu-scheduler reads"
        f" schema version {next_schema}; run `start` with this version to upgrade the store"
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("version", [1, 10])
def test_refuses_a_store_of_a_development_version(tmp_path: Path, version: int, create: bool) -> None:
    path = tmp_path / "scheduler.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(f"CREATE TABLE job (id INTEGER PRIMARY KEY); PRAGMA user_version = {version};")
    before = path.read_bytes()
    with pytest.raises(SchemaError) as raised:
        database.Database(path, create=create)
    assert str(raised.value) == (
        f"the store in {tmp_path} is from a development version and cannot be read; `start --fresh` forgets"
        " its jobs, and --state-file OTHER.json creates a separate store"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_about_a_development_store_names_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scheduler_lock, "scheduler_pid", lambda path: 77 if path == tmp_path / "lock" else None
    )
    error = database.development_schema_error(tmp_path / "scheduler.db")
    assert "; end its scheduler with `kill 77`; then `start --fresh` forgets its jobs" in str(error)


def test_a_reader_treats_an_empty_database_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    path.touch()
    with pytest.raises(StoreNotFoundError):
        database.Database(path)
    assert path.stat().st_size == 0
