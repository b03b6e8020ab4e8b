"""The jobs because of which a job cannot start, or is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.core.model.dependency import UNRESOLVED, Dependency, DependencyKind
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.now import Now
from gpu_scheduler.core.model.state_reason import ReasonKind, StateReason
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.ancestors import ancestor_that_needs_user, failed_ancestors
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.store import Store
from gpu_scheduler.store.writer import StoreWriter

NOW = Now(1000.0, 100.0, "boot")
SPEC = JobSpec("command", "true", "/", command="true")
LARGE = JobSpec("command", "true", "/", command="true", gpus=9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(DataDir.of(str(tmp_path / "state.json")), create=True)
    yield opened
    opened.close()


def add(store: Store, *after: int, spec: JobSpec = SPEC) -> int:
    wanted = [Dependency(parent, DependencyKind.COMPLETED, str(parent)) for parent in after]
    return store.insert_job(spec, "test", dependencies=wanted)


def chain(store: Store, first: int, length: int) -> int:
    """Adds jobs of which each waits for the one before; returns the last one."""
    with store.db.transaction():
        for _ in range(length):
            first = add(store, first)
    return first


def record(store: Store, *actions: act.Action) -> None:
    StoreWriter(store, Settings()).record(actions, NOW)


def hold(store: Store, job_id: int) -> None:
    record(store, act.HoldJob(job_id, "user", StateReason(ReasonKind.HELD_BY_USER)))


def test_no_ancestor_needs_the_user_if_all_of_them_can_start(store: Store) -> None:
    assert ancestor_that_needs_user(store, chain(store, add(store), 3), ()) is None


def test_a_held_ancestor_needs_the_user(store: Store) -> None:
    held = add(store)
    last = chain(store, held, 3)
    hold(store, held)
    assert ancestor_that_needs_user(store, last, ()) == held
    hold(store, held + 2)
    assert ancestor_that_needs_user(store, last, ()) == held + 2  # the nearest one


def test_an_infeasible_ancestor_needs_the_user(store: Store) -> None:
    large = add(store, spec=LARGE)
    last = chain(store, large, 2)
    assert ancestor_that_needs_user(store, last, ()) is None
    assert ancestor_that_needs_user(store, last, {store.spec_key(LARGE)}) == large


def test_an_ancestor_that_names_no_job_needs_the_user(store: Store) -> None:
    lost = add(store, UNRESOLVED)
    assert ancestor_that_needs_user(store, chain(store, lost, 2), ()) == lost
    assert ancestor_that_needs_user(store, lost, ()) is None


def test_the_ancestors_of_a_long_chain_are_found(store: Store) -> None:
    first = add(store)
    last = chain(store, first, 2000)
    hold(store, first)
    assert ancestor_that_needs_user(store, last, ()) == first
    record(store, act.FinishJob(first, Outcome.CANCELLED, None), act.SettleDependencies())
    assert failed_ancestors(store, last, 5) == [first]


def test_the_failed_ancestors_of_a_skipped_job_are_those_that_were_not_skipped(store: Store) -> None:
    first, second, done = add(store), add(store), add(store)
    middle = add(store, first, done)
    last = add(store, middle, second, done)
    record(store, act.FinishJob(done, Outcome.COMPLETED, None), act.FinishJob(first, Outcome.FAILED, None))
    record(store, act.SettleDependencies())
    assert failed_ancestors(store, last, 5) == [first]
    record(store, act.FinishJob(second, Outcome.TIMED_OUT, None))
    assert failed_ancestors(store, last, 5) == [first, second]
    assert failed_ancestors(store, last, 1) == [first]
    assert failed_ancestors(store, done, 5) == []
