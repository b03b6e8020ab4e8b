"""Debouncing: when a change to the jobs file by an editor, a pipe or a slow writer is accepted."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_scheduler.core.jobsfile.debounce import REASON, starts_a_line
from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import Outcome
from tests.core.jobs_file_world import JobsFileWorld


def world(text: str) -> JobsFileWorld:
    made = JobsFileWorld()
    made.save(text)
    return made


def restart(before: JobsFileWorld) -> JobsFileWorld:
    """Returns a world with the same file and store, as a restarted scheduler would find them."""
    made = JobsFileWorld()
    made.raw_lines, made.reading, made.jobs, made.now = (
        before.raw_lines,
        before.reading,
        before.jobs,
        before.now,
    )
    made.unchanged_since = made.now
    made.check()
    assert made.waiting_for_lines == before.waiting_for_lines
    return made


def test_accepts_appended_lines_at_once_even_while_the_file_is_open_for_writing() -> None:
    w = world("a\n")
    w.open_for_writing = True
    w.append("b\n")
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_last_line_without_a_newline_is_accepted_after_five_seconds() -> None:
    w = world("a\nb")
    w.wait(4.9)
    assert w.states() == {1: "queued"}
    w.wait(0.2)
    assert w.states() == {1: "queued", 2: "queued"}
    w.append("\n", wait=20)
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_known_line_that_lost_its_newline_is_not_missing() -> None:
    w = world("a\nb")
    w.wait(6)
    w.save("n\na\nb")
    assert w.waiting_for_lines == set()
    w.wait(2)
    assert w.queue() == ["n", "a", "b"]


def test_a_last_line_without_a_newline_is_not_accepted_while_the_file_is_open_for_writing() -> None:
    w = world("")
    w.open_for_writing = True
    w.save("python train.py --lr 0.0", wait=30)
    assert w.states() == {}
    w.append("1\n")
    assert w.queue() == ["python train.py --lr 0.01"]


def test_an_inserted_line_is_accepted_after_two_seconds() -> None:
    w = world("a\nb\n")
    w.save("a\nn\nb\n", wait=1.9)
    assert w.states() == {1: "queued", 2: "queued"}
    w.wait(0.2)
    assert w.queue() == ["a", "n", "b"]


def test_every_save_restarts_the_delay_of_a_removal() -> None:
    w = world("a\nb\nc\n")
    for text in ("a\nb\n", "a\n", ""):
        w.save(text, wait=9)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.waiting_for_lines == {1, 2, 3}
    w.save("a\nb\nc\n", wait=20)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.waiting_for_lines == set()


def test_no_line_of_a_slow_generator_is_lost() -> None:
    """`python gen.py > jobs.txt` empties the file and writes its first byte 15 s later."""
    w = world("a\nb\n")
    w.open_for_writing = True
    w.save("", wait=15)
    assert w.waiting_for_lines == {1, 2}
    assert w.states() == {1: "queued", 2: "queued"}
    w.save("a\nb\nc\n")
    w.open_for_writing = False
    w.wait(20)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.waiting_for_lines == set()


def test_a_malformed_line_delays_the_cancellation_of_the_job_whose_line_it_replaces() -> None:
    w = world("a\nb\nc\n")
    w.save("a\nsoon,b.py,x\nc\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert w.waiting_for_lines == {2}
    assert [line.number for line in w.reading if line.malformed] == [2]
    w.save("a\nc\n", wait=9.9)
    assert w.states()[2] == "queued"
    w.wait(0.2)
    assert w.states()[2] == "cancelled"


@pytest.mark.parametrize(
    ("before", "after", "waiting", "cancelled"),
    [
        # The line that a malformed line replaces (its original) is the missing line with the same text
        # after the attribute block, regardless of its position.
        ("a\nb\nc\n", "[vram=20H] c\na\n", {3}, {2}),
        ("a\n[vram=2G] b # x\nc\n", "a\nc\n[vram=2G b\n[vram=2H] b  # y\n", {2}, set()),
        ("a\n[gpus=2] b\nc\n", "[gpus=two] b\n", {2}, {1, 3}),
        ("0,a.py\n0,b.py\n", "[vrm=2] 0,b.py\n", {2}, {1}),
        # If no missing line has the same text, the original is the nearest missing line.
        ("a\nb\nc\nd\n", "a\nsoon,b.py,x\n", {2}, {3, 4}),
        ("a\nb\nc\nd\n", "a\nn\nsoon,c.py,x\nd\n", {3}, {2}),
        ("a\nb\nc\nd\n", "n\na\nsoon,x,x\nc\n", {2}, {4}),
        ("a\nb\nc\nd\n", "soon,x,x\nlate,x,x\nb\nd\n", {1, 3}, set()),
        # If two malformed lines have the same text, only one of them can replace that original.
        ("a\nb\nc\n", "a\n[x=1] b\n[x=2] b\n", {2, 3}, set()),
        # A malformed line without an original does not protect any job.
        ("a\nb\n", "a\nsoon,x,x\nlate,x,x\nb\n", set(), set()),
    ],
)
def test_a_new_malformed_line_protects_the_job_of_only_one_missing_line(
    before: str, after: str, waiting: set[int], cancelled: set[int]
) -> None:
    w = world(before)
    jobs = set(w.jobs)
    w.save(after, wait=9.9)
    assert not any(w.states()[job] == "cancelled" for job in jobs)
    w.wait(0.2)
    assert {job for job in jobs if w.states()[job] == "cancelled"} == cancelled
    assert w.waiting_for_lines == waiting
    assert w.next_check is None, "a drain does not wait for anything more"
    again = restart(w)
    again.wait(60)
    assert (again.waiting_for_lines, again.states()) == (w.waiting_for_lines, w.states())
    again.save(before, wait=60)
    assert all(again.states()[job] == "queued" for job in jobs - cancelled)
    assert not again.waiting_for_lines


def test_a_line_near_a_malformed_line_can_be_removed_by_a_later_save() -> None:
    w = world("a\nb\nc\nd\n")
    w.save("a\nsoon,b.py,x\nc\nd\n", wait=60)
    w.save("a\nsoon,b.py,x\nd\n", wait=11)
    assert w.states() == {1: "queued", 2: "queued", 3: "cancelled", 4: "queued"}
    w.save("d\na\nlate,b.py,x\n", wait=11)  # The lines get a different typo and a different order.
    assert (w.waiting_for_lines, w.queue()) == ({2}, ["d", "a", "b"])
    w.save("d\na\n", wait=11)
    assert w.states() == {1: "queued", 2: "cancelled", 3: "cancelled", 4: "queued"}


def test_correcting_a_typo_and_changing_the_text_replaces_the_job() -> None:
    w = world("a\nb\n")
    w.save("a\n[vram=20H] b\n", wait=60)
    w.save("a\n[vram=20G] B\n", wait=60)
    assert w.states() == {1: "queued", 2: "cancelled", 3: "queued"}


def test_correcting_a_typo_and_changing_an_attribute_changes_the_job() -> None:
    w = world("a\n[vram=2G] b\n")
    w.save("a\n[vram=4H] b\n", wait=60)
    w.save("a\n[vram=4G] b\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued"}
    assert w.jobs[2].spec.vram == 4096


def test_a_job_that_ends_while_its_line_is_malformed_does_not_run_again() -> None:
    w = world("a\nb\nc\n")
    w.start(1)
    w.end(2)
    w.save("[x] a\n[x] b\nc\n", wait=60)
    assert w.waiting_for_lines == {1, 2}, "a retry may queue them"
    w.end(1, Outcome.FAILED)
    w.save("a\nb\nc\n", wait=60)
    assert w.states() == {1: "failed", 2: "completed", 3: "queued"}


def test_a_csv_job_with_a_second_valid_line_does_not_wait_for_a_malformed_line() -> None:
    w = world("0,a.py\n5,a.py\n")
    w.save("[x] 0,a.py\n5,a.py\n", wait=60)
    assert (w.waiting_for_lines, w.states()) == (set(), {1: "queued"})


def test_each_job_that_waits_for_its_line_shows_a_reason() -> None:
    w = world("a\nb\nc\nd\n")
    w.save("[hold] a\n[x] b\n\nd\n")
    assert w.waits == {
        1: WaitReason(WaitKind.LINE_CHANGED, line_number=1, due_at=w.now + 2),
        2: WaitReason(WaitKind.LINE_MALFORMED, line_number=2),
        3: WaitReason(WaitKind.LINE_REMOVED, due_at=w.now + 10),
    }
    w.open_for_writing = True
    w.wait(11)
    assert w.waits == {
        2: WaitReason(WaitKind.LINE_MALFORMED, line_number=2),
        3: WaitReason(WaitKind.LINE_REMOVED),
    }


def test_matching_a_file_of_malformed_lines_takes_linear_time() -> None:
    """This happens if a file of 4,000 lines is saved in UTF-16 by mistake."""
    count = 4000
    w = world("".join(f"echo {n}\n" for n in range(count)))
    begun = time.process_time()
    w.save("".join(f"soon,{n},x\n" for n in range(count)))
    assert len(w.waiting_for_lines) == count
    assert [w.waits[job].line_number for job in sorted(w.waiting_for_lines)] == list(range(1, count + 1))
    assert time.process_time() - begun < 5


def test_correcting_a_malformed_line_keeps_its_job() -> None:
    w = world("a\n0,b.py,e\nc\n")
    w.save("a\n0;b.py;e\nc\n", wait=60)
    w.save("a\n0,b.py,e\nc\n", wait=60)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert not any(line.malformed for line in w.reading)


def test_an_old_malformed_line_does_not_prevent_the_removal_of_other_lines() -> None:
    w = world("a\nbad,b.py,x\nc\n")
    w.save("bad,b.py,x\nc\n", wait=11)
    assert w.states() == {1: "cancelled", 2: "queued"}


def test_accepts_new_lines_while_other_lines_are_missing() -> None:
    w = world("a\nb\n")
    w.save("a\nbad,b.py,x\n", wait=5)
    w.append("c\n", wait=2)
    w.append("d\n", wait=2)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued", 4: "queued"}
    assert w.waiting_for_lines == {2}


def test_a_malformed_line_at_the_end_is_reported_at_once() -> None:
    w = world("a\n")
    w.append("bad,b.py,x\nc\n")
    assert [line.number for line in w.reading if line.malformed] == [2]
    assert w.states() == {1: "queued", 2: "queued"}


def test_a_truncated_line_never_starts_a_job() -> None:
    text = "".join(f"python train.py --seed {i}00\n" for i in range(20))
    w = world(text)
    before = w.states()
    for cut in range(0, len(text), 7):
        w.save(text[:cut])
        assert w.states() == before
        w.now += 0.05
    w.save(text, wait=30)
    assert w.states() == before
    assert w.waiting_for_lines == set()


def test_a_restart_while_lines_are_missing_restarts_the_removal_delay() -> None:
    w = world("a\nb\n")
    w.save("a\n", wait=9)
    w.unchanged_since = w.now
    w.check()
    w.wait(9)
    assert w.states() == {1: "queued", 2: "queued"}
    w.wait(1.1)
    assert w.states() == {1: "queued", 2: "cancelled"}


def test_a_finished_job_does_not_wait_for_its_missing_line() -> None:
    w = world("a\nb\n")
    w.end(1)
    w.start(2)
    w.save("")
    assert w.waiting_for_lines == set()


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
def test_a_partly_written_line_at_the_end_of_the_file_is_malformed(first: str, second: str) -> None:
    w = world(first)
    w.wait(6)
    assert w.states() == {1: "queued"}
    w.append(f"{second}\nlast\n", wait=60)
    assert [line.problem for line in w.reading if line.malformed] == [REASON]
    assert w.states() == {1: "queued", 2: "queued"}
    assert w.waiting_for_lines == {1}
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
def test_an_edited_last_line_does_not_count_as_partly_written(before: str, after: str) -> None:
    w = world(before)
    w.wait(6)
    w.save(after + "\n", wait=30)
    assert not any(line.malformed for line in w.reading)
    assert w.states() == {1: "cancelled", 2: "queued"}


def test_recognizes_text_that_is_the_beginning_of_a_known_line() -> None:
    assert starts_a_line("tool x", {"tool"})
    assert not starts_a_line("tool x", set())
    assert not starts_a_line(" python b.py", {"python"})
    assert not starts_a_line("", {"python"})
    assert not starts_a_line("[12] x", set())


def test_a_partly_written_line_is_malformed_even_if_its_job_has_finished() -> None:
    w = world("python a.py")
    w.wait(6)
    w.end(1, Outcome.COMPLETED)
    w.append("python b.py\n", wait=30)
    assert [line.problem for line in w.reading if line.malformed] == [REASON]
    w.save("python a.py\npython b.py\n", wait=30)
    assert w.states() == {1: "completed", 2: "queued"}


PIECES = st.lists(
    st.sampled_from(["0,s.py,,1\n", "0,s.py,,2\n", "true 1\n", "[gpus=x] 0,s.py,,2\n"]),
    min_size=1,
    max_size=4,
).map("".join)


@given(st.lists(PIECES, min_size=2, max_size=4))
@example(
    [
        "0,s.py,,1\ntrue 1\n0,s.py,,2\n0,s.py,,1\n",
        "[gpus=x] 0,s.py,,2\n[gpus=x] 0,s.py,,2\n0,s.py,,1\n",
    ]
)
def test_an_accepted_file_is_not_accepted_again(texts: list[str]) -> None:
    """The watcher reads the file until nothing is accepted, so it would otherwise never stop."""
    w = JobsFileWorld()
    for text in texts:
        w.save(text, wait=20)
        for _ in range(3):
            w.check()
        assert not w.accepted
