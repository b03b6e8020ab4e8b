"""Tests that rounds, reads and edits need no more database steps with a long queue than with a short one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.intake import jobs_file_watcher
from gpu_scheduler.intake.state_file_watcher import summarize
from gpu_scheduler.show.status import StatusQuery, read_report
from gpu_scheduler.store.job_lists import state_counts
from gpu_scheduler.store.pending_groups import next_retry
from gpu_scheduler.store.store import Store, insert_dependencies
from tests import changes
from tests.loop.rig import Rig
from tests.loop.watched_file import WatchedFile

#: The sizes of the queue. A round reads fewer jobs than this for each resource spec.
FEW, MANY = 1600, 5600


class Steps:
    """Counts the database's work in statements and in tens of virtual machine steps."""

    def __init__(self, store: Store) -> None:
        self.connection = store.db.connection

    def of(self, work: Callable[[], object]) -> tuple[int, int]:
        statements: list[str] = []
        tens: list[int] = []
        self.connection.set_trace_callback(statements.append)
        self.connection.set_progress_handler(lambda: tens.append(1), 10)
        work()
        self.connection.set_trace_callback(None)
        self.connection.set_progress_handler(None, 0)
        return len(statements), 10 * len(tens)


def ended(rig: Rig, jobs: int) -> None:
    """Adds this many jobs that have finished after one attempt."""
    for _ in range(jobs):
        job = rig.add_job("true", gpus=3)
        [attempt] = rig.loop.recorder.record([act.Start(job, ("U0",), 1000)], rig.clock.now()).values()
        close = changes.end(attempt, Outcome.COMPLETED)
        rig.loop.recorder.record([close, *changes.leave(attempt)], rig.clock.now())


#: Operations that the scheduler repeats while jobs wait.
WORK: dict[str, Callable[[Rig], object]] = {
    "a round": lambda rig: rig.tick(),
    "what falls due": lambda rig: next_retry(rig.store, rig.clock.now()),
    "the state file": lambda rig: summarize(rig.store),
    "status": lambda rig: read_report(rig.store, StatusQuery(20, 20)),
}


def test_the_cost_of_a_round_does_not_grow_with_the_length_of_the_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def costs(queued: int, over: int) -> dict[str, tuple[int, int]]:
        with rig.store.db.transaction():
            ended(rig, over)
            for n in range(queued):
                # Each job waits, because it needs three GPUs and there are two.
                # Every second job also has a retry time, and every fourth job waits for the job before it.
                job = rig.add_job(f"echo {n}", gpus=3, allowed=(n % 5,))
                if n % 4 == 0:
                    parent = Dependency(job - 1, DependencyKind.COMPLETED, "before")
                    insert_dependencies(rig.store.db.connection, job, [parent])
                if n % 2:
                    later = (rig.clock.now().boot + 1e6, rig.clock.now().boot_id, job)
                    rig.store.db.connection.execute(
                        "UPDATE job SET not_before_boot = ?, boot_id = ?, source_missing = 1 WHERE id = ?",
                        later,
                    )
        rig.tick()
        return {name: Steps(rig.store).of(partial(work, rig)) for name, work in WORK.items()}

    few, many = costs(FEW, 40), costs(MANY, 400)
    assert state_counts(rig.store) == {"queued": FEW + MANY, "finished": 440}
    assert {name: statements for name, (statements, _) in many.items()} == {
        name: statements for name, (statements, _) in few.items()
    }
    assert [name for name, (_, steps) in many.items() if steps > few[name][1] + 100] == []


