"""Tests the rule that decides which processes belong to an attempt. The input is a table of processes."""

from __future__ import annotations

import pytest

from gpu_scheduler.runner.process_scan import Membership, ProcessRow, RecordedCommand, living_descendants

A, B = "a" * 32, "b" * 32
#: The command of attempt A, and the pid of the scheduler that scans.
COMMAND, ASKER = RecordedCommand(100, 500, "/autogroup-7"), 50


def p(
    pid: int,
    parent: int = 1,
    session: int = 100,
    *,
    start: int = 600,
    token: str | None = None,
    autogroup: str | None = "/autogroup-7",
    ended: bool = False,
    mark: str | None = None,
) -> ProcessRow:
    return ProcessRow(pid, start, parent, session, ended, token, autogroup, mark)


def leader(start: int = 500, *, ended: bool = False, token: str | None = None) -> ProcessRow:
    return p(100, parent=90, start=start, ended=ended, token=token)


#: The processes in every table: process 1, the scanning scheduler, and a shell of the user.
ALWAYS = (p(1, 0, 1, start=1), p(ASKER, 1, ASKER, start=300), p(60, 1, 60, start=300))


def members(
    *processes: ProcessRow, attempts: dict[str, RecordedCommand | None] | None = None
) -> dict[str, list[int]]:
    table = {process.pid: process for process in (*ALWAYS, *processes)}
    rule = Membership(table.get, attempts or {A: COMMAND}, ASKER)
    return {token: sorted(found) for token, found in rule.members(table.values()).items()}


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        pytest.param([leader()], [100], id="the command itself, its environment hidden"),
        pytest.param([p(200, 1, 200, token=A)], [200], id="a daemon that carries the token"),
        pytest.param([leader(), p(200, 100)], [100, 200], id="a member of the command's session"),
        pytest.param([p(200)], [200], id="a member of the session after its leader's end"),
        pytest.param([leader(ended=True), p(200)], [200], id="a zombie leader, and its session"),
        pytest.param([leader(), p(200, 100, 200)], [100, 200], id="a child in its own session"),
        pytest.param(
            [leader(), p(200, 100, 200), p(201, 200, 200), p(202, 201, 202)], [100, 200, 201, 202],
            id="descendants in their own sessions",
        ),
        pytest.param([p(200, 1, 200, token=A), p(201, 1, 200)], [200, 201], id="the session of a member"),
        pytest.param([p(200, 1, 200, token=A), p(201, 200, 201)], [200, 201], id="a child of a carrier"),
        pytest.param([p(200, 1, 200, mark=A)], [200], id="left the session, hid its environment, reparented"),
        pytest.param([p(200, 1, 200)], [], id="the same without a mark"),
        pytest.param([p(200, 1, 200, mark=A, token=B)], [], id="the token of another attempt"),
        pytest.param([p(200, ASKER, 200, mark=A)], [], id="marked, but started by the scanning scheduler"),
        pytest.param([p(200, ended=True)], [], id="a zombie"),
    ],
)  # fmt: skip
def test_finds_the_processes_that_belong_to_an_attempt(processes: list[ProcessRow], found: list[int]) -> None:
    assert members(*processes) == ({A: found} if found else {})


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param([leader(start=501)], id="another process has the command's pid"),
        pytest.param([leader(start=501), p(200)], id="the session belongs to another process"),
        pytest.param([leader(start=501, ended=True), p(200)], id="the session belongs to a zombie"),
        pytest.param([p(200, start=499)], id="a member older than the command"),
        pytest.param([p(200, autogroup="/autogroup-8")], id="the session id was reused"),
        pytest.param([p(200, 60, 60)], id="a child of the user's shell"),
        pytest.param([p(200, 1, 1)], id="in the session of process 1"),
        pytest.param([p(200, 1, 0)], id="a kernel thread"),
        pytest.param([p(200, 100, 200, start=400), leader()], id="its parent began later"),
    ],
)
def test_foreign_processes_do_not_belong_to_an_attempt(processes: list[ProcessRow]) -> None:
    assert 200 not in members(*processes).get(A, [])
    assert 100 not in members(*processes).get(A, []) or processes[-1].start == 500


@pytest.mark.parametrize("autogroup", [None, "/autogroup-7"])
def test_the_session_id_decides_to_which_attempt_a_process_belongs_without_autogroups(
    autogroup: str | None,
) -> None:
    assert members(p(200, autogroup=autogroup)) == {A: [200]}
    assert members(p(200), attempts={A: RecordedCommand(100, 500, None)}) == {A: [200]}


def test_the_token_alone_decides_to_which_attempt_a_process_belongs_if_no_command_is_recorded() -> None:
    assert members(leader(), p(200, 100), attempts={A: None}) == {}
    assert members(leader(token=A), p(200, 100, 200), attempts={A: None}) == {A: [100, 200]}


def test_a_process_with_its_own_token_belongs_to_the_attempt_of_that_token() -> None:
    """Job A started a scheduler, which runs a job as process 300 in a session of its own."""
    nested = [leader(), p(200, 100, 200, token=B), p(300, 200, 300), p(301, 300, 300)]
    assert members(*nested) == {A: [100]}
    both: dict[str, RecordedCommand | None] = {A: COMMAND, B: RecordedCommand(300, 600)}
    assert members(*nested, attempts=both) == {A: [100], B: [200, 300, 301]}


def test_the_token_of_a_parent_takes_precedence_over_the_session() -> None:
    assert members(leader(), p(200, 100, token=B), p(201, 200), p(202, 201)) == {A: [100]}


def test_the_session_of_another_attempt_takes_precedence_over_the_parent() -> None:
    both: dict[str, RecordedCommand | None] = {A: COMMAND, B: RecordedCommand(300, 600)}
    assert members(leader(), p(300, 100, 300), p(301, 300, 301), attempts=both) == {A: [100], B: [300, 301]}


def test_the_scanning_scheduler_and_its_helpers_belong_to_no_attempt() -> None:
    """The scheduler was started in a job's session. It has a helper and a runner."""
    asker = p(ASKER, 100, 100, token=A)
    helper, runner, command = p(200, ASKER), p(300, ASKER, 300, token=A), p(301, 300, 301)
    assert members(leader(), asker, helper, runner, command) == {A: [100, 300, 301]}


def test_process_1_never_belongs_to_an_attempt() -> None:
    assert members(p(1, 0, 100, start=600, token=A), p(200, 1, 200)) == {}


def test_processes_in_a_cycle_of_parents_do_not_belong_to_any_attempt() -> None:
    assert members(p(200, 201, 201), p(201, 200, 200)) == {}


def test_finds_the_living_descendants_of_a_process() -> None:
    table = [*ALWAYS, p(200, 60), p(201, 200, ended=True), p(202, 200), p(203, 202, start=700), p(204)]
    assert living_descendants(60, table) == {200: 600, 202: 600, 203: 700}
