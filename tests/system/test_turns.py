"""Places in line and holds, with real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_scheduler.system.gpu_claims import PASSED_OVER_S, Turns, boot_s
from tests.turn_taker import TurnTaker, turn_taker


@pytest.fixture
def folder() -> Path:
    """An empty lock folder."""
    path = Path(os.environ["GPU_SCHEDULER_LOCK_DIR"])
    path.mkdir()
    return path


@pytest.fixture
def others(folder: Path) -> Iterator[list[TurnTaker]]:
    """Two other programs."""
    with ExitStack() as stack:
        yield [stack.enter_context(turn_taker(folder)) for _ in range(2)]


def test_the_program_that_began_to_wait_first_is_ahead_of_all_others(
    folder: Path, others: list[TurnTaker]
) -> None:
    first, second = others
    second.wait_in_line("GPU-a", 10.0)
    first.wait_in_line("GPU-a", 20.0)
    turns, now = Turns(folder), boot_s()
    assert turns.ahead("GPU-a", now) == first.pid
    assert turns.ahead("GPU-a", now - 15) == first.pid
    assert turns.ahead("GPU-a", now - 30) is None
    assert turns.ahead("GPU-b", now) is None


def test_a_program_that_is_killed_leaves_no_place_and_no_hold(folder: Path, others: list[TurnTaker]) -> None:
    first, second = others
    first.wait_in_line("GPU-a", 20.0)
    assert first.hold("GPU-b")
    second.wait_in_line("GPU-a", 10.0)
    turns, now = Turns(folder), boot_s()
    assert (turns.ahead("GPU-a", now), turns.ahead("GPU-b")) == (first.pid, first.pid)
    first.kill()
    assert (turns.ahead("GPU-a", now), turns.ahead("GPU-b")) == (second.pid, None)
    assert turns.take("GPU-b", now) is None


def test_a_program_that_does_not_move_is_passed_over_until_it_moves(
    folder: Path, others: list[TurnTaker]
) -> None:
    stopped, next_one = others
    stopped.wait_in_line("GPU-a", 100.0, moved_ago_s=PASSED_OVER_S + 2)
    next_one.wait_in_line("GPU-a", 50.0)
    turns, now = Turns(folder), boot_s()
    assert turns.ahead("GPU-a", now) == next_one.pid
    stopped.move()
    assert turns.ahead("GPU-a", now) == stopped.pid


def test_a_hold_is_for_one_program_whoever_waits(folder: Path, others: list[TurnTaker]) -> None:
    holder, other = others
    other.wait_in_line("GPU-a", 20.0)
    assert holder.hold("GPU-a")
    assert not other.hold("GPU-a")
    turns = Turns(folder)
    assert turns.take("GPU-a", boot_s() - 100) == holder.pid
    holder.give_up()
    assert turns.take("GPU-a", boot_s() - 100) is None
    assert not other.hold("GPU-a")
    turns.keep(())
    assert other.hold("GPU-a")
    turns.close()


def test_programs_that_begin_to_wait_at_the_same_moment_have_different_places(
    folder: Path, others: list[TurnTaker]
) -> None:
    since = boot_s()
    for other in others:
        other.wait_in_line("GPU-a", boot_s() - since)
    turns = Turns(folder)
    turns.wait_in_line({"GPU-a": since}, ())
    assert turns.ahead("GPU-a", since) == others[0].pid
    others[0].kill()
    assert turns.ahead("GPU-a", since) == others[1].pid
    others[1].kill()
    assert turns.ahead("GPU-a", since) is None


def test_a_place_is_given_up_for_a_later_one(folder: Path, others: list[TurnTaker]) -> None:
    one, other = others
    one.wait_in_line("GPU-a", 20.0)
    other.wait_in_line("GPU-a", 10.0)
    one.wait_in_line("GPU-a", 5.0)
    assert Turns(folder).ahead("GPU-a", boot_s()) == other.pid


def test_more_places_than_can_be_read_are_no_line(
    folder: Path, others: list[TurnTaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, other in enumerate(others):
        other.wait_in_line("GPU-a", 10.0 + number)
    monkeypatch.setattr("gpu_scheduler.runner.locks.MAX_LOCKS", 1)
    assert Turns(folder).ahead("GPU-a", boot_s()) is None


def test_a_turn_file_that_cannot_be_used_keeps_nobody_from_the_gpu(
    folder: Path, others: list[TurnTaker]
) -> None:
    (folder / ".turn-GPU-a").symlink_to("elsewhere")
    turns = Turns(folder)
    turns.wait_in_line({"GPU-a": boot_s()}, ["GPU-a"])
    assert turns.take("GPU-a", boot_s()) is None
    assert turns.problem is not None
    assert "is a symbolic link" in str(turns.problem)
    assert others[0].hold("GPU-a")


def test_a_turn_file_that_somebody_has_removed_is_made_again(folder: Path, others: list[TurnTaker]) -> None:
    turns, since = Turns(folder), boot_s() - 30
    turns.wait_in_line({"GPU-a": since}, ["GPU-a"])
    assert turns.hold("GPU-a")
    (folder / ".turn-GPU-a").unlink()
    turns.wait_in_line({"GPU-a": since}, ["GPU-a"])
    assert others[0].ahead("GPU-a") == os.getpid()
    assert turns.hold("GPU-a")
    assert not others[0].hold("GPU-a")
    turns.close()


def test_a_turn_file_is_for_all_users_and_no_lock_file(folder: Path) -> None:
    turns = Turns(folder)
    turns.hold("GPU-a")
    [file] = folder.iterdir()
    assert file.stat().st_mode & 0o7777 == 0o1666
    assert file.name.startswith(".")
    turns.close()
