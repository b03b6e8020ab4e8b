"""Backups of the store are complete and checked.

A worse one never replaces them, and the last three are kept.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from gpu_scheduler.clock import Clock
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.daemon.main_loop import BackupTimer
from gpu_scheduler.daemon.restore import _newest_usable_backup
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store import backups
from gpu_scheduler.store.backups import Backup, DamagedDatabaseError, HighestIds
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.inspection import StoreCondition
from gpu_scheduler.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


def add(store: Store, count: int = 1) -> None:
    for _ in range(count):
        store.insert_job(JobSpec("command", "true", "/", command="true"), "test")


def make(store: Store) -> Backup:
    return backups.make_backup(store.db.connection, store.data_dir)


def names(store: Store) -> list[str]:
    return sorted(os.listdir(store.data_dir.backups))


def test_keeps_the_last_three_backups_private_and_intact(store: Store) -> None:
    for _ in range(5):
        add(store)
        made = make(store)
    assert names(store) == ["scheduler-3.db", "scheduler-4.db", "scheduler-5.db"]
    assert [backup.number for backup in backups.list_backups(store.data_dir)] == [5, 4, 3]
    assert backups.highest_ids(made.path, immutable=True) == HighestIds(jobs=5)
    assert stat.S_IMODE(store.data_dir.backups.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.data_dir.backups.iterdir()} == {0o600}


def test_a_store_with_fewer_jobs_does_not_replace_a_backup(store: Store) -> None:
    add(store, 3)
    make(store)
    store.db.connection.execute("DELETE FROM job")
    store.db.connection.execute("DELETE FROM sqlite_sequence")
    refusal = r"scheduler-1.db, whose last job is job 3, is newer than the store"
    with pytest.raises(SchedulerError, match=refusal):
        make(store)
    assert names(store) == ["scheduler-1.db"]


def test_a_damaged_store_does_not_replace_a_backup(store: Store) -> None:
    add(store, 200)
    make(store)
    store.db.connection.execute("PRAGMA writable_schema = 1")
    store.db.connection.execute("UPDATE sqlite_master SET rootpage = 3 WHERE name = 'job_identity'")
    with pytest.raises(DamagedDatabaseError):
        make(store)
    assert names(store) == ["scheduler-1.db"]


def test_ignores_the_unfinished_backup_of_a_killed_scheduler(store: Store) -> None:
    add(store)
    make(store)
    (store.data_dir.backups / ".scheduler.db.new").write_bytes(b"half")
    assert len(backups.list_backups(store.data_dir)) == 1
    make(store)
    assert names(store) == ["scheduler-1.db", "scheduler-2.db"]


class HandClock(Clock):
    """A clock whose time the test sets."""

    boot = 100.0

    def now(self) -> Now:
        return Now(1.8e9, self.boot, self.boot_id)


def test_backs_up_soon_after_the_start_and_then_daily(store: Store) -> None:
    clock = HandClock()
    timer = BackupTimer(store, clock)
    timer.back_up_if_due()
    assert not store.data_dir.backups.exists(), "the first jobs are launched before it"
    clock.boot = timer.again_at
    timer.back_up_if_due()
    assert names(store) == ["scheduler-1.db"]
    assert timer.again_at == clock.boot + 86_400
    clock.boot += 86_399
    timer.back_up_if_due()
    assert names(store) == ["scheduler-1.db"]
    clock.boot += 1
    timer.back_up_if_due()
    assert names(store) == ["scheduler-1.db", "scheduler-2.db"]


def test_logs_a_failed_backup_once_and_retries_it(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("gpu_scheduler"), "propagate", True)
    add(store)
    clock = HandClock()
    timer = BackupTimer(store, clock)

    def full(record: sqlite3.Connection, data_dir: DataDir) -> Backup:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(backups, "make_backup", full)
        for _ in range(2):
            clock.boot = timer.again_at
            timer.back_up_if_due()
    assert caplog.messages == ["cannot back up the store: database or disk is full"]
    clock.boot += 3600
    timer.back_up_if_due()
    assert names(store) == ["scheduler-1.db"]


def test_restoring_skips_a_backup_of_a_development_version(store: Store) -> None:
    add(store)
    usable, other = make(store), make(store)
    with sqlite3.connect(other.path) as db:
        db.execute("PRAGMA application_id = 0")
    db.close()
    found = (other, usable)
    assert [backups.is_of_development_version(backup) for backup in found] == [True, False]
    assert _newest_usable_backup(StoreCondition("missing", backups=found)) == usable
    assert _newest_usable_backup(StoreCondition("missing", backups=(other,))) is None
