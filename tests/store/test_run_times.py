"""The run times of completed attempts in the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.job import AdoptedProcess, Checkpoint, SavedWork
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.history import RunTimes
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import attempt_history as run_times
from gpu_scheduler.store.attempt_history import RunTimesReader
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.database import insert
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter
from tests.store.golden_store import restore_golden

NOW = Now(1_700_000_000.0, 1000.0, "boot")
CHECKPOINT = Checkpoint("/out/checkpoint-5", 5, 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


def spec(text: str) -> JobSpec:
    return JobSpec("command", text, "/", command=text)


def record(store: Store, *actions: act.Action) -> dict[int, int]:
    return CheckedWriter(store, Settings()).record(actions, NOW)


def ran(store: Store, text: str, seconds: float, outcome: Outcome = Outcome.COMPLETED) -> None:
    """Records a job from start to end."""
    end(store, store.insert_job(spec(text), "test"), outcome, seconds=seconds)


def end(store: Store, job: int, outcome: Outcome = Outcome.COMPLETED, seconds: float = 60.0) -> None:
    """Records an attempt of a job that ends after so many seconds."""
    this = record(store, act.Start(job, ("U0",), 1000))[job]
    ended = changes.end(this, outcome, started_at=100.0, ended_at=100.0 + seconds)
    record(store, ended, *changes.leave(this))


def fail(store: Store, job: int, seconds: float = 60.0, saved: SavedWork | None = None) -> None:
    """Records an attempt of a job that fails after so many seconds. The job is queued again."""
    this = record(store, act.Start(job, ("U0",), 1000))[job]
    failed = changes.fail(this, saved=saved, started_at=100.0, ended_at=100.0 + seconds)
    record(store, failed, *changes.leave(this))


def recorded(store: Store) -> list[tuple[str, float]]:
    """Returns the identity and the seconds of each recorded run."""
    return [tuple(row) for row in store.db.rows("SELECT identity, seconds FROM run_time ORDER BY id")]


def test_records_completed_attempts_only(store: Store) -> None:
    ran(store, "python t.py --llm qwen", 60.0)
    ran(store, "python t.py --llm qwen", 0.0)  # the clock was set back
    for outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.ENDED):
        ran(store, "python t.py --llm qwen", 50.0, outcome)
    assert recorded(store) == [(spec("python t.py --llm qwen").identity, 60.0)]
    [row] = store.db.rows("SELECT workload_class, at FROM run_time")
    assert tuple(row) == ('["t.py", "qwen"]', NOW.wall)


def test_an_attempt_that_may_have_continued_earlier_work_is_not_recorded(store: Store) -> None:
    resumed, restarted = (store.insert_job(spec("python t.py"), "test") for _ in range(2))
    fail(store, resumed, saved=SavedWork(CHECKPOINT, may_resume=True))
    fail(store, restarted, saved=SavedWork(CHECKPOINT))
    for job in (resumed, restarted):
        end(store, job)
    assert recorded(store) == []


def test_a_retry_without_a_checkpoint_is_recorded(store: Store) -> None:
    job = store.insert_job(spec("python t.py"), "test")
    fail(store, job, seconds=5.0)
    end(store, job)
    assert recorded(store) == [(spec("python t.py").identity, 60.0)]


def test_an_adopted_process_counts_from_its_own_start(store: Store) -> None:
    process = AdoptedProcess(77, 5, "boot", 40.0, ("U0",))
    job = store.insert_job(spec("python t.py"), "adopt", adopted=process)
    this = record(store, act.Start(job, ("U0",), 1000, process=process))[job]
    record(
        store,
        changes.end(this, Outcome.COMPLETED, ended_at=100.0),
    )
    assert recorded(store) == [(spec("python t.py").identity, 60.0)]


def test_keeps_the_newest_runs_of_each_class(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "KEPT_PER_CLASS", 3)
    ran(store, "python u.py", 1.0)
    for seconds in (10.0, 20.0, 30.0, 40.0, 50.0):
        ran(store, f"python t.py --lr {seconds}", seconds)
    assert [seconds for _, seconds in recorded(store)] == [1.0, 30.0, 40.0, 50.0]


def test_reads_only_the_classes_with_new_runs(store: Store) -> None:
    reader = RunTimesReader(store)
    assert reader.run_times(store.marks()) == RunTimes()
    ran(store, "python t.py", 10.0)
    ran(store, "python u.py", 1.0)
    first = reader.run_times(store.marks())
    assert reader.run_times(store.marks()) is first
    ran(store, "python t.py", 20.0)
    second = reader.run_times(store.marks())
    t, u = (workload_class_of(spec(f"python {name}.py")) for name in "tu")
    assert [seconds for _, seconds in first.classes[t].runs] == [10.0]
    assert [seconds for _, seconds in second.classes[t].runs] == [10.0, 20.0]
    assert second.classes[u] is first.classes[u]


def test_keeps_the_newest_runs_of_all_classes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "KEPT", 3)
    reader = RunTimesReader(store)
    for number in range(1, 6):
        ran(store, f"bash job_{number}.sh", float(number))
        known = reader.run_times(store.marks()).classes
    assert [seconds for _, seconds in recorded(store)] == [3.0, 4.0, 5.0]
    assert [one.runs[0][1] for one in known.values()] == [3.0, 4.0, 5.0]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.sampled_from("tuvw"), st.booleans()), max_size=20))
def test_a_reader_that_has_followed_all_runs_knows_the_same_as_a_new_one(
    store: Store, steps: list[tuple[str, bool]]
) -> None:
    reader = RunTimesReader(store)
    for number, (name, is_read) in enumerate(steps, 1):
        with store.db.transaction(synced=False), pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_times, "KEPT_PER_CLASS", 3)
            patch.setattr(run_times, "KEPT", 6)
            ran(store, f"python {name}.py", float(number))
        if is_read:
            reader.run_times(store.marks())
    assert reader.run_times(store.marks()) == RunTimesReader(store).run_times(store.marks())


def test_an_upgrade_takes_over_the_run_times_of_measured_attempts(tmp_path: Path) -> None:
    data_dir = DataDir.of(str(tmp_path / "kept.json"))
    data_dir.create()
    restore_golden(data_dir.database)
    text = "python t.py --llm qwen"
    with closing(sqlite3.connect(data_dir.database, isolation_level=None)) as db:
        for number, (seconds, measured) in enumerate([(60.1, 60.1), (70.3, 70.3), (80.7, 81.0)], 1):
            started = 1_000_000.0 + 100 * number
            job = insert(
                db, "job", source="test", kind="command", identity=f"run {number}", text=text,
                spec=spec(text).to_json(), spec_key="[]", priority=200, position=number, state="finished",
                outcome="completed", created_at=started,
            )  # fmt: skip
            insert(
                db, "attempt", job_id=job, number=1, token=f"t{number}", boot_id="boot", state="closed",
                executor="direct", launch_deadline_boot=0.0, created_at=started, started_at=started,
                ended_at=started + seconds, outcome="completed" if number != 2 else "failed",
            )  # fmt: skip
            insert(
                db, "measurement", workload_class='["t.py", "qwen"]', at=started + seconds + 0.5,
                gpu_count=1, peak_mib=100, seconds=(started + measured) - started,
                outcome="completed" if number != 2 else "failed",
            )  # fmt: skip
    store = Store(data_dir, create=True)
    with store.db.upgraded():
        pass
    [row] = store.db.rows("SELECT workload_class, identity, at, seconds FROM run_time")
    assert tuple(row) == ('["t.py", "qwen"]', "run 1", 1_000_160.6, pytest.approx(60.1))
    store.close()