def test_the_stored_job_counts_by_state_match_the_job_rows(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    ended(rig, 3)
    rig.add_job("a", hold=True)
    rig.add_job("b", cancel=True)
    rig.add_job("c", gpus=3)
    rows = rig.store.db.rows("SELECT state, count(*) AS n FROM job GROUP BY state")
    assert state_counts(rig.store) == {row["state"]: row["n"] for row in rows}
    assert state_counts(rig.store) == {"finished": 4, "held": 1, "queued": 1}


def cost_of_reading(desk: WatchedFile, later: float = 0.0) -> tuple[int, int]:
    """Returns how many statements one read of the jobs file needs and how many rows it changes."""
    before = desk.rig.store.db.connection.total_changes
    statements, _ = Steps(desk.rig.store).of(lambda: desk.read(later))
    return statements, desk.rig.store.db.connection.total_changes - before


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedFile:
    monkeypatch.chdir(tmp_path)
    return WatchedFile(Rig(tmp_path))


def test_appending_a_line_costs_the_same_in_short_and_long_files(desk: WatchedFile) -> None:
    costs = []
    for lines in (10, 1000):
        desk.lines = [f"[gpus=3] python train.py --seed {n}\n" for n in range(lines)]
        desk.save_lines()
        desk.read()
        desk.read(30)
        desk.lines.append(f"[gpus=3] python appended.py {lines}\n")
        desk.save_lines()
        costs.append(cost_of_reading(desk))
    assert costs[0] == costs[1]
    assert costs[0][1] <= 6


def test_editing_a_line_writes_only_the_changed_lines_to_the_store(desk: WatchedFile) -> None:
    desk.lines = [f"[gpus=3 hold] python train.py --seed {n}\n" for n in range(500)]
    desk.save_lines()
    desk.read()
    assert cost_of_reading(desk, 30)[1] == 0
    desk.lines[250] = desk.lines[250].replace("hold", "hold name=it")
    desk.save_lines()
    desk.read()
    assert cost_of_reading(desk, 3)[1] == 3  # Two changes to the line and one new request.
    desk.lines.insert(250, "[gpus=3 hold] python inserted.py\n")
    desk.save_lines()
    desk.read()
    statements, changes = cost_of_reading(desk, 3)
    assert statements < 40
    assert changes <= 250 + 10  # One statement renumbers the lines that follow.
    rows = desk.rig.store.db.rows("SELECT number, raw FROM line ORDER BY position")
    assert [(row["number"], row["raw"]) for row in rows] == list(enumerate(desk.lines, 1))


def test_an_edit_of_a_line_resolves_only_the_references_to_its_names(desk: WatchedFile) -> None:
    costs = []
    for lines in (20, 600):
        desk.lines = [f"[hold name={lines}-{n} after={lines}-{n // 2}] true {n}\n" for n in range(1, lines)]
        desk.lines.insert(0, f"[hold name={lines}-0] true\n")
        desk.save_lines()
        desk.read()
        desk.read(30)
        desk.lines[9] = desk.lines[9].replace("name", "priority=3 name")
        desk.save_lines()
        desk.read()
        costs.append(cost_of_reading(desk, 3))
    assert costs[0] == costs[1]


def test_renumbers_the_queue_if_no_position_is_free_between_two_lines(desk: WatchedFile) -> None:
    desk.lines = ["[hold] echo a\n", "[hold] echo z\n"]
    desk.save_lines()
    desk.read()
    for n in range(60):
        desk.lines.insert(1, f"[hold] echo {n}\n")
        desk.save_lines()
        desk.read()
        desk.read(3)
    rows = desk.rig.store.db.rows("SELECT number, raw FROM line ORDER BY position")
    assert [(row["number"], row["raw"]) for row in rows] == list(enumerate(desk.lines, 1))


def test_a_long_jobs_file_is_read_in_batches_and_its_jobs_start_in_order(
    desk: WatchedFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpu_scheduler.intake.jobs_file_watcher")
    monkeypatch.setattr(jobs_file_watcher, "BATCH_LINES", 50)
    monkeypatch.setattr(jobs_file_watcher, "MAX_LOGGED", 5)
    rig = desk.rig
    desk = WatchedFile(rig)
    desk.lines = [f"[gpus=2] echo {n} >> ran\n" for n in range(119)] + [
        "[gpus=2 priority=1] echo first >> ran\n"
    ]
    desk.save_lines()
    portions: list[int] = []
    while not portions or desk.watch.loading:
        desk.watch.check(desk.now)
        portions.append(state_counts(rig.store)["queued"])
        rig.loop.placing = not desk.watch.loading
        if desk.watch.loading:
            assert desk.watch.recheck_at is not None
            assert desk.watch.recheck_at == desk.now
            assert rig.tick().attempts == ()
    assert portions == [50, 100, 120]
    assert len([record for record in caplog.records if "line" in record.getMessage()]) == 5
    assert "did not log 115 more of these messages" in caplog.text
    rig.loop.tick()
    [attempt] = rig.store.active_attempts()
    assert attempt.job_id == 120
    rig.loop.recorder.record([changes.pause(f"U{gpu}") for gpu in range(2)], rig.clock.now())
    assert rig.tick_until_ended(120).outcome == "completed"


def test_a_restart_between_two_batches_of_lines_continues_with_the_next_batch(
    desk: WatchedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_file_watcher, "BATCH_LINES", 50)
    first = WatchedFile(desk.rig)
    first.lines = [f"[hold] 0,train.py,,--seed {n % 60}\n" for n in range(130)]
    first.save_lines()
    first.watch.check(first.now)
    assert state_counts(first.rig.store) == {"held": 50}
    second = WatchedFile(first.rig)
    second.read()
    second.read(30)
    assert state_counts(second.rig.store) == {"held": 60}
    rows = second.rig.store.db.rows("SELECT raw, job_id FROM line ORDER BY position")
    assert [row["raw"] for row in rows] == first.lines
    assert [row["job_id"] for row in rows] == [*range(1, 61), *[None] * 70]
