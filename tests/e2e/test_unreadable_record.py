"""Records that this version cannot read: those of another version, and a database with a damaged page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_scheduler.store.database import newest_schema
from gpu_scheduler.store.home import Home
from gpu_scheduler.store.instance import InstanceLock
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


def test_only_a_start_that_succeeds_changes_the_schema(world: World) -> None:
    home = Home.of(str(world.folder / world.state))
    home.create()
    with closing(sqlite3.connect(home.database)) as db:
        db.executescript(OLD.read_text())
    before = home.database.read_bytes()
    schemas = f"the record in {home.folder} has schema 9; this version reads schema {newest_schema()}: "
    for words in (["status"], ["cancel", "1"], ["stop"]):
        said = world.cli(*words)
        assert said.returncode == 1
        assert f"{schemas}`start` with this version brings it up to date\n" in said.stderr
    lock = InstanceLock(home.lock)
    assert lock.acquire()
    said = world.cli("status")
    lock.release()
    assert said.returncode == 1
    assert f"{schemas}its scheduler (pid " in said.stderr
    assert world.cli("start", "--simulate", "4", "--gpus", "9").returncode == 2
    assert schema_of(home.database) == 9
    assert home.database.read_bytes()[100:] == before[100:]
    world.start()
    assert [job["state"] for job in world.jobs().values()] == ["held"]
    assert schema_of(home.database) == newest_schema()


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table in the middle of the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        [page] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        [size] = db.execute("PRAGMA page_size").fetchone()
        with open(path, "r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
        # A change of another page has other connections read the file again.
        db.execute("INSERT OR REPLACE INTO meta VALUES ('test', '1')")


def test_a_damaged_page_ends_the_scheduler_in_words_and_no_job(world: World) -> None:
    home = Home.of(str(world.folder / world.state))
    world.start()
    world.append("echo up >> ran; until [ -e go ]; do sleep 0.02; done; echo end >> ran")
    world.until(lambda jobs: 1 in jobs and jobs[1]["state"] == "running", "job 1 runs")
    world.wait_text("ran")
    damage(home.database, "attempt")
    home.ring()
    assert world.process is not None
    assert world.process.wait(30) == 1
    told = f"{home.database} is damaged (database disk image is malformed); running jobs go on\n"
    assert told in world.said()
    assert "`start --restore` goes on from its newest backup" in world.said()
    for words in (["status"], ["cancel", "1"], ["why", "1"], ["start", "--simulate", "4"]):
        said = world.cli(*words)
        assert said.returncode == 1, said.stdout
        assert "start --restore" in said.stderr
        assert "Traceback" not in said.stderr + world.said()
    (world.folder / "go").touch()
    wait_for(lambda: list(home.runs.glob("1/*/result")), "the end of the job")
    assert world.wait_text("ran") == ["up", "end"]
    home.database.unlink()  # no attempt is open, and it cannot be asked for them
