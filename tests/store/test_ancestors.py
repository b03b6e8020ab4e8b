"""The jobs because of which a job cannot start, or is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.model.job_spec import (
    UNRESOLVED,
    Dependency,
    DependencyKind,
    JobSpec,
    ParentStatus,
    status_of,
)
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import ancestor_that_needs_user, failed_ancestors, parents_of
from gpu_scheduler.store.store import Store
from tests import changes
from tests.changes import CheckedWriter

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
    CheckedWriter(store, Settings()).record(actions, NOW)


def hold(store: Store, job_id: int) -> None:
    record(store, changes.hold(job_id))


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
    record(store, changes.finish(first, Outcome.CANCELLED), act.SettleDependencies())
    assert failed_ancestors(store, last, 5) == [first]


def test_the_failed_ancestors_of_a_skipped_job_are_those_that_were_not_skipped(store: Store) -> None:
    first, second, done, over = (add(store) for _ in range(4))
    middle = add(store, first, done)
    last = add(store, middle, second, done)
    # Of a parent whose end is enough, the outcome does not matter.
    ended = Dependency(over, DependencyKind.FINISHED, str(over))
    record(store, act.SetDependencies(last, DependencyKind.FINISHED, (ended,)))
    for job, outcome in ((done, Outcome.COMPLETED), (first, Outcome.FAILED), (over, Outcome.FAILED)):
        record(store, changes.finish(job, outcome))
    record(store, act.SettleDependencies())
    assert failed_ancestors(store, last, 5) == [first]
    record(store, changes.finish(second, Outcome.TIMED_OUT))
    assert failed_ancestors(store, last, 5) == [first, second]
    assert failed_ancestors(store, last, 1) == [first]
    assert failed_ancestors(store, done, 5) == []


#: What may be the matter with a job of a random graph.
PLIGHTS = ("", "", "", "held", "failed", "completed", "infeasible", "unresolved")
GRAPHS = st.lists(
    st.tuples(
        st.sampled_from(PLIGHTS), st.sets(st.integers(0, 6), max_size=3), st.sampled_from(DependencyKind)
    ),
    min_size=1,
    max_size=7,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(GRAPHS)
def test_a_blocked_job_waits_for_a_job_that_can_start_or_for_the_user(
    tmp_path: Path, graph: list[tuple[str, set[int], DependencyKind]]
) -> None:
    with TemporaryDirectory(dir=tmp_path) as folder:
        store = Store(DataDir.of(f"{folder}/state.json"), create=True)
        for plight, parents, kind in graph:
            job = store.insert_job(LARGE if plight == "infeasible" else SPEC, "test")
            wanted = {parent for parent in (number % len(graph) + 1 for number in parents) if parent < job}
            wanted |= {UNRESOLVED} if plight == "unresolved" else set()
            edges = tuple(Dependency(parent, kind, str(parent)) for parent in wanted)
            record(store, act.SetDependencies(job, kind, edges))
        for job, (plight, _, _) in enumerate(graph, 1):
            if plight == "held":
                hold(store, job)
            elif plight in ("failed", "completed"):
                record(store, changes.finish(job, Outcome(plight)))
        record(store, act.SettleDependencies())
        _check_waits(store, len(graph))
        store.close()


def _check_waits(store: Store, count: int) -> None:
    """Checks each blocked job against a search that visits every job that it waits for."""
    jobs = {job: store.job(job) for job in range(1, count + 1)}
    above = parents_of(store, jobs)
    large = store.spec_key(LARGE)
    for job, row in jobs.items():
        assert row is not None
        if row.state is not JobState.QUEUED or not row.unmet_parents:
            continue
        seen: set[int] = set()
        left = [job]
        while left:
            for parent in above.get(left.pop(), ()):
                if status_of(parent) is not ParentStatus.MET and parent.id not in seen:
                    seen.add(parent.id)
                    left += [] if parent.state is JobState.HELD else [parent.id]
        known = [row_above for one in seen if (row_above := jobs.get(one)) is not None]
        can_start = [one for one in known if one.state is JobState.QUEUED and not one.unmet_parents]
        needs_user = {one.id for one in known if one.state is JobState.HELD}
        needs_user |= {one.id for one in can_start if one.spec_key == large}
        needs_user |= {
            one.id
            for one in known
            if UNRESOLVED in {parent.id for parent in above.get(one.id, ())} and one.state is JobState.QUEUED
        }
        found = ancestor_that_needs_user(store, job, {large})
        assert (found in needs_user) if needs_user else (found is None)
        names_no_job = UNRESOLVED in {parent.id for parent in above[job]}
        assert needs_user or names_no_job or can_start
