"""The summary of work that a draining scheduler leaves unfinished."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.core.model.job_spec import DependencyKind, Parent
from gpu_scheduler.core.model.reasons import StateReason, WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState
from gpu_scheduler.show.job_findings import MAX_ITEMS, unfinished_text
from gpu_scheduler.show.job_views import JobView
from gpu_scheduler.store.jobs_files import MalformedLineRecord
from tests.reasons import worded
from tests.records import job_view


def job(number: int, state: str = "queued", reason: StateReason | None = None, **values: Any) -> JobView:
    return job_view(number, state, reason=reason, **values)


def test_the_summary_is_empty_if_no_work_is_unfinished() -> None:
    assert unfinished_text([], []) == ""


def test_the_summary_names_each_unfinished_line_and_job_with_its_reason() -> None:
    line = MalformedLineRecord("/home/me/jobs.txt", 2, "[vram=20H] b", "memory '20H'\x1b is not MiB", None)
    jobs = [
        job(2, wait=WaitReason(WaitKind.LINE_MALFORMED, line_number=2)),
        job(3, "held"),
        job(4, "held", worded("held by its line"), wait=WaitReason(WaitKind.HELD, "line")),
        job(5, "held", worded("the machine was switched off")),
        job(6, reason=worded("infeasible: needs 9 GPUs, but only 4 are managed")),
        job(7, reason=worded("GPU 0 paused")),
    ]
    assert unfinished_text([line], jobs) == (
        "line 2 of jobs.txt is malformed: memory '20H'\\x1b is not MiB; job 2 waits until line 2 is"
        " corrected; job 3 is held; job 4 is held by its line; job 5 is held: the machine was switched off;"
        " job 6 waits: infeasible: needs 9 GPUs, but only 4 are managed; job 7 waits: GPU 0 paused"
    )


def test_a_job_that_waits_for_other_jobs_comes_after_those_jobs() -> None:
    held = Parent(5, None, JobState.HELD, None, DependencyKind.COMPLETED, "5")
    waiting = job(3, unmet_parents=1, wait=WaitReason(WaitKind.PARENTS), parents=(held,))
    assert unfinished_text([], [waiting, job(5, "held")]) == "job 5 is held; job 3 waits for job 5 (held)"


def test_the_summary_truncates_a_long_list_of_unfinished_work() -> None:
    text = unfinished_text([], [job(n, "held") for n in range(1, 3 * MAX_ITEMS)])
    assert text.endswith(f"job {MAX_ITEMS} is held; and {2 * MAX_ITEMS - 1} more (see `status --all`)")
