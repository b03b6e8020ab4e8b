"""Stores that this version cannot read: of another version, or with a damaged page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import newest_schema_version
from gpu_scheduler.store.lock import InstanceLock
from tests.e2e.world import World
from tests.waiting import wait_for

OLD = Path(__file__).parents[1] / "golden" / "record_schema_9.sql"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    (tmp_path / "go").touch()
    one.close()


def schema_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        number: int = db.execute("PRAGMA user_version").fetchone()[0]
        return number


def test_only_a_successful_start_changes_the_schema(world: World) -> None:
    data_dir = DataDir.of(str(world.folder / world.state))
    data_dir.create()
    with closing(sqlite3.connect(data_dir.database)) as db:
        db.executescript(OLD.read_text())
    before = data_dir.database.read_bytes()
    schemas = (
        f"the store in {data_dir.folder} has schema 9; this version reads schema {newest_schema_version()}: "
    )
    for words in (["status"], ["cancel", "1"], ["stop"]):
        done = world.cli(*words)
        assert done.returncode == 1
        assert f"{schemas}`start` with this version upgrades it\n" in done.stderr
    lock = InstanceLock(data_dir.lock)
    assert lock.acquire()
    done = world.cli("status")
    lock.release()
    assert done.returncode == 1
    assert f"{schemas}its scheduler (pid " in done.stderr
    assert world.cli("start", "--simulate", "4", "--gpus", "9").returncode == 2
    assert schema_of(data_dir.database) == 9
    assert data_dir.database.read_bytes()[100:] == before[100:]
    world.start()
    assert [job["state"] for job in world.jobs().values()] == ["held"]
    assert schema_of(data_dir.database) == newest_schema_version()


def damage(path: Path, table: str) -> None:
    """Overwrites the first page of a table in the middle of the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        [size] = db.execute("PRAGMA page_size").fetchone()
        with open(path, "r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
        # A change of another page makes other connections read the file again.
        db.execute("INSERT OR REPLACE INTO meta VALUES ('test', '1')")


def test_a_damaged_page_ends_the_scheduler_with_a_message_but_no_job(world: World) -> None:
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
    data_dir.database.unlink()  # no attempt is open, and the database cannot be queried for them
