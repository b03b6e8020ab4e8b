"""Tests that a reader of the pending groups that reads only changes finds the same as a new reader."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.actions import SetWaitReason
from gpu_scheduler.core.scheduling.facts import PendingGroup
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import pending_groups
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.pending_groups import PendingGroupsReader
from gpu_scheduler.store.store import Store
from tests.changes import CheckedWriter
from tests.store_template import copied_schema

NOW = Now(1_700_000_000.0, 1000.0, "boot")
SPEC = JobSpec("command", "true", "/", command="true", share=100)
#: The values that a random change gives to each column of a job.
VALUES: dict[str, tuple[object, ...]] = {
    "spec_key": tuple(f"[{share}, null, null, true, null]" for share in (100, 200, 300)),
    "state": ("queued", "queued", "held", "running", "finished"),
    "priority": (0, 200),
    "position": (1, 2, 3, 4),
    "source_missing": (0, 1),
    "not_before_boot": (None, 990.0, 1000.0, 1010.0, 1020.0),
    "boot_id": ("boot", "earlier"),
    "adopted": (None, "{}"),
    "queued_at": (1.0, 2.0),
    "identity": ("a", "b"),
    "outcome": ("completed", "failed"),
}
JOBS = st.integers(1, 3)
CHANGES = st.one_of(
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda column: st.tuples(st.just(column), JOBS, st.sampled_from(VALUES[column]))
    ),
    st.tuples(st.just("insert"), JOBS, st.sampled_from((100, 200, 300))),
    st.tuples(st.just("attempt"), JOBS, st.sampled_from(("running", "ended", "released", "closed"))),
    st.tuples(st.just("reserve"), JOBS, st.sampled_from((None, 5.0))),
    st.tuples(st.just("drop"), JOBS, st.none()),
    st.tuples(st.just("depend"), JOBS, JOBS),
    st.tuples(st.just("independent"), JOBS, st.none()),
    st.tuples(st.just("reason"), JOBS, st.sampled_from(WaitKind)),
    st.tuples(st.just("pass time"), JOBS, st.sampled_from((1.0, 10.0))),
    st.tuples(st.just("reboot"), JOBS, st.none()),
)


def new_store(folder: Path) -> Store:
    return Store(DataDir.of(str(folder / "state.json")), create=True)


def found(groups: Iterable[PendingGroup]) -> dict[str, PendingGroup]:
    return {group.resources.key(): group for group in groups}


class Desk:
    """A store, a reader that reads only changes, and the random changes between its readings."""

    def __init__(self, folder: Path) -> None:
        self.store = new_store(folder)
        self.now = NOW
        self.reader = PendingGroupsReader(self.store)
        self.writer = CheckedWriter(self.store, Settings())
        for _ in range(2):
            self.insert(1, 100)
        self.reader.read(self.now, self.store.marks())

    def insert(self, job: int, share: int) -> None:
        self.store.insert_job(replace(SPEC, share=share), "test", NOW.wall)

    def attempt(self, job: int, state: str) -> None:
        with self.store.db.transaction() as db:
            cursor = db.execute("UPDATE attempt SET state = ? WHERE job_id = ?", (state, job))
            if not cursor.rowcount:
                db.execute(
                    "INSERT INTO attempt (job_id, number, token, boot_id, state, executor,"
                    " launch_deadline_boot, created_at) SELECT id, 1, id, 'boot', 'running', 'direct', 0, 0"
                    " FROM job WHERE id = ?",
                    (job,),
                )

    def reserve(self, job: int, start_at: float | None) -> None:
        with self.store.db.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO reservation (job_id, gpu, start_at)"
                " SELECT id, 'U0', ? FROM job WHERE id = ?",
                (start_at, job),
            )

    def reason(self, job: int, kind: WaitKind) -> None:
        row = self.store.db.row("SELECT spec_key FROM job WHERE id = ?", job)
        if row is not None and kind is not WaitKind.UNKNOWN:
            action = SetWaitReason(row["spec_key"], WaitReason(kind, "why"))
            self.writer.record([action], self.now)
            self.reader.accept([action])

    def change(self, what: str, job: int, value: object) -> None:
        steps: dict[str, Callable[..., object]] = {
            "insert": self.insert, "attempt": self.attempt, "reserve": self.reserve, "reason": self.reason,
        }  # fmt: skip
        if what in steps:
            steps[what](job, value)
        elif what == "pass time":
            assert isinstance(value, float)
            self.now = Now(self.now.wall + value, self.now.boot + value, self.now.boot_id)
        elif what == "reboot":
            self.now = Now(self.now.wall, 5.0, self.now.boot_id + "2")
        else:
            self.execute(what, job, value)

    def execute(self, what: str, job: int, value: object) -> None:
        statements = {
            "drop": ("DELETE FROM reservation WHERE job_id = ?", (job,)),
            # As the store inserts them: the conflict clause also applies to what its triggers do.
            "depend": (
                "INSERT OR IGNORE INTO dependency (job_id, parent_id, kind, reference)"
                " VALUES (?, ?, 'finished', '')",
                (job, value),
            ),
            "independent": ("DELETE FROM dependency WHERE job_id = ?", (job,)),
        }
        statement = statements.get(what, (f"UPDATE job SET {what} = ? WHERE id = ?", (value, job)))
        with self.store.db.transaction() as db:
            db.execute(*statement)


@settings(deadline=None, max_examples=60)
@given(changes=st.lists(st.tuples(CHANGES, st.booleans()), max_size=25))
def test_a_reader_of_changes_finds_the_same_as_a_new_reader(
    changes: list[tuple[tuple[str, int, object], bool]],
) -> None:
    with copied_schema(), tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_groups, "JOBS_PER_GROUP", 2)
        desk = Desk(Path(folder))
        for number, (change, reads) in enumerate(changes, 1):
            desk.change(*change)
            if reads or number == len(changes):
                expected = PendingGroupsReader(desk.store).read(desk.now, desk.store.marks())
                read = desk.reader.read(desk.now, desk.store.marks())
                assert found(read) == found(expected)
                assert list(read) == list(expected)
        desk.store.close()


def test_a_reading_without_changes_reads_no_group(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for share in range(100, 200):
        store.insert_job(replace(SPEC, share=share), "test")
    reader = PendingGroupsReader(store)
    statements: list[str] = []
    assert len(reader.read(NOW, store.marks())) == 100
    store.db.connection.set_trace_callback(statements.append)
    assert len(reader.read(NOW, store.marks())) == 100
    assert len(statements) == 1
    store.insert_job(SPEC, "test")
    statements.clear()
    reader.read(NOW, store.marks())
    store.db.connection.set_trace_callback(None)
    assert len([text for text in statements if text.startswith("SELECT")]) == 4


def test_a_group_is_read_again_when_its_retry_is_due(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    job = store.insert_job(SPEC, "test")
    store.db.connection.execute(
        "UPDATE job SET not_before_boot = 1005, boot_id = 'boot' WHERE id = ?", (job,)
    )
    reader = PendingGroupsReader(store)
    assert list(reader.read(NOW, store.marks())) == []
    assert list(reader.read(replace(NOW, boot=1004.9), store.marks())) == []
    assert [
        one.job_id for group in reader.read(replace(NOW, boot=1005.0), store.marks()) for one in group.jobs
    ] == [job]


def test_a_job_starts_after_the_last_attempt_and_the_reservation_are_gone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    def startable() -> list[int]:
        return [job.job_id for group in desk.reader.read(desk.now, desk.store.marks()) for job in group.jobs]

    assert startable() == [1, 2]
    desk.attempt(1, "running")
    desk.attempt(1, "ended")
    assert startable() == [2]
    desk.attempt(1, "closed")
    assert startable() == [1, 2]
    desk.reserve(2, None)
    assert startable() == [1]
    desk.execute("drop", 2, None)
    assert startable() == [1, 2]
    desk.reserve(2, 5.0)
    assert startable() == [1, 2]


def test_a_change_of_another_program_during_a_reading_is_found_by_the_next(tmp_path: Path) -> None:
    store, other = new_store(tmp_path), new_store(tmp_path)
    store.insert_job(SPEC, "test")
    reader = PendingGroupsReader(store)
    reader.read(NOW, store.marks())
    store.insert_job(SPEC, "test")
    seen: list[str] = []

    def insert_once(sql: str) -> None:
        if "FROM job" in sql and not seen:
            seen.append(sql)
            other.insert_job(SPEC, "test")

    store.db.connection.set_trace_callback(insert_once)
    reader.read(NOW, store.marks())
    store.db.connection.set_trace_callback(None)
    assert seen
    [group] = reader.read(NOW, store.marks())
    assert [job.job_id for job in group.jobs] == [1, 2, 3]
