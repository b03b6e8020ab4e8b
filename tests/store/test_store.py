"""The store: transactions, its single writer, ids that are never reused, queue positions and spec keys."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import FaultKind, GpuFault
from gpu_scheduler.core.model.job import AdoptedProcess, Checkpoint, StopRequest
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.states import AttemptState, IllegalTransitionError, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.needs import ResourceSpec
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import next_retry, startable_jobs, wait_reason_by_spec, wait_reasons
from gpu_scheduler.store.records import _STOP_COLUMNS
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter
from tests.reasons import worded

NOW = Now(1_700_000_000.0, 1000.0, "boot")


def spec(text: str = "true", **values: object) -> JobSpec:
    return JobSpec("command", text, "/", command=text, **values)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


def record(store: Store, *actions: act.Action) -> dict[int, int]:
    return CheckedWriter(store, Settings()).record(actions, NOW)


def test_creates_only_private_files(store: Store) -> None:
    for path in [store.data_dir.folder, *store.data_dir.folder.iterdir()]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_missing_store_error_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=str(tmp_path)):
        Store(DataDir.of(str(tmp_path / "none.json")))
    assert not list(tmp_path.iterdir())


def test_refuses_a_newer_or_damaged_store_and_leaves_it_unchanged(store: Store) -> None:
    store.db.connection.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(SchedulerError, match="use the newer version"):
        Store(store.data_dir)
    store.data_dir.database.write_bytes(b"this is not a database at all" * 100)
    before = store.data_dir.database.read_bytes()
    with pytest.raises(SchedulerError, match="`start --restore`"):
        Store(store.data_dir)
    assert store.data_dir.database.read_bytes() == before


def test_the_store_never_reuses_job_ids(store: Store) -> None:
    first = store.insert_job(spec(), "cli")
    store.db.connection.execute("DELETE FROM event")
    store.db.connection.execute("DELETE FROM job")
    assert store.insert_job(spec(), "cli") == first + 1


def test_an_attempt_that_has_not_ended_is_not_released(store: Store) -> None:
    job = store.insert_job(spec(), "cli")
    record(store, act.Start(job, ("U0",), 1000))
    [attempt] = store.active_attempts()
    assert (attempt.state, attempt.executor) == (AttemptState.STARTING, "direct")
    change = rf"attempt 1 of job {job}: the change from starting to released is not allowed"
    with pytest.raises(IllegalTransitionError, match=change):
        record(store, changes.release(attempt.id))
    assert store.active_attempts() == [attempt]


def test_records_a_round_atomically(store: Store) -> None:
    job = store.insert_job(spec(), "cli")
    with pytest.raises(IllegalTransitionError, match="queued"):
        record(
            store,
            changes.hold(job, worded("held")),
            act.Start(job, ("U0",), 1000),
            act.Start(job, ("U0",), 1000),
        )
    row = store.job(job)
    assert row is not None
    assert row.state == "queued"
    assert store.attempts(job) == []


def test_a_start_opens_an_attempt_with_its_own_token(store: Store) -> None:
    jobs = [store.insert_job(spec(), "cli") for _ in range(3)]
    opened = record(store, *(act.Start(job, ("U0",), 300) for job in jobs))
    tokens = {store.attempts(job)[0].token for job in jobs}
    assert len(tokens) == 3
    assert all(len(token) == 32 for token in tokens)
    assert set(opened) == set(jobs)


def test_finishing_an_attempt_sets_the_job_outcome_and_clears_an_open_cancel_request(store: Store) -> None:
    job = store.insert_job(spec(), "cli")
    attempt = record(store, act.Start(job, ("U0",), 1000))[job]
    record(store, changes.ask_to_stop(job, StopRequest("cancelled", 5.0)))
    record(store, changes.end(attempt, Outcome.FAILED, exit_code=7))
    row = store.job(job)
    assert row is not None
    assert (row.state, row.outcome, row.exit_code, row.stop) == (
        "finished",
        "failed",
        7,
        None,
    )
    assert [event.kind for event in events_of_job(store, job)] == ["queued", "starting", "finished"]
    record(store, changes.queue(job, worded("retried")))
    row = store.job(job)
    assert row is not None
    assert (row.state, row.outcome, row.exit_code) == ("queued", None, None)


@pytest.mark.parametrize("by", ["user", "line", None])
def test_a_hold_keeps_the_count_of_used_retries_and_a_retry_resets_it(store: Store, by: str | None) -> None:
    job = store.insert_job(spec(vram=4096), "cli")
    attempt = record(store, act.Start(job, ("U0",), 0, (), 4096))[job]
    record(store, changes.set_job(job, oom_retries_used=1, fail_retries_used=1))
    record(store, changes.fail(attempt, changes.OUT_OF_MEMORY))
    left = changes.finish(job, Outcome.FAILED) if by is None else changes.hold(job, worded("held"), by=by)
    record(store, left)
    record(store, changes.queue(job, worded("queued again")))
    row = store.job(job)
    assert row is not None
    assert (row.oom_retries_used, row.fail_retries_used) == ((2, 1) if by else (0, 0))
    assert ResourceSpec.from_key(row.spec_key) == ResourceSpec(is_command=True, vram=4096, min_vram_mib=5120)


@pytest.mark.parametrize("state", ["held", "finished"])
def test_a_job_that_is_queued_again_gets_the_current_key_of_its_needs(store: Store, state: str) -> None:
    job = store.insert_job(spec(vram=4096), "cli")
    before = store.db.rows("SELECT spec_key FROM job")[0]["spec_key"]
    with store.db.transaction() as db:  # as if `start --learn` had come while it ran
        db.execute("UPDATE job SET state = ?, spec_key = '[]'", (state,))
    record(store, changes.queue(job, worded("released")))
    assert store.db.rows("SELECT spec_key FROM job")[0]["spec_key"] == before


def test_only_jobs_that_wait_solely_for_gpus_are_startable(store: Store) -> None:
    ready, gone, later, left = (store.insert_job(spec(str(n)), "cli") for n in range(4))
    recorder = CheckedWriter(store, Settings())
    recorder.set_line_waits({gone: WaitReason(WaitKind.LINE_REMOVED, due_at=7.5)})
    for job in (later, left):
        attempt = recorder.record([act.Start(job, ("U0",), 1000)], NOW)[job]
        recorder.record([changes.end(attempt, Outcome.NOT_STARTED)], NOW)
        if job == later:
            recorder.record([changes.release(attempt)], NOW)
    [ask] = wait_reason_by_spec(store)

    def startable(boot: float, boot_id: str = "boot") -> list[int]:
        return [job.job_id for job in startable_jobs(store, ask, boot, boot_id, 10)]

    assert startable(1000.0) == [ready]
    assert startable(1005.0) == [ready, later]
    assert startable(0.0, "another boot") == [ready, later]
    assert next_retry(store, NOW) == 1005.0
    assert next_retry(store, Now(0.0, 1005.0, "boot")) is None
    recorder.set_line_waits(
        {job: WaitReason(WaitKind.LINE_MALFORMED, line_number=3) for job in (ready, gone, later, left)}
    )
    assert wait_reason_by_spec(store) == {}
    recorder.set_line_waits({})
    assert startable(1000.0) == [ready, gone]


def test_finds_each_spec_key_of_the_waiting_jobs_once(store: Store) -> None:
    with store.db.transaction():
        for n in range(300):
            store.insert_job(spec(f"job {n}", share=(n % 3 + 1) * 100), "cli")
    assert {ResourceSpec.from_key(key).share for key in wait_reason_by_spec(store)} == {100, 200, 300}


def test_changes_attributes_and_queue_positions_of_waiting_jobs(store: Store) -> None:
    one, two = store.insert_job(spec("a"), "cli"), store.insert_job(spec("b"), "cli")
    record(
        store,
        changes.set_attribute(one, "allowed", [1, 3]),
        changes.set_attribute(one, "priority", 5),
        act.SetQueuePositions(((one, 9), (two, 8))),
    )
    row = store.job(one)
    assert row is not None
    assert ResourceSpec.from_key(row.spec_key).allowed == (1, 3)
    assert row.spec.allowed == (1, 3)
    assert (row.priority, row.position) == (5, 9)


def test_concurrent_writers_lose_no_job(store: Store) -> None:
    def insert() -> None:
        own = Store(store.data_dir)
        for _ in range(25):
            own.insert_job(spec(), "cli")
        own.close()

    threads = [threading.Thread(target=insert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = store.db.row("SELECT count(*) AS n, count(DISTINCT position) AS places FROM job")
    assert row is not None
    assert (row["n"], row["places"]) == (100, 100)


def test_a_killed_writer_loses_no_confirmed_job(tmp_path: Path) -> None:
    writer = (
        "import sys\n"
        "from gpu_scheduler.store.data_dir import DataDir\nfrom gpu_scheduler.store.store import Store\n"
        "from gpu_scheduler.core.model.job_spec import JobSpec\n"
        "s = Store(DataDir.of(sys.argv[1]), create=True)\n"
        "while True: print(s.insert_job(JobSpec('command', 't', '/', command='t'), 'cli'), flush=True)\n"
    )
    state = str(tmp_path / "s.json")
    child = subprocess.Popen([sys.executable, "-c", writer, state], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    answered = [int(child.stdout.readline()) for _ in range(50)]
    child.kill()
    answered += [int(line) for line in child.stdout.read().splitlines()]
    child.wait()
    child.stdout.close()
    kept = {row["id"] for row in Store(DataDir.of(state)).db.rows("SELECT id FROM job")}
    assert set(answered) <= kept


def test_a_snapshot_is_only_read(store: Store) -> None:
    with pytest.raises(AssertionError, match="only read"), store.snapshot():
        store.insert_job(spec(), "cli")
    store.insert_job(spec(), "cli")
    assert [row["id"] for row in store.db.rows("SELECT id FROM job")] == [1]


def test_foreign_keys_and_full_sync_are_enabled(store: Store) -> None:
    settings = {
        name: store.db.rows(f"PRAGMA {name}")[0][0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    with pytest.raises(sqlite3.IntegrityError):
        store.db.connection.execute(
            "INSERT INTO line (path, position, number, text) VALUES ('none', 0, 1, '')"
        )


def test_a_full_disk_rolls_back_a_transaction_and_later_transactions_work(store: Store) -> None:
    pages = store.db.row("PRAGMA page_count")
    assert pages is not None
    store.db.connection.execute(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.db.set_meta("large", 100_000 * "x")
    assert store.db.meta("large") is None
    store.db.connection.execute("PRAGMA max_page_count = 1000000")
    store.db.set_meta("large", "small")
    assert store.db.meta("large") == "small"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_a_transaction_undoes_all_of_it(store: Store, error: type[BaseException]) -> None:
    def fail() -> None:
        with store.db.transaction():
            store.insert_job(spec(), "cli")
            raise error

    with pytest.raises(error):
        fail()
    assert not store.db.connection.in_transaction
    assert store.db.rows("SELECT id FROM job") == []


def test_shrinks_the_write_ahead_log(store: Store) -> None:
    store.db.set_meta("key", 50_000 * "x")
    log = store.data_dir.database.with_name(f"{store.data_dir.database.name}-wal")
    assert log.stat().st_size > 50_000
    with Store(store.data_dir).snapshot():
        store.db.shrink()  # this has no effect while a reader is active
    store.db.shrink()
    assert log.stat().st_size == 0
    [timeout] = store.db.rows("PRAGMA busy_timeout")
    assert timeout[0] == 10_000


@pytest.mark.parametrize(
    "unknown", ['{"kind": "of a later version"}', '{"kind": "cancelled_by_user", "more": 1}']
)
def test_reads_values_from_another_version_as_unknown(store: Store, unknown: str) -> None:
    job_id = store.insert_job(spec(), "cli")
    attempt_id = record(store, act.Start(job_id, ("U0",), 1000, whole=True))[job_id]
    store.db.connection.execute("UPDATE job SET reason = ?, line_wait = ?", (unknown, unknown))
    store.db.connection.execute("UPDATE attempt SET reason = ?", (unknown,))
    store.db.connection.execute(
        "INSERT INTO gpu (uuid, idx, name, fault) VALUES ('U0', 0, 'a', ?)", (unknown,)
    )
    store.db.connection.execute("INSERT INTO pending_group VALUES ('key', ?)", (unknown,))
    job, attempt = store.job(job_id), store.attempt(attempt_id)
    assert job is not None
    assert attempt is not None
    reason, wait = StateReason(ReasonKind.UNKNOWN, message=unknown), WaitReason(WaitKind.UNKNOWN, unknown)
    assert (job.reason, attempt.reason, job.line_wait) == (reason, reason, wait)
    assert [gpu.fault for gpu in store.gpus()] == [GpuFault(FaultKind.UNKNOWN, unknown)]
    assert wait_reasons(store) == {"key": wait}


#: Values of the columns of a job that only describe its past. No new job has them.
PAST: dict[str, object] = {
    "exit_code": 3, "signal": 9, "held_by": "failed", "launch_failures": 4, "not_before_boot": 7.0,
    "adopted": AdoptedProcess(7, 8, "boot", 1.0).to_json(), "cleared_at": 8.0,
    "checkpoint": Checkpoint("/c").to_json(), "resume_from": Checkpoint("/c").to_json(),
    "oom_retries_used": 2, "fail_retries_used": 1, "recoveries": 1,
    **dict(zip(_STOP_COLUMNS, ("preempted", 5.0, "kill", "1", "TERM", "held", 1), strict=True)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "action", "kept"),
    [
        # Checkpoint: the newest one stays known, but the job starts with it only if the user says so.
        ("finished", changes.queue(1, worded("retried")), {"checkpoint"}),
        (
            "finished",
            changes.queue(1, worded("recovered"), recoveries=1, keeps=True),
            {"checkpoint", "resume_from", "oom_retries_used", "fail_retries_used", "recoveries"},
        ),
        (
            "held",
            changes.finish(1, Outcome.CANCELLED, worded("cancelled")),
            PAST.keys() - {"held_by", "adopted"} - set(_STOP_COLUMNS),
        ),
        (
            "queued",
            changes.hold(1, worded("held"), by="failed"),
            PAST.keys() - {"adopted"} - set(_STOP_COLUMNS),
        ),
    ],
)
def test_each_column_about_the_past_of_a_job_is_reset_or_kept_on_purpose(
    store: Store, state: str, action: act.Action, kept: Collection[str]
) -> None:
    store.insert_job(spec(), "cli")
    marks = ", ".join(f"{name} = ?" for name in PAST)
    with store.db.transaction() as db:
        db.execute(f"UPDATE job SET state = ?, {marks}", (state, *PAST.values()))
        db.execute("UPDATE job SET finished_at = 9.0 WHERE state = 'finished'")
    record(store, action)
    row = store.db.row("SELECT * FROM job")
    assert row is not None
    assert {name for name, value in PAST.items() if row[name] == value} == set(kept)
    assert {row[name] for name in PAST.keys() - kept} <= {None, 0}
    assert (row["finished_at"] is None) is (row["state"] != "finished")


def test_the_next_retry_is_the_first_one_of_this_boot_that_is_still_to_come(store: Store) -> None:
    times = [(1005.0, "boot"), (1009.0, "boot"), (1002.0, "boot"), (1001.0, "another boot"), (None, None)]
    with store.db.transaction() as db:
        for not_before, boot_id in times:
            job = store.insert_job(spec(), "cli")
            db.execute(
                "UPDATE job SET not_before_boot = ?, boot_id = ? WHERE id = ?", (not_before, boot_id, job)
            )
    found = [next_retry(store, Now(0.0, boot, "boot")) for boot in (1000.0, 1002.0, 1005.0, 1009.0)]
    assert found == [1002.0, 1005.0, 1009.0, None]


@pytest.mark.parametrize(
    ("gpus", "created_at", "ended_at", "is_shared"),
    [
        (("U1",), 5.0, None, True),
        (("U0", "U1"), 5.0, 11.0, True),
        (("U1",), 5.0, 10.0, False),
        (("U1",), 19.0, None, True),
        (("U1",), 20.0, None, False),
        (("U0",), 5.0, None, False),
    ],
)
def test_a_gpu_was_shared_if_another_job_had_it_at_that_time(
    store: Store, gpus: tuple[str, ...], created_at: float, ended_at: float | None, is_shared: bool
) -> None:
    job, other = store.insert_job(spec(), "cli"), store.insert_job(spec(), "cli")
    record(store, act.Start(job, ("U1", "U2"), 500), act.Start(other, gpus, 500))
    with store.db.transaction() as db:
        db.execute(
            "UPDATE attempt SET created_at = ?, ended_at = ? WHERE job_id = ?", (created_at, ended_at, other)
        )
    [attempt] = store.attempts(job)
    assert store.was_gpu_shared(attempt, 10.0, 20.0) is is_shared


def test_jobs_of_the_same_kind_start_in_the_order_of_their_priorities_and_positions(store: Store) -> None:
    first, second, third, urgent = (
        store.insert_job(spec(str(n), priority=0 if n == 3 else None), "cli") for n in range(4)
    )
    record(store, act.SetQueuePositions(((first, 9), (second, 7), (third, 9), (urgent, 99))))
    [ask] = wait_reason_by_spec(store)
    found = startable_jobs(store, ask, NOW.boot, NOW.boot_id, 10)
    assert [job.job_id for job in found] == [urgent, second, first, third]
    assert [job.job_id for job in startable_jobs(store, ask, NOW.boot, NOW.boot_id, 2)] == [urgent, second]


def test_a_launch_that_a_shortage_prevents_does_not_count_and_is_due_again_now(store: Store) -> None:
    job = store.insert_job(spec(), "cli")
    attempt = record(store, act.Start(job, ("U0",), 1000))[job]

    def launches() -> tuple[int, float]:
        row = store.attempt(attempt)
        assert row is not None
        return row.launch_count, row.launch_deadline_boot

    record(store, act.Relaunch(attempt))
    assert launches() == (2, NOW.boot + Settings().launch_deadline_s)
    for left in (1, 0, 0):
        CheckedWriter(store, Settings()).record_shortage(attempt)
        assert launches() == (left, 0.0)
