"""The text that `preempt` prints about the newest checkpoint of a job."""

from __future__ import annotations

import pytest

from gpu_scheduler.control.preempt import PreemptEnd, PreemptReport, preempt_text
from gpu_scheduler.core.model.job import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.states import Outcome
from tests.records import job_record

END = 10_000.0
SPEC = JobSpec("command", "train", "/w", command="train")


@pytest.mark.parametrize(
    ("step", "before_s", "lost_steps", "text"),
    [
        (150.0, 1.0, None, "(step 150, saved at its end)"),
        (150.0, 2.0, None, "(step 150, saved 2.0 s before its end; what came after is lost)"),
        # If the steps are known, they decide: the job may take long to end after it has saved its work.
        (150.0, 90.0, 0.0, "(step 150, saved at its end)"),
        (150.0, 0.5, 4.0, "(step 150, saved 0.5 s before its end; 4 steps after it are lost)"),
        (150.0, 90.0, 1.0, "(step 150, saved 1 min 30 s before its end; 1 step after it is lost)"),
        (150.0, None, None, "(step 150)"),
        (None, None, None, ""),
    ],
)
def test_says_what_came_after_the_newest_checkpoint(
    step: float | None, before_s: float | None, lost_steps: float | None, text: str
) -> None:
    saved_at = None if before_s is None else END - before_s
    report = PreemptReport(
        3, PreemptEnd.ENDED, job_record(state="held", spec_json=SPEC.to_json()), outcome=Outcome.PREEMPTED,
        checkpoint=Checkpoint("/w/out/checkpoint-150", step, saved_at), lost_steps=lost_steps, ended_at=END,
    )  # fmt: skip
    _, shown, *_ = preempt_text(report).splitlines()
    assert shown == f"  latest checkpoint: out/checkpoint-150 {text}".rstrip()
