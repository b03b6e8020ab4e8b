"""The columns of the store for the order of the queue: starts, reservations, waiting times and GPU time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpu_scheduler.core.model.gpu import LOST, GpuFault, GpuSample, Suspicion
from gpu_scheduler.core.model.job import AdoptedProcess
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling import history
from gpu_scheduler.core.scheduling.history import GpuTime, QueueStart
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store import attempt_history
from gpu_scheduler.store.attempt_history import GpuHistoryReader, QueueStartsReader, gpu_time, skip_gpu_time
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import queue_reservation, queued_job_of, reserved_jobs
from gpu_scheduler.store.state_file import requested_pauses
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

WALL = 1_700_000_000.0
USER = StateReason(ReasonKind.HELD_BY_USER)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(DataDir.of(str(tmp_path / "s.json")), create=True)


def at(seconds: float) -> Now:
    return Now(WALL + seconds, 1000.0 + seconds, "boot")


def record(store: Store, *actions: act.Action, after_s: float = 0.0) -> dict[int, int]:
    return CheckedWriter(store, Settings()).record(actions, at(after_s))


def add(store: Store, *parents: int, priority: int = 200, after_s: float = 0.0) -> int:
    spec = JobSpec("command", "true", "/", command="true", priority=priority)
    needed = [Dependency(one, DependencyKind.COMPLETED, str(one)) for one in parents]
    return store.insert_job(spec, "cli", WALL + after_s, needed)


def sample(store: Store, *gpus: tuple[str, GpuFault | None], after_s: float, manage: bool = False) -> None:
    taken = [GpuSample(uuid, n, "card", 24_576, 0, 0.0, (), fault) for n, (uuid, fault) in enumerate(gpus)]
    uuids = [uuid for uuid, _ in gpus] if manage else None
    CheckedWriter(store, Settings()).record_gpus(taken, uuids, at(after_s))


def waits_since(store: Store, job: int) -> float:
    row = store.job(job)
    assert row is not None
    assert row.queued_at is not None
    return row.queued_at - WALL


def usable_since(store: Store) -> list[float | None]:
    found = [one.usable_since for one in store.gpus()]
    return [None if since is None else since - WALL for since in found]


def test_a_job_waits_since_the_last_unmet_dependency_was_removed(store: Store) -> None:
    parent = add(store)
    child = add(store, parent, after_s=-1e6)
    record(store, act.SetDependencies(child, DependencyKind.COMPLETED, ()))
    # The database dates the removal itself.
    assert waits_since(store, child) + WALL == pytest.approx(time.time(), abs=60.0)


def test_a_job_is_submitted_again_by_a_retry_but_not_by_a_release(store: Store) -> None:
    sample(store, ("U0", None), after_s=0.0, manage=True)
    job = add(store)
    again = changes.queue(job)
    record(store, changes.hold(job), after_s=10.0)
    record(store, again, after_s=20.0)
    row = store.job(job)
    assert row is not None
    assert row.submitted_at == WALL
    record(store, changes.finish(job, Outcome.CANCELLED), after_s=30.0)
    record(store, again, after_s=40.0)
    record(store, act.Start(job, ("U0",), 1000), after_s=50.0)
    [start] = QueueStartsReader(store).overtakes(store.marks()).starts
    assert (start.submitted_at, start.started_at) == (WALL + 40.0, WALL + 50.0)


def test_a_failed_launch_does_not_interrupt_the_wait(store: Store) -> None:
    sample(store, ("U0", None), after_s=0.0, manage=True)
    job = add(store)
    opened = record(store, act.Start(job, ("U0",), 1000), after_s=100.0)
    retry = changes.end(opened[job], Outcome.NOT_STARTED)
    record(store, retry, after_s=200.0)
    assert waits_since(store, job) == 0.0


def test_a_start_is_remembered_with_the_place_that_the_job_had_in_the_queue(store: Store) -> None:
    reader = QueueStartsReader(store)
    assert reader.overtakes(store.marks()).starts == ()
    first, second = add(store), add(store, priority=100, after_s=5.0)
    record(store, act.Start(first, ("U0",), 1000), after_s=10.0)
    positions = {job: row.position for job in (first, second) if (row := store.job(job))}
    begun = QueueStart(200, positions[first], WALL, WALL + 10.0)
    assert reader.overtakes(store.marks()).starts == (begun,)
    record(store, act.Start(second, ("U1",), 1000), after_s=20.0)
    expected = (begun, QueueStart(100, positions[second], WALL + 5.0, WALL + 20.0))
    assert reader.overtakes(store.marks()).starts == expected
    assert QueueStartsReader(store).overtakes(store.marks()).starts == expected
    assert reader.overtakes(store.marks()) is reader.overtakes(store.marks())
    record(store, act.Start(add(store, after_s=25.0), (), 0), after_s=30.0)
    assert reader.overtakes(store.marks()).starts == expected  # a job without a GPU overtakes nobody


def test_a_job_waits_since_it_was_last_queued(store: Store) -> None:
    job = add(store, after_s=1.0)
    assert waits_since(store, job) == 1.0
    record(store, changes.hold(job), after_s=50.0)
    record(store, changes.queue(job, USER), after_s=90.0)
    assert waits_since(store, job) == 90.0


def test_a_job_with_parents_waits_since_the_last_of_them_finished(store: Store) -> None:
    first, second = add(store), add(store)
    job = add(store, first, second)
    for n, parent in enumerate((first, second), 1):
        record(store, changes.finish(parent, Outcome.COMPLETED, USER), after_s=100.0 * n)
        assert waits_since(store, job) == 100.0 * n


def test_a_reservation_by_queue_order_is_replaced(store: Store) -> None:
    first, second = add(store), add(store)
    record(store, act.SetQueueReservation(first, ("U0", "U1"), WALL + 300.0, 8))
    found = queue_reservation(store)
    assert found is not None
    assert (found.job.job_id, found.gpus) == (first, ("U0", "U1"))
    assert (found.start_at, found.overtakes) == (WALL + 300.0, 8)
    assert reserved_jobs(store, at(0.0)) == []
    record(store, act.SetQueueReservation(first, ("U1",), WALL + 600.0, 8))
    record(store, act.SetQueueReservation(second, ("U0",), WALL + 600.0, 9))
    found = queue_reservation(store)
    assert found is not None
    assert (found.job.job_id, found.gpus) == (second, ("U0",))
    record(store, act.SetQueueReservation(None))
    assert queue_reservation(store) is None
    kinds = [[str(one.kind) for one in events_of_job(store, job)] for job in (first, second)]
    assert kinds == [["queued", "gpus_reserved", "reservation_dropped"]] * 2


@pytest.mark.parametrize("leave", ["start", "hold", "cancel"])
def test_a_reservation_ends_when_its_job_leaves_the_queue(store: Store, leave: str) -> None:
    job = add(store)
    record(store, act.SetQueueReservation(job, ("U0",), WALL, 8))
    actions: dict[str, act.Action] = {
        "start": act.Start(job, ("U0",), 1000),
        "hold": changes.hold(job),
        "cancel": changes.finish(job, Outcome.CANCELLED, USER),
    }
    record(store, actions[leave], act.SetQueueReservation(None))
    assert queue_reservation(store) is None
    assert "reservation_dropped" not in [str(one.kind) for one in events_of_job(store, job)]


def test_a_job_with_a_reservation_can_begin_to_preempt_others(store: Store) -> None:
    job = add(store)
    record(store, act.SetQueueReservation(job, ("U0", "U1"), WALL, 8))
    record(store, act.Reserve(job, ("U1",), ()), act.SetQueueReservation(None))
    assert queue_reservation(store) is None
    assert [one.gpus for one in reserved_jobs(store, at(0.0))] == [("U1",)]


def test_only_managed_gpus_are_listed(store: Store) -> None:
    sample(store, ("U0", None), ("U1", None), after_s=1.0, manage=True)
    CheckedWriter(store, Settings()).record_gpus((), ["U1"], at(2.0))
    assert (store.managed_gpus(), requested_pauses(store)) == ({1: "U1"}, {"U1": False})
    assert ([gpu.uuid for gpu in store.gpus()], store.gpu_indices()) == (["U1"], {"U0": 0, "U1": 1})


def test_a_gpu_is_usable_since_it_was_managed_or_resumed(store: Store) -> None:
    sample(store, ("U0", None), ("U1", None), after_s=1.0, manage=True)
    assert usable_since(store) == [1.0, 1.0]
    sample(store, ("U0", None), ("U1", None), after_s=2.0, manage=True)
    assert usable_since(store) == [1.0, 1.0]  # a scheduler was started again
    record(store, changes.pause("U1"), after_s=5.0)
    record(store, changes.pause("U1"), after_s=6.0)
    record(store, changes.resume("U1"), after_s=9.0)
    record(store, changes.resume("U1"), after_s=12.0)
    assert usable_since(store) == [1.0, 9.0]


def test_resuming_a_suspect_gpu_ends_the_suspicion(store: Store) -> None:
    sample(store, ("U0", None), after_s=1.0, manage=True)
    found = Suspicion((1, 2, 3), WALL + 4.0, "ECC error")
    record(store, changes.set_gpu("U0", suspicion=found), after_s=5.0)
    assert [one.suspicion for one in store.gpus()] == [found]
    record(store, changes.pause("U0"), after_s=6.0)
    assert [one.suspicion for one in store.gpus()] == [found]
    record(store, changes.resume("U0"), after_s=7.0)
    record(store, changes.set_gpu("U0", suspicion=found), after_s=8.0)
    record(store, changes.resume("U0"), after_s=9.0)  # it was not paused
    assert [(one.suspicion, one.usable_since) for one in store.gpus()] == [(None, WALL + 9.0)]
    record(store, changes.set_gpu("U0", suspicion=found), changes.set_gpu("U0", suspicion=None), after_s=10.0)
    kinds = [one.kind for one in events_of_job(store, 0)]
    assert kinds == [
        "suspected", "paused", "resumed", "suspected", "resumed", "suspected", "suspicion_ended",
    ]  # fmt: skip


def test_the_history_of_a_gpu_is_the_same_after_a_restart(store: Store) -> None:
    sample(store, ("U0", None), ("U1", None), after_s=0.0, manage=True)
    reader = GpuHistoryReader(store)
    assert reader.history().ends == []
    reason = StateReason(ReasonKind.COMMAND_FAILED, exit_code=1)
    for number, outcome in enumerate(
        [Outcome.FAILED, Outcome.COMPLETED, Outcome.NOT_STARTED, Outcome.CANCELLED]
    ):
        job = add(store)
        attempt = record(store, act.Start(job, ("U1",), 1000), after_s=number)[job]
        failed = reason if outcome is Outcome.FAILED else None
        began = None if outcome is Outcome.NOT_STARTED else WALL + number
        ended = changes.end(attempt, outcome, failed, started_at=began, ended_at=WALL + number + 1)
        actions = ended.make(store, at(number + 1))
        record(store, *actions, after_s=number + 1)
        reader.accept(actions)
    kept = [(one.job_id, one.gpus, one.has_completed, one.failure) for one in reader.history().ends]
    assert kept == [(1, ("U1",), False, reason), (2, ("U1",), True, None), (4, ("U1",), False, None)]
    assert GpuHistoryReader(store).history().ends == reader.history().ends


def test_the_history_of_a_gpu_has_its_newest_ends_without_those_of_adopted_processes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(store, ("U0", None), after_s=0.0, manage=True)
    reader = GpuHistoryReader(store)
    assert reader.history().ends == []
    for module in (history, attempt_history):
        monkeypatch.setattr(module, "REMEMBERED_ENDS", 3)
    jobs = [add(store) for _ in range(5)]
    for after_s, job in enumerate(jobs):
        process = AdoptedProcess(7, 8, "boot", WALL, ("U0",)) if job == jobs[3] else None
        attempt = record(store, act.Start(job, ("U0",), 1000, process=process), after_s=after_s)[job]
        failed = StateReason(ReasonKind.COMMAND_FAILED, exit_code=1)
        ended = changes.end(attempt, Outcome.FAILED, failed, started_at=WALL, ended_at=WALL + after_s)
        actions = ended.make(store, at(after_s))
        record(store, *actions, after_s=after_s)
        reader.accept(actions)
    for found in (reader.history(), GpuHistoryReader(store).history()):
        assert [one.job_id for one in found.ends] == [jobs[1], jobs[2], jobs[4]]


def test_a_retried_job_names_the_gpus_on_which_it_has_just_failed(store: Store) -> None:
    sample(store, ("U0", None), ("U1", None), after_s=0.0, manage=True)
    job = add(store)
    assert queued_job_of(store, job).failed_on == ()
    for used, (gpus, log) in enumerate([(("U1", "U0"), ""), (("U0",), changes.OUT_OF_MEMORY)]):
        attempt = record(store, act.Start(job, gpus, 1000))[job]
        failed = changes.fail(attempt, log, Settings(fail_retries=2), started_at=WALL, ended_at=WALL)
        record(store, failed, *changes.leave(attempt))
        for _ in range(2):
            found = queued_job_of(store, job)
            assert found.fail_retries_used == used + 1
            assert set(found.failed_on) == (set() if log else {"U0", "U1"})
            attempt = record(store, act.Start(job, ("U1",), 1000))[job]
            # A failed launch says nothing about a GPU, so the failure before it still counts.
            record(store, changes.end(attempt, Outcome.NOT_STARTED), *changes.leave(attempt))


def test_a_gpu_is_usable_since_it_recovered_from_a_fault(store: Store) -> None:
    sample(store, ("U0", None), ("U1", None), after_s=1.0, manage=True)
    sample(store, ("U0", None), ("U1", LOST), after_s=2.0)
    sample(store, ("U0", None), ("U1", LOST), after_s=3.0)
    assert usable_since(store) == [1.0, 1.0]
    sample(store, ("U0", None), ("U1", None), after_s=4.0)
    sample(store, ("U0", None), ("U1", None), after_s=5.0)
    assert usable_since(store) == [1.0, 4.0]


def test_a_reading_that_fails_for_all_gpus_does_not_make_waiting_jobs_younger(store: Store) -> None:
    """No job starts without a reading, so no job is overtaken meanwhile."""
    sample(store, ("U0", None), ("U1", None), after_s=1.0, manage=True)
    CheckedWriter(store, Settings()).record_probe_failure("timeout")
    sample(store, ("U0", None), ("U1", None), after_s=9.0)
    assert usable_since(store) == [1.0, 1.0]


def test_the_gpu_time_of_the_last_seven_days_is_counted(store: Store) -> None:
    assert gpu_time(store, WALL) == GpuTime(0.0, 0.0, None)
    record(store, act.RecordGpuTime(50.0, 5.0, WALL))
    record(store, act.RecordGpuTime(20.0, 2.0, WALL + 60.0), after_s=60.0)
    assert gpu_time(store, WALL + 61.0) == GpuTime(70.0, 7.0, WALL + 60.0)
    week = 7 * 24 * 3600.0
    record(store, act.RecordGpuTime(1.0, 0.0, WALL + week), after_s=week)
    assert gpu_time(store, WALL + week - 3600.0).delivered_s == 71.0
    assert gpu_time(store, WALL + week) == GpuTime(1.0, 0.0, WALL + week)
    record(store, act.RecordGpuTime(1.0, 0.0, WALL + week + 7200.0), after_s=week + 7200.0)
    assert [row["delivered_s"] for row in store.db.rows("SELECT delivered_s FROM gpu_time")] == [1.0, 1.0]
    skip_gpu_time(store, WALL + week + 9000.0)
    assert gpu_time(store, WALL + week + 9000.0) == GpuTime(2.0, 0.0, WALL + week + 9000.0)
