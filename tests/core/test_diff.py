"""Differences between two readings of an in-memory jobs file, case by case."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.jobsfile.diff import (
    AttributeChanged,
    CancelRunning,
    LineRemoved,
    redistribute_positions,
)
from gpu_scheduler.core.jobsfile.reading import attributes_from_json, attributes_to_json
from gpu_scheduler.core.model.states import JobState, Outcome
from tests.core.jobs_file_world import JobsFileWorld


def world(text: str) -> JobsFileWorld:
    made = JobsFileWorld()
    made.save(text)
    return made


def test_restart_reports_no_changes_if_the_file_is_unchanged() -> None:
    w = world("a\n0,a.py\nbad,a.py,x\n")
    w.actions.clear()
    w.reading = tuple(w.reading)
    w.check()
    w.wait(100)
    assert w.actions == []
    assert [line.job_id for line in w.reading] == [1, 2, None]


def test_repeated_commands_are_separate_jobs_but_repeated_csv_lines_are_one_job() -> None:
    w = world("a\na\n0,a.py\n0,a.py\n")
    assert w.states() == {1: "queued", 2: "queued", 3: "queued"}
    assert [line.job_id for line in w.reading] == [1, 2, 3, None]
    assert "line 4: duplicate of line 3; both lines belong to one job" in w.messages


def test_repeating_a_command_creates_and_reports_a_new_job() -> None:
    w = world("a\n")
    w.start(1)
    w.append("a\n")
    assert w.states() == {1: "running", 2: "queued"}
    assert "line 2: job 2, with the same text as job 1 (running)" in w.messages


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.SKIPPED}))  # a skipped job needs its line
@pytest.mark.parametrize("block", ["", "[cancel] "])
def test_adding_a_csv_line_again_reruns_its_job_unless_it_completed_or_is_cancelled(
    block: str, outcome: Outcome
) -> None:
    w = world("0,a.py\n")
    w.end(1, outcome)
    w.save("", wait=11)
    assert w.states() == {1: str(outcome)}
    w.save(f"{block}0,a.py\n")
    reruns = outcome is not Outcome.COMPLETED and not block
    assert w.states() == {1: "queued" if reruns else str(outcome)}
    assert w.reading[0].job_id == 1
    shown = outcome.replace("_", " ")
    message = f"job 1 ({shown}) is queued again" if reruns else f"{shown} as job 1; `retry 1` runs it again"
    assert f"line 1: {message}" in w.messages


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SKIPPED])
def test_repeating_the_csv_line_of_a_job_without_success_queues_it_again(outcome: Outcome) -> None:
    w = world("0,a.py\n")
    w.end(1, outcome)
    w.append("0,a.py\n")
    assert w.states() == {1: "queued"}
    assert [line.job_id for line in w.reading] == [1, None]


def test_a_csv_line_adopts_an_unfinished_job_created_by_another_front_end() -> None:
    w = JobsFileWorld()
    w.save("0,a.py\n")
    spec = w.jobs[1].spec
    other = JobsFileWorld()
    other.insert(spec)
    other.start(1)
    other.save("[name=x] 3,a.py\n")
    assert other.states() == {1: "running"}
    assert other.reading[0].job_id == 1
    assert "line 1: already submitted as job 1 (running)" in other.messages


def test_the_line_of_a_failed_job_does_not_run_again_if_it_stays_in_the_file() -> None:
    w = world("0,a.py\nb\n")
    w.end(1, Outcome.FAILED)
    w.save("0,a.py # see log\n\n# note\nb\n", wait=20)
    assert w.states() == {1: "failed", 2: "queued"}


def test_changes_to_comments_blank_lines_and_line_endings_do_not_affect_jobs() -> None:
    w = world("a\nb\n0,a.py\n")
    w.actions.clear()
    w.save("\ufeffpriority,script_path\r\n\r\na # x\r\n\ufeffb\r\n# c\r\n0,a.py # d\r\n", wait=20)
    assert w.actions == []
    assert [line.number for line in w.reading] == [3, 4, 6]


def test_changing_the_text_of_a_line_cancels_its_queued_job_and_creates_a_new_one() -> None:
    w = world("a\nb\nc\n")
    w.save("a\nB\nc\n", wait=2)
    assert w.states() == {1: "queued", 2: "queued", 3: "queued", 4: "queued"}
    assert w.waiting_for_lines == {2}
    assert w.queue() != []
    w.wait(8)
    assert w.states() == {1: "queued", 2: "cancelled", 3: "queued", 4: "queued"}
    assert w.queue() == ["a", "B", "c"]


def test_changing_the_text_of_a_line_does_not_stop_its_running_job() -> None:
    w = world("a\n")
    w.start(1)
    w.save("b\n", wait=11)
    assert w.states() == {1: "running", 2: "queued"}
    assert "the line of job 1 was removed; the job is running and continues" in w.messages


def test_removing_equal_lines_detaches_finished_before_running_before_held_before_newest_queued_jobs() -> (
    None
):
    w = world("a\n[hold] a\na\na\na\n")
    w.end(1)
    w.start(4)
    left = []
    for count in (4, 3, 2, 1):
        kept = ["[hold] a\n"] * (count >= 3) + ["a\n"] * (count - (count >= 3))
        w.save("".join(kept), wait=11)
        left.append([line.job_id for line in w.reading])
    assert left == [[2, 3, 4, 5], [2, 3, 5], [3, 5], [3]]
    assert w.states() == {1: "completed", 2: "cancelled", 3: "queued", 4: "running", 5: "cancelled"}


def test_deleting_one_of_two_equal_lines_detaches_the_finished_job_and_not_the_queued_job() -> None:
    w = world("a\na\nb\n")
    w.end(1)
    w.save("a\nb\n", wait=11)
    assert w.states() == {1: "completed", 2: "queued", 3: "queued"}
    assert [line.job_id for line in w.reading] == [2, 3]


def test_equal_lines_are_matched_to_jobs_by_attributes_first() -> None:
    w = world("[priority=1] a\n[priority=2] a\nb\n")
    w.save("[priority=2] a\nb\n", wait=11)
    assert w.states() == {1: "cancelled", 2: "queued", 3: "queued"}
    assert w.jobs[2].spec.priority == 2


def test_removing_an_equal_line_cancels_a_held_job_before_a_queued_one() -> None:
    w = world("a\na\n")
    w.jobs[1].state, w.jobs[1].held_by = JobState.HELD, "user"
    w.save("a\n", wait=11)
    assert w.states() == {1: "cancelled", 2: "queued"}


def test_the_position_in_the_file_decides_which_of_two_distant_equal_lines_was_removed() -> None:
    w = world("a\nb\nc\na\n")
    w.end(1)
    w.save("a\nb\nc\n", wait=11)
    assert w.states() == {1: "completed", 2: "queued", 3: "queued", 4: "cancelled"}


def test_removing_one_of_two_equal_csv_lines_cancels_nothing() -> None:
    w = world("0,a.py\nb\n0,a.py\n")
    w.save("b\n0,a.py\n")
    assert w.waiting_for_lines == set()
    w.wait(11)
    assert w.states() == {1: "queued", 2: "queued"}
    assert [line.job_id for line in w.reading] == [2, 1]


def test_the_first_of_equal_csv_lines_sets_the_attributes() -> None:
    w = world("0,a.py\n5,a.py\n")
    assert w.jobs[1].spec.priority == 0
    w.save("0,a.py\n6,a.py\n", wait=3)
    assert w.jobs[1].spec.priority == 0
    w.save("7,a.py\n6,a.py\n", wait=3)
    assert w.jobs[1].spec.priority == 7


def test_each_changed_attribute_is_applied_separately() -> None:
    w = world("[priority=1 name=x] a\n")
    w.actions.clear()
    w.save("[priority=2 gpus=1] a\n", wait=2)
    assert w.actions == [
        AttributeChanged(1, "gpus", 1),
        AttributeChanged(1, "name", None),
        AttributeChanged(1, "priority", 2),
    ]


def test_saving_the_file_does_not_undo_holds_and_cancels_requested_on_the_command_line() -> None:
    w = world("[priority=1] a\n[priority=1] b\n")
    w.jobs[1].state, w.jobs[1].held_by = JobState.HELD, "user"
    w.end(2, Outcome.CANCELLED)
    w.actions.clear()
    w.save("[priority=1] a\n[priority=1] b\nc\n", wait=11)
    assert w.states() == {1: "held", 2: "cancelled", 3: "queued"}


def test_each_of_several_equal_commands_keeps_the_attributes_of_its_line() -> None:
    w = world("[priority=1] a\n[priority=2] a\n")
    w.save("[priority=2] a\n[priority=3] a\n", wait=2)
    assert {i: job.spec.priority for i, job in w.jobs.items()} == {1: 2, 2: 3}


def test_removing_the_hold_attribute_releases_the_job() -> None:
    w = world("[hold] a\n")
    assert w.states() == {1: "held"}
    w.save("a\n", wait=2)
    assert w.states() == {1: "queued"}


def test_adding_the_cancel_attribute_cancels_the_job() -> None:
    w = world("a\nb\nc\n0,d.py\n")
    w.start(2)
    w.end(3)
    w.actions.clear()
    w.save("[cancel] a\n[cancel] b\n[cancel] c\n0,d.py\n", wait=2)
    assert w.actions == [AttributeChanged(1, "cancel", True), CancelRunning(2)]
    assert w.states() == {1: "cancelled", 2: "running", 3: "completed", 4: "queued"}
    w.actions.clear()
    w.save("a\nb\nc\n0,d.py\n", wait=20)
    assert w.actions == []


def test_a_new_line_with_the_cancel_attribute_creates_a_job_that_is_cancelled_at_once() -> None:
    w = world("[cancel] a\n[cancel] 0,a.py\n")
    assert w.states() == {1: "cancelled", 2: "cancelled"}
    w.save("[cancel] a\n[cancel] 0,a.py\n# x\n", wait=20)
    assert w.states() == {1: "cancelled", 2: "cancelled"}


def test_running_jobs_ignore_all_attribute_changes_except_cancel() -> None:
    w = world("[priority=1] a\n")
    w.start(1)
    w.actions.clear()
    w.save("[priority=2 hold] a\n", wait=11)
    assert w.actions == []


def test_attribute_changes_to_a_finished_jobs_line_apply_to_its_next_run() -> None:
    w = world("[share=0.2] a\n0,b.py,,,\nc\n")
    w.end(1, Outcome.FAILED)
    w.end(2, Outcome.FAILED)
    w.end(3)
    w.actions.clear()
    w.messages.clear()
    w.save("[hold cuda-ids=visible share=1] a\n[cancel] 5,b.py,,,0-3\n[allowed=0,2] c\n", wait=2)
    assert w.actions == [
        AttributeChanged(1, "cuda_ids", "visible"),
        AttributeChanged(1, "share", 1000),
        AttributeChanged(2, "allowed", (0, 1, 2, 3)),
        AttributeChanged(2, "priority", 5),
        AttributeChanged(3, "allowed", (0, 2)),
    ]
    assert w.messages == [
        "line 1: cuda-ids=visible, share=1 for job 1, which is finished;"
        " `retry 1` runs it with these changes",
        "line 2: allowed=0-3, priority=5 for job 2, which is finished; `retry 2` runs it with these changes",
        "line 3: allowed=0,2 for job 3, which is finished; `retry 3` runs it with this change",
    ]
    assert w.states() == {1: "failed", 2: "failed", 3: "completed"}
    w.messages.clear()
    w.save("[hold] a\n5,b.py\nc\n", wait=2)
    assert w.messages[0].startswith("line 1: no cuda-ids, no share for job 1, which is finished; ")
    assert (w.jobs[1].spec.share, w.jobs[1].spec.hold, w.jobs[2].spec.cancel) == (None, False, False)
    w.actions.clear()
    w.save("a\n5,b.py\n[cancel] c\n", wait=11)
    assert w.actions == []


def test_a_requeued_csv_job_uses_the_attributes_of_its_line() -> None:
    w = world("0,a.py\n")
    w.end(1, Outcome.FAILED)
    w.append("[share=0.5] 0,a.py\n")
    assert w.states() == {1: "queued"}
    assert w.jobs[1].spec.share is None
    assert "line 2: job 1 (failed) is queued again, with the attributes of line 1" in w.messages
    w.end(1, Outcome.FAILED)
    w.save("", wait=11)
    w.save("[share=0.5] 0,a.py\n", wait=11)
    assert w.states() == {1: "queued"}
    assert w.jobs[1].spec.share == 500
    assert w.messages[-1] == "line 1: job 1 (failed) is queued again"


def test_reordering_lines_redistributes_only_the_queue_positions_of_this_file() -> None:
    w = world("a\nb\n")
    assert w.insert(w.jobs[1].spec) == 3
    w.append("c\n")
    assert [w.jobs[i].position for i in (1, 2, 3, 4)] == [1, 2, 3, 4]
    w.save("c\nb\na\n", wait=9.9)
    assert [w.jobs[i].position for i in (1, 2, 3, 4)] == [1, 2, 3, 4]
    w.wait(0.2)
    assert [w.jobs[i].position for i in (1, 2, 3, 4)] == [4, 2, 3, 1]


def test_a_line_inserted_at_the_top_is_first_in_the_queue() -> None:
    w = world("a\nb\n")
    w.save("n\na\nb\n", wait=2)
    assert w.queue() == ["n", "a", "b"]


def test_queue_positions_are_redistributed_only_among_queued_jobs() -> None:
    assert redistribute_positions([3, 1, 2], {1: 10, 2: 20, 3: 30}) == ((3, 10), (1, 20), (2, 30))
    assert redistribute_positions([3, 9, 2], {2: 7, 3: 4}) == ()


def test_removing_the_line_of_a_held_job_cancels_it() -> None:
    w = world("[hold] a\nb\n")
    w.actions.clear()
    w.save("b\n", wait=11)
    assert w.actions == [LineRemoved(1)]


def test_attributes_survive_being_stored() -> None:
    attributes = {"allowed": (0, 1), "hold": True, "priority": 0, "name": None, "cancel": False}
    assert attributes_from_json(attributes_to_json(attributes)) == {
        "allowed": (0, 1), "hold": True, "priority": 0,
    }  # fmt: skip
