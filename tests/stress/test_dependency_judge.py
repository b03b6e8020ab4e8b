"""Tests of the judge of dependencies: stores and traces made by hand, with and without faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter
from tests.stress.dependency_judge import (
    install_triggers,
    judge_counts,
    judge_outcomes,
    judge_skips,
    judge_starts,
)
from tests.stress.dependency_state import judge_completion, judge_inserted, judge_rest
from tests.stress.dependency_trace import JobsTrace
from tests.stress.part import Findings

NOW = Now(1000.0, 100.0, "boot")
PARENT, CHILD = 1, 2
AFTER = [Dependency(PARENT, DependencyKind.COMPLETED, "1")]
WHOLE = ["0 start 71 1.1", "0 end 0 1.1", "1 start 72 2.1", "1 end 0 2.1"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(DataDir.of(str(tmp_path / "state.json")), create=True)
    install_triggers(opened)
    for parents in ((), AFTER):
        opened.insert_job(JobSpec("command", "true", "/", command="true"), "test", dependencies=parents)
    yield opened
    opened.close()


def record(store: Store, *actions: act.Action) -> None:
    CheckedWriter(store, Settings()).record(actions, NOW)


def run(store: Store, job_id: int, outcome: Outcome = Outcome.COMPLETED, code: int = 0) -> None:
    """Records an attempt of a job, from its start to its end."""
    opened = CheckedWriter(store, Settings()).record([act.Start(job_id, ("U0",), 1000)], NOW)
    end = changes.end(opened[job_id], outcome, exit_code=code)
    record(store, end)


def starts(store: Store, lines: list[str]) -> dict[str, int]:
    found = Findings()
    judge_starts(store, JobsTrace.parse(lines), found)
    return found.faults


def test_a_job_that_starts_after_its_parent_has_completed_passes(store: Store) -> None:
    run(store, PARENT)
    run(store, CHILD)
    assert starts(store, WHOLE) == {}
    found = Findings()
    judge_counts(store, found)
    judge_outcomes(store, JobsTrace.parse(WHOLE), found)
    judge_rest(store, found)
    judge_completion(store, found)
    assert found.clean, found


def test_a_start_before_the_end_of_the_parent_is_a_fault_of_the_store(store: Store) -> None:
    run(store, CHILD)
    run(store, PARENT)
    assert starts(store, WHOLE) == {"started early": 1}


def test_a_start_after_a_failed_parent_is_a_fault(store: Store) -> None:
    run(store, PARENT, Outcome.FAILED, 3)
    run(store, CHILD)
    assert starts(store, [WHOLE[0], "0 end 3 1.1", *WHOLE[2:]]) == {"started early": 1}


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([WHOLE[0], WHOLE[2], WHOLE[1]], id="the parent ended after the start"),
        pytest.param([WHOLE[0], WHOLE[2]], id="the parent has not ended"),
        pytest.param([WHOLE[0], "0 end 3 1.1", WHOLE[2]], id="the parent failed"),
        pytest.param([WHOLE[2]], id="the parent never ran"),
    ],
)
def test_a_trace_that_contradicts_the_store_is_a_fault(store: Store, lines: list[str]) -> None:
    run(store, PARENT)
    run(store, CHILD)
    assert starts(store, lines) == {"started early": 1}


def test_an_attempt_that_starts_twice_is_a_fault(store: Store) -> None:
    run(store, PARENT)
    assert starts(store, [WHOLE[0], *WHOLE[:2]]) == {"run twice": 1}


def test_a_skip_without_a_failed_parent_is_a_fault(store: Store) -> None:
    run(store, PARENT)
    record(store, changes.finish(CHILD, Outcome.SKIPPED))
    found = Findings()
    judge_skips(store, found)
    judge_rest(store, found)
    assert found.faults == {"skipped wrongly": 2}


def test_wrong_counts_and_lost_parents_are_faults(store: Store) -> None:
    store.db.connection.execute("UPDATE job SET unmet_parents = 0 WHERE id = ?", (CHILD,))
    found = Findings()
    judge_counts(store, found)
    assert found.faults == {"wrong counts": 1}
    judge_inserted(store, {CHILD: AFTER}, found)
    assert found.faults == {"wrong counts": 1}
    store.db.connection.execute("DELETE FROM dependency")
    judge_inserted(store, {CHILD: AFTER}, found)
    assert found.faults == {"wrong counts": 1, "wrong parents": 1}


def test_a_queued_job_that_waits_for_nothing_is_stuck(store: Store) -> None:
    run(store, PARENT)
    found = Findings()
    judge_rest(store, found)
    judge_completion(store, found)
    assert found.faults == {"stuck": 2}


def test_a_job_that_waits_for_a_held_one_is_not_stuck(store: Store) -> None:
    record(store, changes.hold(PARENT))
    found = Findings()
    judge_rest(store, found)
    assert found.clean, found
    store.db.connection.execute("UPDATE job SET reason = NULL")
    judge_rest(store, found)
    assert found.faults == {"unexplained": 1}


def test_an_outcome_that_the_trace_does_not_show_is_a_fault(store: Store) -> None:
    run(store, PARENT)
    found = Findings()
    judge_outcomes(store, JobsTrace.parse([WHOLE[0], "0 end 7 1.1"]), found)
    assert found.faults == {"wrong outcomes": 1}
