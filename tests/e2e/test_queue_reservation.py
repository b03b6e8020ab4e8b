"""A reservation by queue order outlives a scheduler that is killed (kill -9)."""

from __future__ import annotations

import signal

from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.reasons import ObstacleKind
from gpu_scheduler.core.scheduling.needs import workload_class_of
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.events import events_of_job
from gpu_scheduler.store.pending_groups import queue_reservation, wait_reasons
from gpu_scheduler.store.store import Store
from tests.e2e.world import World
from tests.waiting import wait_for

HOUR = 3600.0
HOLDER, LARGE, LATE = 1, 2, 3


def let_hours_pass(store: Store) -> None:
    """Moves what has happened so far two hours back, and records that the holder usually runs for an hour."""
    job = store.job(HOLDER)
    assert job is not None
    with store.db.transaction() as db:
        db.execute("UPDATE job SET submitted_at = submitted_at - ?1, queued_at = queued_at - ?1", (2 * HOUR,))
        db.execute("UPDATE gpu SET usable_since = usable_since - ?", (2 * HOUR,))
        db.execute(
            "INSERT INTO run_time (workload_class, identity, at, seconds) SELECT ?, identity, created_at, ?"
            " FROM job WHERE id = ?",
            (workload_class_of(job.spec), HOUR, HOLDER),
        )


def kept_off(store: Store) -> set[int | None]:
    """Returns the jobs for which the GPUs are reserved that waiting jobs may not use."""
    return {
        obstacle.job_id
        for reason in wait_reasons(store).values()
        for obstacle in reason.obstacles
        if obstacle.kind is ObstacleKind.RESERVED
    }


def test_the_next_scheduler_holds_the_reservation_of_one_that_was_killed(world: World) -> None:
    world.start("--aging", "1", "--idle-budget", "1")
    world.run_ok("submit", "--gpus", "1", "--", "sleep", "600")
    world.wait_until(lambda jobs: jobs[HOLDER]["state"] == "running", "the holder runs")
    world.run_ok("submit", "--gpus", "4", "--", "true")
    world.end_scheduler(signal.SIGKILL)
    store = Store(DataDir.of(str(world.folder / world.state)))
    let_hours_pass(store)
    world.start("--aging", "1", "--idle-budget", "1")
    world.run_ok("submit", "--gpus", "1", "--", "true")
    world.wait_finished(LATE)
    wait_for(lambda: queue_reservation(store), "a reservation")
    before = queue_reservation(store)
    assert before is not None
    assert (before.job.job_id, len(before.gpus), before.overtakes) == (LARGE, 4, 1)
    world.end_scheduler(signal.SIGKILL)
    with store.db.transaction() as db:
        db.execute("DELETE FROM pending_group")
    world.run_ok("submit", "--gpus", "1", "--", "sleep", "601")
    world.start("--aging", "1", "--idle-budget", "1")
    wait_for(lambda: kept_off(store) == {LARGE}, "a job waits because GPUs are reserved")
    assert queue_reservation(store) == before
    kinds = [event.kind for event in events_of_job(store, LARGE)]
    assert kinds.count(EventKind.GPUS_RESERVED) == 1
    assert EventKind.RESERVATION_DROPPED not in kinds
    world.run_ok("cancel", "--grace", "0", str(HOLDER))
    world.wait_finished(LARGE)
    world.wait_until(lambda jobs: jobs[LATE + 1]["state"] == "running", "the last job runs")
    assert queue_reservation(store) is None
