"""Edits to the state file shortly after another edit or after the scheduler has written the file."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from gpu_scheduler.store import state_file
from gpu_scheduler.store.state_file import request_pauses
from tests.store.test_state_file import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.begin()
    return made


def run_round(machine: Machine) -> None:
    """Runs a round less than a second after the last write, so the file is not written again."""
    machine.now -= 1.9
    machine.round()


def test_accepts_an_edit_that_reverts_the_previous_edit(machine: Machine) -> None:
    run_round(machine)
    machine.edit(1)
    run_round(machine)
    assert json.loads(machine.path.read_text())["_scheduler"] == {"paused_gpus": []}, "not applied yet"
    machine.edit()
    machine.round()
    assert machine.pauses() == ([], [])


def test_accepts_a_reverting_edit_that_began_before_the_first_edit_was_applied(machine: Machine) -> None:
    machine.edit(1)
    first = json.loads(machine.path.read_text())
    machine.round()
    assert machine.pauses() == ([1], [1])
    machine.path.write_text(json.dumps({**first, "paused_gpus": [2]}))
    machine.round()
    assert machine.pauses() == ([2], [2])


def test_saving_an_old_copy_later_does_not_revert_a_pause(machine: Machine) -> None:
    old = json.loads(machine.path.read_text())
    machine.edit(1)
    machine.round()
    last = json.loads(machine.store.db.meta("statefile_edit") or "")
    machine.store.db.set_meta("statefile_edit", json.dumps({**last, "at": last["at"] - 60}))
    machine.path.write_text(json.dumps({**old, "paused_gpus": [2]}))
    machine.round()
    assert machine.pauses() == ([1, 2], [1, 2])


@pytest.mark.parametrize("is_emptied", [False, True], ids=["moved away", "emptied"])
def test_does_not_write_while_an_editor_replaces_the_file(machine: Machine, is_emptied: bool) -> None:
    machine.edit(0, mine="kept")
    machine.round()
    content = machine.path.read_bytes()
    machine.path.rename(machine.path.with_name("s.json~"))
    if is_emptied:
        machine.path.touch()
    request_pauses(machine.store, ["U1"], True, "cli", scheduler_is_up=True)
    for _ in range(2):
        run_round(machine)
        assert (machine.path.read_bytes() if machine.path.exists() else b"") == b""
    machine.path.write_bytes(content)
    machine.round()
    assert machine.pauses() == ([0, 1], [0, 1])
    assert json.loads(machine.path.read_text())["mine"] == "kept"


def test_two_saves_that_move_the_file_away_do_not_count_as_one_absence(machine: Machine) -> None:
    machine.edit(0, mine="kept")
    machine.round()
    content = machine.path.read_bytes()
    request_pauses(machine.store, ["U1"], True, "cli", scheduler_is_up=True)
    machine.now += 1.1
    for _ in range(3):
        aside = machine.path.rename(machine.path.with_name("s.json~"))
        machine.watch.write(machine.now)
        assert not machine.path.exists()
        aside.rename(machine.path)
        machine.watch.check(machine.now)
        machine.now += 1.5
    assert machine.path.read_bytes() == content
    machine.round()
    assert json.loads(machine.path.read_text())["mine"] == "kept"


def test_two_saves_that_empty_the_file_do_not_count_as_one_broken_version(machine: Machine) -> None:
    machine.edit(0, mine="kept")
    machine.round()
    content = machine.path.read_bytes()
    for _ in range(3):
        machine.path.write_bytes(b"")
        machine.watch.check(machine.now)
        machine.now += 1.5
        machine.path.write_bytes(content)  # too short for the scheduler to see it
    assert machine.path.read_bytes() == content
    machine.round()
    assert json.loads(machine.path.read_text())["mine"] == "kept"
    assert not machine.path.with_name("s.json.bad").exists()


def test_the_last_write_creates_a_missing_file_at_once(machine: Machine) -> None:
    machine.path.unlink()
    machine.watch.write(machine.now, at_once=True)
    assert machine.pauses() == ([], [])


def test_keeps_unknown_keys_of_an_edit_made_while_the_file_is_replaced(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, edited = state_file.exchange, False

    def exchange(path: Path, content: bytes) -> bytes | None:
        nonlocal edited
        if not edited:
            edited = True
            machine.edit(3, mine="kept")
        return real(path, content)

    monkeypatch.setattr(state_file, "exchange", exchange)
    machine.edit(0)
    machine.round()
    machine.round()
    assert edited
    assert machine.pauses() == ([3], [3])
    assert json.loads(machine.path.read_text())["mine"] == "kept"


class Killed(BaseException):
    """Raised where the scheduler is killed."""


@pytest.mark.parametrize("later", [{}, {"mine": "newer"}], ids=["left alone", "edited meanwhile"])
def test_keeps_unknown_keys_if_the_scheduler_dies_before_restoring_them(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, later: dict[str, object]
) -> None:
    real, calls = state_file.exchange, 0

    def exchange(path: Path, content: bytes) -> bytes | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            machine.edit(3, mine="kept", other=1)
        if calls == 2:
            raise Killed
        return real(path, content)

    monkeypatch.setattr(state_file, "exchange", exchange)
    machine.edit(0)
    with pytest.raises(Killed):
        machine.round()
    monkeypatch.undo()
    assert "mine" not in json.loads(machine.path.read_text())
    if later:
        machine.path.write_text(json.dumps({**json.loads(machine.path.read_text()), **later}))
    machine.begin()
    machine.round()
    file = json.loads(machine.path.read_text())
    assert (file["mine"], file["other"]) == (later.get("mine", "kept"), 1)
    assert not machine.store.db.meta("statefile_left")


def test_keeps_unknown_keys_if_restoring_them_fails_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = state_file.exchange, 0

    def exchange(path: Path, content: bytes) -> bytes | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            machine.edit(3, mine="kept")
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    monkeypatch.setattr(state_file, "exchange", exchange)
    machine.edit(0)
    machine.round()
    assert "mine" not in json.loads(machine.path.read_text())
    machine.round()
    assert json.loads(machine.path.read_text())["mine"] == "kept"


def test_accepts_an_edit_still_being_written_when_the_file_is_replaced(machine: Machine) -> None:
    state = json.loads(machine.path.read_text())
    wanted = json.dumps({**state, "paused_gpus": [2], "mine": "kept"}).encode()
    os.replace(machine.path, state_file.displaced_path(machine.path))
    machine.path.write_text(json.dumps(state))
    with open(state_file.displaced_path(machine.path), "wb", buffering=0) as file:
        file.write(wanted[:40])
        machine.edit(1)
        machine.round()
        assert machine.pauses() == ([1], [1]), "the scheduler does not wait for the writer"

        def write_the_rest() -> None:
            file.write(wanted[40:])
            file.close()

        writing = threading.Timer(0.03, write_the_rest)
        writing.start()
        machine.round()
        writing.join()
    machine.round()
    machine.round()
    assert machine.pauses() == ([1, 2], [1, 2])
    assert json.loads(machine.path.read_text())["mine"] == "kept"
