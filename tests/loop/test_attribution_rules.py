"""Tests each rule by which a GPU process is attributed to an attempt, on a fake /proc."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.gpus.watch import ProcessOwners, SampleOwners, is_alive
from gpu_scheduler.system.procfs import Proc, Process
from tests.fakes.proc import FakeProc
from tests.loop.test_attribution import OTHER, OURS, gpu_sample, owner_of


@pytest.fixture
def machine(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def container(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc", "pid:[4026532000]")


AB = {"a": OURS, "b": OTHER}


@pytest.mark.parametrize(
    ("group", "moved", "start", "owner"),
    [
        ("/user.slice/run-1.scope", "/user.slice/run-1.scope", 500, OURS),
        ("/user.slice/run-1.scope/deeper", "/user.slice/run-1.scope", 500, OURS),
        ("/user.slice/job10", "/user.slice/job1", 500, None),
        ("/user.slice/run-1.scope", "/user.slice/run-1.scope/deeper", 500, None),
        ("/user.slice/session-7.scope", "/user.slice/session-7.scope", 500, None),
        ("/user.slice/session-7.scope", "/user.slice", 500, None),
        ("/user.slice/session-3.scope", "/user.slice/session-3.scope", 500, None),
        ("/user.slice/session-3.scope", "/user.slice", 500, None),
        ("/other", "/", 500, None),
        ("/", "/", 500, None),
        ("", "", 500, None),
        ("/user.slice/run-1.scope", "/user.slice/run-1.scope", 300, None),
    ],
)
def test_a_process_is_attributed_by_the_cgroup_into_which_its_attempt_moved(
    machine: FakeProc, group: str, moved: str, start: int, owner: int | None
) -> None:
    runner = machine.add_process(100, token="a", start=400, cgroup="/user.slice/session-3.scope")
    machine.add_process(101, parent=runner, token="a", cgroup=moved)
    pid = machine.add_process(200, cgroup=group, start=start)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: owner}


def test_a_process_is_not_attributed_by_the_cgroup_of_an_ended_runner(machine: FakeProc) -> None:
    machine.add_process(100, token="a", cgroup="/user.slice/session-3.scope")
    machine.add_process(101, parent=100, token="a", cgroup="/user.slice/session-3.scope")
    (machine.root / "100" / "cgroup").unlink()
    pid = machine.add_process(200, cgroup="/user.slice/session-3.scope")
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: None}


def test_a_process_is_not_attributed_by_a_cgroup_shared_by_two_attempts(machine: FakeProc) -> None:
    for runner, token in ((100, "a"), (110, "b")):
        machine.add_process(runner, token=token)
        machine.add_process(runner + 1, parent=runner, token=token, cgroup="/both")
    pid = machine.add_process(200, cgroup="/both/x")
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: None}


@pytest.mark.parametrize("order", [(101, 111), (111, 101)])
def test_a_process_belongs_to_the_attempt_of_its_innermost_cgroup(
    machine: FakeProc, order: tuple[int, int]
) -> None:
    machine.add_process(100, token="a")
    machine.add_process(101, parent=100, token="a", cgroup="/outer")
    machine.add_process(110, token="b")
    machine.add_process(111, parent=110, token="b", cgroup="/outer/inner")
    owners = ProcessOwners(str(machine.root))
    owner_of(owners, AB, *order)
    one, two = machine.add_process(200, cgroup="/outer/x"), machine.add_process(201, cgroup="/outer/inner/x")
    assert owner_of(owners, AB, one, two).owners == {one: OURS, two: OTHER}


def test_the_cgroup_of_a_process_is_remembered_after_the_process_ended(machine: FakeProc) -> None:
    machine.add_process(100, token="a")
    pid, later = machine.add_process(101, parent=100, token="a", cgroup="/scope"), 300
    owners = ProcessOwners(str(machine.root))
    assert owner_of(owners, AB, pid).owners == {pid: OURS}
    machine.remove_process(pid)
    machine.add_process(later, cgroup="/scope")
    assert owner_of(owners, AB, later).owners == {later: OURS}


def test_a_process_belongs_to_the_attempt_of_its_nearest_ancestor_with_an_open_token(
    machine: FakeProc,
) -> None:
    machine.add_process(100, token="a")
    machine.add_process(101, parent=100, token="b")
    machine.add_process(102, parent=101, token="unknown")
    pid = machine.add_process(103, parent=102)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: OTHER}
    assert owner_of(ProcessOwners(str(machine.root)), {"a": OURS}, pid).owners == {pid: OURS}


def test_a_process_is_not_attributed_by_a_parent_that_started_after_it(machine: FakeProc) -> None:
    machine.add_process(100, token="a", start=600)
    pid = machine.add_process(101, parent=100, start=500)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: None}


def test_the_child_of_a_known_process_belongs_to_the_attempt_of_that_process(machine: FakeProc) -> None:
    machine.add_process(100, token="a")
    pid = machine.add_process(101, parent=100)
    owners = ProcessOwners(str(machine.root))
    assert owner_of(owners, AB, pid).owners == {pid: OURS}
    machine.remove_process(100)
    machine.add_process(101, parent=1)
    child = machine.add_process(102, parent=101)
    assert owner_of(owners, AB, child).owners == {child: OURS}
    assert owner_of(owners, AB, pid, child).owners == {pid: OURS, child: OURS}


def test_a_process_with_a_reused_pid_is_not_attributed_to_the_old_owner(machine: FakeProc) -> None:
    pid = machine.add_process(100, token="a", start=400)
    owners = ProcessOwners(str(machine.root))
    before = owner_of(owners, AB, pid)
    machine.add_process(100, start=900)
    after = owner_of(owners, AB, pid)
    assert (before.owners, after.owners) == ({pid: OURS}, {pid: None})
    assert (before.starts, after.starts) == ({pid: 1000004.0}, {pid: 1000009.0})


@pytest.mark.parametrize(
    ("leader", "state", "owner"),
    [(None, "S", OURS), ("", "Z", OURS), ("a", "S", OURS), ("b", "S", OTHER), ("", "S", None)],
    ids=["gone", "zombie", "ours", "another attempt's", "foreign"],
)
def test_a_session_belongs_to_the_attempt_of_its_leader(
    machine: FakeProc, leader: str | None, state: str, owner: int | None
) -> None:
    machine.add_process(99, token="a")
    machine.add_process(101, parent=99, token="a", session=100)
    pid = machine.add_process(102, session=100)
    if leader is not None:
        machine.add_process(100, token=leader or None, state=state)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: owner}


def test_a_process_is_not_attributed_by_a_session_shared_by_two_attempts(machine: FakeProc) -> None:
    for pid, token in ((100, "a"), (101, "b")):
        machine.add_process(pid, token=token, session=99)
    pid = machine.add_process(102, session=99)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: None}


def test_a_session_with_a_reused_id_is_not_attributed_to_the_old_owner(machine: FakeProc) -> None:
    machine.add_process(100, token="a")
    member = machine.add_process(101, parent=100, token="a", session=100)
    owners = ProcessOwners(str(machine.root))
    assert owner_of(owners, AB, member).owners == {member: OURS}
    for pid in (100, member):
        machine.remove_process(pid)
    pid = machine.add_process(102, session=100, start=900)
    assert owner_of(owners, AB, pid).owners == {pid: OURS}
    machine.add_process(100, start=850)
    machine.add_process(pid, session=100, start=901)
    assert owner_of(owners, AB, pid).owners == {pid: None}


@pytest.mark.parametrize("session", [0, 50])
def test_a_process_is_not_attributed_by_session_zero_or_the_schedulers_own_session(
    machine: FakeProc, session: int
) -> None:
    machine.add_process(100, token="a", session=session)
    pid = machine.add_process(101, session=session)
    assert owner_of(ProcessOwners(str(machine.root)), AB, pid).owners == {pid: None}


@pytest.mark.parametrize("opened", [None, "/dev/nvidia0", "/dev/null"])
@pytest.mark.parametrize("token", [None, "a"])
@pytest.mark.parametrize("uuid", ["GPU-a", "MIG-a", "unknown-0", "SIM-0"])
def test_in_a_container_a_pid_that_matches_only_by_chance_is_not_attributed(
    container: FakeProc, uuid: str, token: str | None, opened: str | None
) -> None:
    pid = container.add_process(100, token=token, open_path=opened)
    seen = owner_of(ProcessOwners(str(container.root)), AB, pid, uuid=uuid)
    if uuid == "SIM-0" or opened == "/dev/nvidia0":
        assert (seen.owners, seen.unmatched) == ({pid: OURS if token else None}, False)
        assert set(seen.starts) == {pid}
    else:
        assert seen == SampleOwners(unmatched=True)


def test_a_pid_that_is_the_inner_pid_of_another_process_is_attributed_to_that_process(
    container: FakeProc,
) -> None:
    container.add_process(100, token="a")
    container.add_process(101, token="b", inner_pids=(100,), start=700, open_path="/dev/nvidia0")
    owners = ProcessOwners(str(container.root))
    for _ in range(2):
        seen = owner_of(owners, AB, 100, uuid="GPU-a")
        assert seen == SampleOwners({100: OTHER}, {100: 1000007.0})


def test_in_a_container_a_confirmed_pid_stays_confirmed_until_it_is_reused(container: FakeProc) -> None:
    pid = container.add_process(100, token="a", open_path="/dev/nvidia0")
    owners = ProcessOwners(str(container.root))
    assert owner_of(owners, AB, pid, uuid="GPU-a").owners == {pid: OURS}
    (container.root / "100" / "fd" / "3").unlink()
    assert owner_of(owners, AB, pid, uuid="GPU-a").owners == {pid: OURS}
    container.add_process(100, start=900)
    assert owner_of(owners, AB, pid, uuid="GPU-a") == SampleOwners(unmatched=True)


def test_in_a_container_a_pid_that_no_process_has_is_unmatched_at_once(container: FakeProc) -> None:
    owners = ProcessOwners(str(container.root))
    assert owner_of(owners, AB, 7000, uuid="GPU-a") == SampleOwners(unmatched=True)
    owners.begin_sample({7000})
    assert not owners.ownership_of(gpu_sample(7000, uuid="GPU-a", graphics_only=True), AB).unmatched


@pytest.mark.parametrize(
    ("one", "two", "owner"), [("a", None, OURS), ("a", "a", OURS), ("a", "b", None), (None, None, None)]
)
def test_an_inner_pid_is_attributed_only_if_it_has_a_single_owner(
    container: FakeProc, one: str | None, two: str | None, owner: int | None
) -> None:
    container.add_process(100, token=one, inner_pids=(7000, 12), open_path="/dev/nvidiactl")
    container.add_process(101, token=two, inner_pids=(7000,), open_path="/dev/nvidia0")
    container.add_process(102, token="b", inner_pids=(7000,))
    seen = owner_of(ProcessOwners(str(container.root)), AB, 7000, uuid="GPU-a")
    assert seen.owners == ({} if owner is None else {7000: owner})
    assert seen.unmatched is (owner is None)


@pytest.mark.parametrize("equals", ["=", "\0"])
def test_finds_the_token_of_a_process_while_bash_parses_its_environment(
    machine: FakeProc, equals: str
) -> None:
    pid = machine.add_process(100)
    for text in ("{0}a\0B=2\0", "B=2\0X{0}no\0{0}a\0", "B=2\0{0}a"):
        environment = text.format(f"GPU_SCHEDULER_TOKEN{equals}")
        (machine.root / "100" / "environ").write_text(environment)
        assert Proc(str(machine.root)).token(pid) == "a"
    (machine.root / "100" / "environ").write_text(f"GPU_SCHEDULER_TOKENS{equals}a\0")
    assert Proc(str(machine.root)).token(pid) is None


def test_a_process_counts_as_alive_while_one_of_its_threads_is_alive(machine: FakeProc) -> None:
    root = str(machine.root)
    pid = machine.add_process(100, state="Z", threads=3)
    assert is_alive(pid, 1000005.0, root)
    machine.add_process(100, state="Z")
    assert not is_alive(pid, 1000005.0, root)
    machine.add_process(100)
    assert not is_alive(pid, 1000005.01, root)


def test_does_not_read_the_environment_of_a_known_process_again(
    machine: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_process(100, token="a")
    pids = [machine.add_process(pid, parent=100) for pid in (101, 102)]
    owners = ProcessOwners(str(machine.root))
    first = owner_of(owners, AB, *pids)
    monkeypatch.delattr(Proc, "token")
    monkeypatch.delattr(Proc, "ancestry")
    assert owner_of(owners, AB, *pids) == first


def test_searches_proc_once_per_sample_and_only_if_gpu_processes_changed(
    machine: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Proc] = []
    real = Proc.processes

    def counted(proc: Proc) -> Iterator[Process]:
        searches.append(proc)
        return real(proc)

    monkeypatch.setattr(Proc, "processes", counted)
    machine.add_process(100, token="a")
    ours = machine.add_process(101, parent=100)
    foreign = [machine.add_process(pid) for pid in range(200, 210)]
    owners = ProcessOwners(str(machine.root))
    owner_of(owners, AB, ours)
    assert len(searches) == 0
    for _ in range(3):
        owners.begin_sample({ours, *foreign})
        for uuid in ("SIM-0", "SIM-1"):
            owners.ownership_of(gpu_sample(ours, *foreign, uuid=uuid), AB)
    assert len(searches) == 1
    owners.begin_sample({ours, 7000, 7001})
    for uuid in ("SIM-0", "SIM-1"):
        owners.ownership_of(gpu_sample(ours, 7000, 7001, uuid=uuid), AB)
    assert len(searches) == 2


def test_forgets_gpu_processes_that_have_ended(machine: FakeProc) -> None:
    machine.add_process(100, token="a", inner_pids=(7000,))
    pids = [
        machine.add_process(101, parent=100, token="a", cgroup="/scope"),
        machine.add_process(102),
        7000,
        7001,
    ]
    owners = ProcessOwners(str(machine.root))
    owner_of(owners, AB, *pids)
    kept = (owners._known, owners._missed, owners._searched, owners._sessions, owners._cgroups)
    assert all(kept)
    owner_of(owners, {"b": OTHER})
    owners.begin_sample(())
    assert (owners._known, owners._missed, owners._searched, owners._sessions, owners._cgroups) == (
        {},
        {},
        set(),
        {},
        {},
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([None, "a", "b", "c"]), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_finds_the_nearest_ancestor_with_an_open_token_in_any_process_tree(
    tmp_path: Path, tree: list[tuple[int, str | None, int]]
) -> None:
    """Compares the result with an oracle that searches the list for ancestors.

    Each process has its own session.
    """
    shutil.rmtree(tmp_path / "proc", ignore_errors=True)
    machine = FakeProc(tmp_path / "proc")
    parents = [parent if parent < at else None for at, (parent, _, _) in enumerate(tree)]
    for at, (_, token, late) in enumerate(tree):
        above = parents[at]
        parent = 1 if above is None else 100 + above
        machine.add_process(100 + at, parent=parent, token=token, start=1000 + at - late)

    def owner(at: int) -> int | None:
        _, token, late = tree[at]
        if token in AB:
            return AB[token]
        above = parents[at]
        if above is None or 1000 + above - tree[above][2] > 1000 + at - late:
            return None
        return owner(above)

    pids = [100 + at for at in range(len(tree))]
    owners = ProcessOwners(str(machine.root))
    for listed in (pids, pids[::-1]):
        assert owner_of(owners, AB, *listed).owners == {pid: owner(pid - 100) for pid in pids}


def watched_owner(owners: ProcessOwners, watched: dict[tuple[int, int], str], *pids: int) -> SampleOwners:
    owners.begin_sample(set(pids))
    return owners.ownership_of(gpu_sample(*pids), AB, watched=watched)


def test_a_watched_process_and_its_descendants_belong_to_the_attempt_that_watches_it(
    machine: FakeProc,
) -> None:
    shell = machine.add_process(100, start=400)
    root = machine.add_process(200, parent=shell, session=100)
    child = machine.add_process(201, parent=root, session=100, start=600)
    sibling = machine.add_process(202, parent=shell, session=100)
    found = watched_owner(ProcessOwners(str(machine.root)), {(root, 500): "a"}, root, child, sibling)
    assert found.owners == {root: OURS, child: OURS, sibling: None}


def test_a_process_that_reuses_the_pid_of_a_watched_one_is_foreign(machine: FakeProc) -> None:
    root = machine.add_process(200, start=501)
    assert watched_owner(ProcessOwners(str(machine.root)), {(root, 500): "a"}, root).owners == {root: None}


def test_the_job_of_a_scheduler_that_a_watched_process_started_belongs_to_its_own_attempt(
    machine: FakeProc,
) -> None:
    root = machine.add_process(200)
    ours = machine.add_process(201, parent=root, token="b", start=600)
    theirs = machine.add_process(202, parent=root, token="inner", start=600)
    found = watched_owner(ProcessOwners(str(machine.root)), {(root, 500): "a"}, ours, theirs)
    assert found.owners == {ours: OTHER, theirs: None}


def test_a_process_stops_being_foreign_as_soon_as_it_is_watched(machine: FakeProc) -> None:
    owners, root = ProcessOwners(str(machine.root)), machine.add_process(200)
    assert watched_owner(owners, {}, root).owners == {root: None}
    # The same sample, in the round after the adoption, and then after the end of the attempt.
    assert owners.ownership_of(gpu_sample(root), AB, watched={(root, 500): "a"}).owners == {root: OURS}
    assert owners.ownership_of(gpu_sample(root), AB, watched={(root, 500): "b"}).owners == {root: OTHER}
    assert owners.ownership_of(gpu_sample(root), {}).owners == {root: None}


def test_an_orphan_of_a_watched_process_still_belongs_to_the_attempt(machine: FakeProc) -> None:
    owners, root = ProcessOwners(str(machine.root)), machine.add_process(200)
    child = machine.add_process(201, parent=root, start=600)
    watched = {(root, 500): "a"}
    assert watched_owner(owners, watched, child).owners == {child: OURS}
    machine.remove_process(root)
    machine.add_process(child, parent=1, start=600)
    assert watched_owner(owners, watched, child).owners == {child: OURS}
