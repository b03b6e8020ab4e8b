"""Tests each rule of the attribution of GPU processes, on a fake /proc."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.attribution import Owners, Ownership, is_alive
from gpu_scheduler.procfs import Proc, Process
from tests.fakes.proc import Machine
from tests.loop.test_attribution import OTHER, OURS, card, whose


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


@pytest.fixture
def container(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc", "pid:[4026532000]")


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
def test_process_is_attributed_by_a_cgroup_that_the_attempt_moved_to(
    machine: Machine, group: str, moved: str, start: int, owner: int | None
) -> None:
    runner = machine.run(100, token="a", start=400, group="/user.slice/session-3.scope")
    machine.run(101, parent=runner, token="a", group=moved)
    pid = machine.run(200, group=group, start=start)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: owner}


def test_runner_that_has_just_ended_has_moved_to_no_cgroup(machine: Machine) -> None:
    machine.run(100, token="a", group="/user.slice/session-3.scope")
    machine.run(101, parent=100, token="a", group="/user.slice/session-3.scope")
    (machine.root / "100" / "cgroup").unlink()
    pid = machine.run(200, group="/user.slice/session-3.scope")
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: None}


def test_cgroup_of_two_attempts_decides_nothing(machine: Machine) -> None:
    for runner, token in ((100, "a"), (110, "b")):
        machine.run(runner, token=token)
        machine.run(runner + 1, parent=runner, token=token, group="/both")
    pid = machine.run(200, group="/both/x")
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: None}


@pytest.mark.parametrize("order", [(101, 111), (111, 101)])
def test_innermost_cgroup_counts(machine: Machine, order: tuple[int, int]) -> None:
    machine.run(100, token="a")
    machine.run(101, parent=100, token="a", group="/outer")
    machine.run(110, token="b")
    machine.run(111, parent=110, token="b", group="/outer/inner")
    owners = Owners(str(machine.root))
    whose(owners, AB, *order)
    one, two = machine.run(200, group="/outer/x"), machine.run(201, group="/outer/inner/x")
    assert whose(owners, AB, one, two).owners == {one: OURS, two: OTHER}


def test_cgroup_of_a_listed_process_is_remembered(machine: Machine) -> None:
    machine.run(100, token="a")
    pid, later = machine.run(101, parent=100, token="a", group="/scope"), 300
    owners = Owners(str(machine.root))
    assert whose(owners, AB, pid).owners == {pid: OURS}
    machine.end(pid)
    machine.run(later, group="/scope")
    assert whose(owners, AB, later).owners == {later: OURS}


def test_nearest_parent_with_an_open_token_decides(machine: Machine) -> None:
    machine.run(100, token="a")
    machine.run(101, parent=100, token="b")
    machine.run(102, parent=101, token="unknown")
    pid = machine.run(103, parent=102)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: OTHER}
    assert whose(Owners(str(machine.root)), {"a": OURS}, pid).owners == {pid: OURS}


def test_parent_that_started_later_is_ignored(machine: Machine) -> None:
    machine.run(100, token="a", start=600)
    pid = machine.run(101, parent=100, start=500)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: None}


def test_child_of_a_known_process_belongs_to_its_attempt(machine: Machine) -> None:
    machine.run(100, token="a")
    pid = machine.run(101, parent=100)
    owners = Owners(str(machine.root))
    assert whose(owners, AB, pid).owners == {pid: OURS}
    machine.end(100)
    machine.run(101, parent=1)
    child = machine.run(102, parent=101)
    assert whose(owners, AB, child).owners == {child: OURS}
    assert whose(owners, AB, pid, child).owners == {pid: OURS, child: OURS}


def test_process_with_a_reused_pid_inherits_nothing(machine: Machine) -> None:
    pid = machine.run(100, token="a", start=400)
    owners = Owners(str(machine.root))
    before = whose(owners, AB, pid)
    machine.run(100, start=900)
    after = whose(owners, AB, pid)
    assert (before.owners, after.owners) == ({pid: OURS}, {pid: None})
    assert (before.starts, after.starts) == ({pid: 1000004.0}, {pid: 1000009.0})


@pytest.mark.parametrize(
    ("leader", "state", "owner"),
    [(None, "S", OURS), ("", "Z", OURS), ("a", "S", OURS), ("b", "S", OTHER), ("", "S", None)],
    ids=["gone", "zombie", "ours", "another attempt's", "foreign"],
)
def test_session_belongs_to_the_attempt_of_its_leader(
    machine: Machine, leader: str | None, state: str, owner: int | None
) -> None:
    machine.run(99, token="a")
    machine.run(101, parent=99, token="a", session=100)
    pid = machine.run(102, session=100)
    if leader is not None:
        machine.run(100, token=leader or None, state=state)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: owner}


def test_session_of_two_attempts_decides_nothing(machine: Machine) -> None:
    for pid, token in ((100, "a"), (101, "b")):
        machine.run(pid, token=token, session=99)
    pid = machine.run(102, session=99)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: None}


def test_reused_session_id_inherits_nothing(machine: Machine) -> None:
    machine.run(100, token="a")
    member = machine.run(101, parent=100, token="a", session=100)
    owners = Owners(str(machine.root))
    assert whose(owners, AB, member).owners == {member: OURS}
    for pid in (100, member):
        machine.end(pid)
    pid = machine.run(102, session=100, start=900)
    assert whose(owners, AB, pid).owners == {pid: OURS}
    machine.run(100, start=850)
    machine.run(pid, session=100, start=901)
    assert whose(owners, AB, pid).owners == {pid: None}


@pytest.mark.parametrize("session", [0, 50])
def test_no_session_and_the_own_session_decide_nothing(machine: Machine, session: int) -> None:
    machine.run(100, token="a", session=session)
    pid = machine.run(101, session=session)
    assert whose(Owners(str(machine.root)), AB, pid).owners == {pid: None}


@pytest.mark.parametrize("opened", [None, "/dev/nvidia0", "/dev/null"])
@pytest.mark.parametrize("token", [None, "a"])
@pytest.mark.parametrize("uuid", ["GPU-a", "MIG-a", "unknown-0", "SIM-0"])
def test_pid_in_a_container_may_be_ours_by_chance(
    container: Machine, uuid: str, token: str | None, opened: str | None
) -> None:
    pid = container.run(100, token=token, opened=opened)
    seen = whose(Owners(str(container.root)), AB, pid, uuid=uuid)
    if uuid == "SIM-0" or opened == "/dev/nvidia0":
        assert (seen.owners, seen.unmatched) == ({pid: OURS if token else None}, False)
        assert set(seen.starts) == {pid}
    else:
        assert seen == Ownership(unmatched=True)


def test_pid_in_a_container_may_be_an_inner_pid_of_another_process(
    container: Machine,
) -> None:
    container.run(100, token="a")
    container.run(101, token="b", inner=(100,), start=700, opened="/dev/nvidia0")
    owners = Owners(str(container.root))
    for _ in range(2):
        seen = whose(owners, AB, 100, uuid="GPU-a")
        assert seen == Ownership({100: OTHER}, {100: 1000007.0})


def test_confirmed_pid_in_a_container_stays_confirmed(container: Machine) -> None:
    pid = container.run(100, token="a", opened="/dev/nvidia0")
    owners = Owners(str(container.root))
    assert whose(owners, AB, pid, uuid="GPU-a").owners == {pid: OURS}
    (container.root / "100" / "fd" / "3").unlink()
    assert whose(owners, AB, pid, uuid="GPU-a").owners == {pid: OURS}
    container.run(100, start=900)
    assert whose(owners, AB, pid, uuid="GPU-a") == Ownership(unmatched=True)


def test_pid_without_a_process_in_a_container_is_unmatched_at_once(container: Machine) -> None:
    owners = Owners(str(container.root))
    assert whose(owners, AB, 7000, uuid="GPU-a") == Ownership(unmatched=True)
    owners.take({7000})
    assert not owners.of(card(7000, uuid="GPU-a", graphics_only=True), AB).unmatched


@pytest.mark.parametrize(
    ("one", "two", "owner"), [("a", None, OURS), ("a", "a", OURS), ("a", "b", None), (None, None, None)]
)
def test_inner_pid_counts_if_one_attempt_has_it(
    container: Machine, one: str | None, two: str | None, owner: int | None
) -> None:
    container.run(100, token=one, inner=(7000, 12), opened="/dev/nvidiactl")
    container.run(101, token=two, inner=(7000,), opened="/dev/nvidia0")
    container.run(102, token="b", inner=(7000,))
    seen = whose(Owners(str(container.root)), AB, 7000, uuid="GPU-a")
    assert seen.owners == ({} if owner is None else {7000: owner})
    assert seen.unmatched is (owner is None)


@pytest.mark.parametrize("equals", ["=", "\0"])
def test_token_is_found_while_bash_parses_its_environment(machine: Machine, equals: str) -> None:
    pid = machine.run(100)
    for text in ("{0}a\0B=2\0", "B=2\0X{0}no\0{0}a\0", "B=2\0{0}a"):
        environment = text.format(f"GPU_SCHEDULER_TOKEN{equals}")
        (machine.root / "100" / "environ").write_text(environment)
        assert Proc(str(machine.root)).token(pid) == "a"
    (machine.root / "100" / "environ").write_text(f"GPU_SCHEDULER_TOKENS{equals}a\0")
    assert Proc(str(machine.root)).token(pid) is None


def test_process_is_alive_while_one_of_its_threads_is(machine: Machine) -> None:
    root = str(machine.root)
    pid = machine.run(100, state="Z", threads=3)
    assert is_alive(pid, 1000005.0, root)
    machine.run(100, state="Z")
    assert not is_alive(pid, 1000005.0, root)
    machine.run(100)
    assert not is_alive(pid, 1000005.01, root)


def test_known_process_is_not_read_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.run(100, token="a")
    pids = [machine.run(pid, parent=100) for pid in (101, 102)]
    owners = Owners(str(machine.root))
    first = whose(owners, AB, *pids)
    monkeypatch.delattr(Proc, "token")
    monkeypatch.delattr(Proc, "line")
    assert whose(owners, AB, *pids) == first


def test_searches_once_per_sample_and_only_for_changed_processes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Proc] = []
    real = Proc.processes

    def counted(proc: Proc) -> Iterator[Process]:
        searches.append(proc)
        return real(proc)

    monkeypatch.setattr(Proc, "processes", counted)
    machine.run(100, token="a")
    ours = machine.run(101, parent=100)
    foreign = [machine.run(pid) for pid in range(200, 210)]
    owners = Owners(str(machine.root))
    whose(owners, AB, ours)
    assert len(searches) == 0
    for _ in range(3):
        owners.take({ours, *foreign})
        for uuid in ("SIM-0", "SIM-1"):
            owners.of(card(ours, *foreign, uuid=uuid), AB)
    assert len(searches) == 1
    owners.take({ours, 7000, 7001})
    for uuid in ("SIM-0", "SIM-1"):
        owners.of(card(ours, 7000, 7001, uuid=uuid), AB)
    assert len(searches) == 2


def test_ended_processes_are_forgotten(machine: Machine) -> None:
    machine.run(100, token="a", inner=(7000,))
    pids = [machine.run(101, parent=100, token="a", group="/scope"), machine.run(102), 7000, 7001]
    owners = Owners(str(machine.root))
    whose(owners, AB, *pids)
    kept = (owners._known, owners._missed, owners._searched, owners._sessions, owners._groups)
    assert all(kept)
    whose(owners, {"b": OTHER})
    owners.take(())
    assert (owners._known, owners._missed, owners._searched, owners._sessions, owners._groups) == (
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
def test_nearest_open_token_decides_in_any_process_tree(
    tmp_path: Path, tree: list[tuple[int, str | None, int]]
) -> None:
    """Each process has its own session. The oracle reads the list; ancestry follows position and start."""
    shutil.rmtree(tmp_path / "proc", ignore_errors=True)
    machine = Machine(tmp_path / "proc")
    parents = [parent if parent < at else None for at, (parent, _, _) in enumerate(tree)]
    for at, (_, token, late) in enumerate(tree):
        above = parents[at]
        parent = 1 if above is None else 100 + above
        machine.run(100 + at, parent=parent, token=token, start=1000 + at - late)

    def owner(at: int) -> int | None:
        _, token, late = tree[at]
        if token in AB:
            return AB[token]
        above = parents[at]
        if above is None or 1000 + above - tree[above][2] > 1000 + at - late:
            return None
        return owner(above)

    pids = [100 + at for at in range(len(tree))]
    owners = Owners(str(machine.root))
    for listed in (pids, pids[::-1]):
        assert whose(owners, AB, *listed).owners == {pid: owner(pid - 100) for pid in pids}
