"""Tests stores that this version cannot read because of their schema version or a damaged page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from tests.e2e.world import World
from tests.waiting import wait_for

#: The parts of a development store (schema 10) that `start` reads in its first checks.
DEVELOPMENT_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE job (id INTEGER PRIMARY KEY AUTOINCREMENT, state TEXT NOT NULL, ask TEXT NOT NULL);
CREATE TABLE gpu (uuid TEXT PRIMARY KEY, managed INTEGER NOT NULL DEFAULT 1) WITHOUT ROWID;
INSERT INTO job (state, ask) VALUES ('queued', '[]');
PRAGMA user_version = 10;
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    (tmp_path / "go").touch()
    one.close()


def test_a_store_of_a_development_version_is_refused_until_start_is_told_to_forget_it(world: World) -> None:
    data_dir = DataDir.of(str(world.folder / world.state))
    data_dir.create()
    with closing(sqlite3.connect(data_dir.database)) as db:
        db.executescript(DEVELOPMENT_SCHEMA)
    before = data_dir.database.read_bytes()
    refusal = (
        f"the store in {data_dir.folder} is from a development version and cannot be read; `start --fresh`"
    )
    for words in (["status"], ["cancel", "1"], ["stop"], ["start", "--simulate", "4"]):
        done = world.cli(*words)
        assert done.returncode == 1, words
        assert done.stderr.count(refusal) == 1, done.stderr
    assert data_dir.database.read_bytes() == before
    world.start("--fresh")
    assert world.jobs() == {}
    [kept] = data_dir.folder.glob("scheduler.db.lost-*")
    assert kept.read_bytes() == before


def test_a_store_that_has_lost_its_schema_version_is_damaged_and_can_be_restored(world: World) -> None:
    data_dir = DataDir.of(str(world.folder / world.state))
    assert world.cli("submit", "--", "true").returncode == 0
    with closing(sqlite3.connect(data_dir.database)) as db:
        db.execute("PRAGMA user_version = 0")
    told = f"{data_dir.database} is damaged (it has tables, but its schema version is 0)"
    for words in (["status"], ["cancel", "1"], ["stop"], ["submit", "--", "true"]):
        done = world.cli(*words)
        assert (done.returncode, done.stderr.count(told)) == (1, 1), done.stderr
        assert "start --restore" in done.stderr
    started = world.cli("start", "--simulate", "1", "--drain")
    assert (started.returncode, "is damaged" in started.stderr) == (1, True), started.stderr
    assert "permissions" not in started.stderr
    fresh = world.cli("start", "--simulate", "1", "--drain", "--fresh")
    assert fresh.returncode == 0, fresh.stderr


def damage(path: Path, table: str) -> None:
    """Overwrites the first page of a table. The page is in the middle of the database file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        [size] = db.execute("PRAGMA page_size").fetchone()
        with open(path, "r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
        # A change to another page makes other connections read the file again.
        db.execute("INSERT OR REPLACE INTO meta VALUES ('test', '1')")


def test_a_damaged_database_page_ends_the_scheduler_with_a_message_but_leaves_its_jobs_running(
    world: World,
) -> None:
    data_dir = DataDir.of(str(world.folder / world.state))
    world.start()
    world.append("echo up >> ran; until [ -e go ]; do sleep 0.02; done; echo end >> ran")
    world.wait_until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    world.wait_for_lines("ran")
    damage(data_dir.database, "attempt")
    data_dir.ring_doorbell()
    assert world.process is not None
    assert world.process.wait(30) == 1
    message = f"{data_dir.database} is damaged (database disk image is malformed); running jobs continue\n"
    assert message in world.output()
    assert "`start --restore` continues from its newest backup" in world.output()
    for words in (["status"], ["cancel", "1"], ["why", "1"], ["start", "--simulate", "4"]):
        done = world.cli(*words)
        assert done.returncode == 1, done.stdout
        assert "start --restore" in done.stderr
        assert "Traceback" not in done.stderr + world.output()
    (world.folder / "go").touch()
    wait_for(lambda: list(data_dir.runs.glob("1/*/result")), "the end of the job")
    assert world.wait_for_lines("ran") == ["up", "end"]
    data_dir.database.unlink()  # No attempt is open, and `close` could not query the damaged database.
