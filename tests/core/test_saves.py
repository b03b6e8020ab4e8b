"""When a save counts: editors, pipes and half-written files against the clock."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.grown import REASON, begins_a_line
from gpu_scheduler.core.states import Outcome
from tests.core.jobsworld import World


def world(text: str) -> World:
    made = World()
    made.save(text)
    return made


def test_appended_lines_count_at_once_even_while_the_file_is_being_written() -> None:
    w = world("a\n")
    w.written = True
    w.append("b\n")
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_last_line_without_a_newline_waits_five_seconds() -> None:
    w = world("a\nb")
    w.wait(4.9)
    assert w.states() == {1: "queued"}
    w.wait(0.2)
    assert w.states() == {1: "queued", 2: "queued"}
    w.append("\n", wait=20)
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_last_line_without_a_newline_that_is_known_is_not_gone() -> None:
    w = world("a\nb")
    w.wait(6)
    w.save("n\na\nb")
    assert w.gone == frozenset()
    w.wait(2)
    assert w.queue() == ["n", "a", "b"]


def test_a_last_line_without_a_newline_waits_for_its_writer() -> None:
    w = world("")
    w.written = True
    w.save("python train.py --lr 0.0", wait=30)
    assert w.states() == {}
    w.append("1\n")
    assert w.queue() == ["python train.py --lr 0.01"]


def test_an_inserted_line_waits_two_seconds() -> None:
    w = world("a\nb\n")
    w.save("a\nn\nb\n", wait=1.9)
    assert w.states() == {1: "queued", 2: "queued"}
    w.wait(0.2)
    assert w.queue() == ["a", "n", "b"]


def test_every_change_begins_the_wait_anew() -> None:
    w = world("a\nb\nc\n")
    for text in ("a\nb\n", "a\n", ""):
        w.save(text, wait=9)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.gone == {1, 2, 3}
    w.save("a\nb\nc\n", wait=20)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.gone == frozenset()


def test_a_generator_that_takes_its_time_loses_nothing() -> None:
    """`python gen.py > jobs.txt` empties the file, and writes its first byte 15 s later."""
    w = world("a\nb\n")
    w.written = True
    w.save("", wait=15)
    assert w.gone == {1, 2}
    assert w.states() == {1: "queued", 2: "queued"}
    w.save("a\nb\nc\n")
    w.written = False
    w.wait(20)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.gone == frozenset()


def test_fewer_lines_do_not_count_while_a_new_line_is_malformed() -> None:
    w = world("a\nb\nc\n")
    w.save("a\nhigh,b.py,x\nc\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.gone == {2}
    assert [line.number for line in w.reading if line.malformed] == [2]
    w.save("a\nc\n", wait=9.9)
    assert w.states()[2] == "queued"
    w.wait(0.2)
    assert w.states()[2] == "cancelled"


def test_a_mended_line_is_the_same_line() -> None:
    w = world("a\n0,b.py,e\nc\n")
    w.save("a\n0;b.py;e\nc\n", wait=60)
    w.save("a\n0,b.py,e\nc\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert not any(line.malformed for line in w.reading)


def test_an_old_malformed_line_does_not_keep_others_from_being_removed() -> None:
    w = world("a\nbad,b.py,x\nc\n")
    w.save("bad,b.py,x\nc\n", wait=11)
    assert w.states() == {1: "cancelled", 2: "queued"}


def test_new_lines_go_on_counting_while_others_are_gone() -> None:
    w = world("a\nb\n")
    w.save("a\nbad,b.py,x\n", wait=5)
    w.append("c\n", wait=2)
    w.append("d\n", wait=2)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued", 4: "queued"}
    assert w.gone == {2}


def test_a_malformed_line_at_the_end_is_known_at_once() -> None:
    w = world("a\n")
    w.append("bad,b.py,x\nc\n")
    assert [line.number for line in w.reading if line.malformed] == [2]
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_file_cut_in_the_middle_of_a_line_starts_no_half_line() -> None:
    text = "".join(f"python train.py --seed {i}00\n" for i in range(20))
    w = world(text)
    before = w.states()
    for cut in range(0, len(text), 7):
        w.save(text[:cut])
        assert w.states() == before
        w.now += 0.05
    w.save(text, wait=30)
    assert w.states() == before
    assert w.gone == frozenset()


def test_a_restart_while_lines_are_gone_waits_again() -> None:
    w = world("a\nb\n")
    w.save("a\n", wait=9)
    w.since = w.now
    w.poll()
    w.wait(9)
    assert w.states() == {1: "queued", 2: "queued"}
    w.wait(1.1)
    assert w.states() == {1: "queued", 2: "cancelled"}


def test_what_has_ended_is_not_gone() -> None:
    w = world("a\nb\n")
    w.end(1)
    w.start(2)
    w.save("")
    assert w.gone == frozenset()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("python a.py", "python b.py"),
        ("0,/a.py,env,--x 1", "0,/b.py,env,--x 2"),
        ("0,/a.py", "1,/b.py"),
        ("0,a.py,,--x 1,0-3", "python b.py --x"),
        ("./run.sh 1", "./run.sh 2"),
        ("mytool 1", "mytool 2"),
        ("sleep 1", "echo done"),
        ("sleep 1", "SEED=1 mytool"),
        ("sleep 1", "[gpus=2] mytool"),
    ],
)
def test_a_line_appended_to_an_unfinished_one_is_malformed(first: str, second: str) -> None:
    w = world(first)
    w.wait(6)
    assert w.states() == {1: "queued"}
    w.append(f"{second}\nlast\n", wait=60)
    assert [line.problem for line in w.reading if line.malformed] == [REASON]
    assert w.states() == {1: "queued", 2: "queued"}
    assert w.gone == {1}
    w.save(f"{first}\n{second}\nlast\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.queue() == [first, second.removeprefix("[gpus=2] "), "last"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python a.py", "python a.py --epochs 5"),
        ("python a.py --out runs/a", "python a.py --out runs/abc --lr 1"),
        ("python a.py --lr 0.0", "python a.py --lr 0.01 --bs 2,3"),
        ("sleep 1", "sleep 10"),
        ("0,a.py,,--lr 0.0", "0,a.py,,--lr 0.01,0-3"),
        ("python a.py", "[] python a.pypython b.py"),
    ],
)
def test_an_edited_last_line_is_just_changed(before: str, after: str) -> None:
    w = world(before)
    w.wait(6)
    w.save(after + "\n", wait=30)
    assert not any(line.malformed for line in w.reading)
    assert w.states() == {1: "cancelled", 2: "queued"}


def test_beginnings_of_lines() -> None:
    assert begins_a_line("tool x", {"tool"})
    assert not begins_a_line("tool x", set())
    assert not begins_a_line(" python b.py", {"python"})
    assert not begins_a_line("", {"python"})
    assert not begins_a_line("[12] x", set())


def test_an_ended_job_whose_unfinished_line_grew() -> None:
    w = world("python a.py")
    w.wait(6)
    w.end(1, Outcome.COMPLETED)
    w.append("python b.py\n", wait=30)
    assert [line.problem for line in w.reading if line.malformed] == [REASON]
    w.save("python a.py\npython b.py\n", wait=30)
    assert w.states() == {1: "completed", 2: "queued"}
