"""The counts of parents, the skipping of jobs and their return to the queue agree with a simple model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.reading import find_cycles
from gpu_scheduler.core.model.job_spec import (
    Dependency,
    DependencyKind,
    JobSpec,
    Parent,
    ParentStatus,
    parent_status,
    status_of,
)
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import FAILED, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling import actions as act
from gpu_scheduler.core.scheduling.settings import Settings
from gpu_scheduler.store.data_dir import DataDir
from gpu_scheduler.store.job_lists import (
    children,
    is_ancestor,
    parents_of,
    remove_dependencies,
)
from gpu_scheduler.store.pending_groups import startable_jobs, wait_reason_by_spec
from gpu_scheduler.store.store import Store, insert_dependencies
from tests import changes
from tests.changes import CheckedWriter

NOW = Now(1000.0, 100.0, "boot")
SPEC = JobSpec("command", "true", "/", command="true")
KINDS = list(DependencyKind)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(DataDir.of(str(tmp_path / "state.json")), create=True)
    yield opened
    opened.close()


def add_job(store: Store, *after: int, kind: DependencyKind = DependencyKind.COMPLETED) -> int:
    wanted = [Dependency(parent, kind, str(parent)) for parent in after]
    return store.insert_job(SPEC, "test", dependencies=wanted)


def record(store: Store, *actions: act.Action) -> None:
    CheckedWriter(store, Settings()).record(actions, NOW)


def finish(store: Store, job_id: int, outcome: Outcome) -> None:
    record(store, changes.finish(job_id, outcome))


def settle(store: Store) -> None:
    record(store, act.SettleDependencies())


def startable(store: Store) -> set[int]:
    found = startable_jobs(store, store.spec_key(SPEC), NOW.boot, NOW.boot_id, 1000)
    return {job.job_id for job in found}


def state(store: Store, job_id: int) -> str:
    fact = store.job(job_id)
    assert fact is not None
    return str(fact.outcome or fact.state)


def test_a_job_starts_after_all_its_parents_have_completed(store: Store) -> None:
    first, second = add_job(store), add_job(store)
    child = add_job(store, first, second)
    assert startable(store) == {first, second}
    finish(store, first, Outcome.COMPLETED)
    assert startable(store) == {second}
    finish(store, second, Outcome.ENDED)
    assert startable(store) == {child}


@pytest.mark.parametrize("outcome", sorted({*FAILED, Outcome.CANCELLED, Outcome.SKIPPED}))
def test_a_failed_parent_skips_its_descendants(store: Store, outcome: Outcome) -> None:
    parent = add_job(store)
    child = add_job(store, parent)
    grandchild = add_job(store, child)
    finish(store, parent, outcome)
    if outcome is Outcome.SKIPPED:  # no job without parents is skipped, so the next round queues it again
        settle(store)
        assert state(store, parent) == "queued"
        return
    assert store.marks().has_unsettled_dependencies
    settle(store)
    assert not store.marks().has_unsettled_dependencies
    job = store.job(grandchild)
    assert job is not None
    assert job.outcome is Outcome.SKIPPED
    assert job.reason == StateReason(ReasonKind.PARENT_FAILED, parent=child, parent_outcome=Outcome.SKIPPED)
    record(store, changes.queue(parent))
    settle(store)
    assert [state(store, job) for job in (parent, child, grandchild)] == ["queued"] * 3
    assert startable(store) == {parent}


def test_after_any_is_met_by_every_outcome(store: Store) -> None:
    parent = add_job(store)
    child = add_job(store, parent, kind=DependencyKind.FINISHED)
    finish(store, parent, Outcome.FAILED)
    assert not store.marks().has_unsettled_dependencies
    assert startable(store) == {child}


def test_a_held_job_is_not_skipped_until_it_is_released(store: Store) -> None:
    parent = add_job(store)
    child = add_job(store, parent)
    record(store, changes.hold(child))
    finish(store, parent, Outcome.FAILED)
    assert not store.marks().has_unsettled_dependencies
    record(store, changes.queue(child, StateReason(ReasonKind.RELEASED_BY_USER)))
    settle(store)
    assert state(store, child) == "skipped"


def test_a_group_of_blocked_jobs_only_does_not_keep_a_drain_from_ending(store: Store) -> None:
    parent = add_job(store)
    record(store, changes.hold(parent))
    child = add_job(store, parent)
    assert wait_reason_by_spec(store) == {}
    record(store, changes.finish(parent, Outcome.COMPLETED))
    assert list(wait_reason_by_spec(store)) == [store.spec_key(SPEC)]
    assert startable(store) == {child}


def test_one_query_returns_the_parents_of_many_jobs(store: Store) -> None:
    first, second = add_job(store), add_job(store)
    child, other = add_job(store, second, first), add_job(store, first, kind=KINDS[1])
    record(store, changes.hold(second))
    found = parents_of(store, [child, other, first, 99])
    assert found == {
        child: (
            Parent(first, None, JobState.QUEUED, None, KINDS[0], str(first)),
            Parent(second, None, JobState.HELD, None, KINDS[0], str(second)),
        ),
        other: (Parent(first, None, JobState.QUEUED, None, KINDS[1], str(first)),),
    }


def test_an_unresolved_reference_blocks_the_job(store: Store) -> None:
    job = store.insert_job(SPEC, "test", dependencies=[Dependency(0, DependencyKind.FINISHED, "prep")])
    assert startable(store) == set()
    assert [(parent.state, status_of(parent)) for parent in parents_of(store, [job])[job]] == [
        (None, ParentStatus.PENDING)
    ]
    with store.db.transaction() as db:
        remove_dependencies(db, job, [(0, DependencyKind.FINISHED)])
    assert startable(store) == {job}


def test_both_kinds_of_dependency_on_one_parent_count(store: Store) -> None:
    parent = add_job(store)
    child = store.insert_job(SPEC, "test", dependencies=[Dependency(parent, kind, "x") for kind in KINDS])
    assert children(store, parent) == [child]
    finish(store, parent, Outcome.COMPLETED)
    assert startable(store) == {child}
    record(store, changes.queue(parent))
    assert startable(store) == {parent}
    only = (Dependency(parent, KINDS[1], "x"),)
    record(store, act.SetDependencies(child, KINDS[0], ()), act.SetDependencies(child, KINDS[1], only))
    finish(store, parent, Outcome.FAILED)
    assert startable(store) == {child}


def test_finds_ancestors(store: Store) -> None:
    chain = [add_job(store)]
    for _ in range(5):
        chain.append(add_job(store, chain[-1]))
    assert is_ancestor(store, chain[0], [chain[5]])
    assert is_ancestor(store, chain[5], [chain[5]])
    assert not is_ancestor(store, chain[5], [chain[4]])


def test_settles_a_chain_of_10000_jobs(store: Store) -> None:
    with store.db.transaction():
        chain = [add_job(store)]
        for _ in range(10_000):
            chain.append(add_job(store, chain[-1]))
    finish(store, chain[0], Outcome.CANCELLED)
    rounds = 0
    while store.marks().has_unsettled_dependencies:
        settle(store)
        rounds += 1
    assert rounds == 2
    assert state(store, chain[-1]) == "skipped"


@given(st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 9), max_size=3)))
def test_finds_exactly_the_nodes_between_cycles(graph: dict[int, set[int]]) -> None:
    def reach(start: int, edges: dict[int, set[int]]) -> set[int]:
        found: set[int] = set()
        todo = [start]
        while todo:
            for node in edges.get(todo.pop(), set()) - found:
                found.add(node)
                todo.append(node)
        return found

    reverse: dict[int, set[int]] = {}
    for node, of in graph.items():
        for parent in of:
            reverse.setdefault(parent, set()).add(node)
    on_cycle = {node for node in graph if node in reach(node, graph)}
    between = {
        node
        for node in graph
        if node in on_cycle or (reach(node, graph) & on_cycle and reach(node, reverse) & on_cycle)
    }
    assert find_cycles(graph) == between


class Model:
    """Jobs as (state, outcome) and edges as (child, parent, kind); the status of every parent is derived."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[JobState, Outcome | None]] = {}
        self.edges: dict[int, set[tuple[int, DependencyKind]]] = {}

    def statuses(self, job: int) -> set[ParentStatus]:
        return {parent_status(kind, *self.jobs[parent]) for parent, kind in self.edges[job]}

    def startable(self) -> set[int]:
        queued = {job for job, (state, _) in self.jobs.items() if state is JobState.QUEUED}
        return {job for job in queued if self.statuses(job) <= {ParentStatus.MET}}

    def settle(self) -> None:
        for job in sorted(self.jobs):  # parents have lower ids than their children
            fails = ParentStatus.FAILED in self.statuses(job)
            if self.jobs[job] == (JobState.QUEUED, None) and fails:
                self.jobs[job] = (JobState.FINISHED, Outcome.SKIPPED)
            elif self.jobs[job] == (JobState.FINISHED, Outcome.SKIPPED) and not fails:
                self.jobs[job] = (JobState.QUEUED, None)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_graphs_agree_with_the_model(store: Store, data: st.DataObject) -> None:
    with store.db.transaction() as db:
        for table in ("dependency", "event", "job"):
            db.execute(f"DELETE FROM {table}")
    model = Model()

    def edges(below: list[int]) -> set[tuple[int, DependencyKind]]:
        one = st.tuples(st.sampled_from(below), st.sampled_from(KINDS))
        return data.draw(st.sets(one, max_size=3)) if below else set()

    for step in data.draw(st.lists(st.sampled_from("aafrhpss"), min_size=5, max_size=40)):
        ids = sorted(model.jobs)
        if step == "a" or not ids:
            chosen = edges(ids)
            job = store.insert_job(SPEC, "test", dependencies=[Dependency(*one, "x") for one in chosen])
            model.jobs[job], model.edges[job] = (JobState.QUEUED, None), chosen
            continue
        job = data.draw(st.sampled_from(ids))
        now = model.jobs[job][0]
        if step == "f" and now is not JobState.FINISHED:
            outcome = data.draw(st.sampled_from([Outcome.COMPLETED, Outcome.FAILED, Outcome.ENDED]))
            finish(store, job, outcome)
            model.jobs[job] = (JobState.FINISHED, outcome)
        elif step == "r" and now is not JobState.QUEUED:
            record(store, changes.queue(job))
            model.jobs[job] = (JobState.QUEUED, None)
        elif step == "h" and now is JobState.QUEUED:
            record(store, changes.hold(job))
            model.jobs[job] = (JobState.HELD, None)
        elif step == "p":
            before, model.edges[job] = model.edges[job], edges([one for one in ids if one < job])
            with store.db.transaction() as db:
                remove_dependencies(db, job, before)
                insert_dependencies(db, job, [Dependency(*one, "x") for one in model.edges[job]])
        elif step == "s":
            settle(store)
            model.settle()
            assert not store.marks().has_unsettled_dependencies
        assert startable(store) == model.startable()
        for one, (job_state, end) in model.jobs.items():
            assert state(store, one) == str(end or job_state)
