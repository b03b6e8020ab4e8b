"""Tests the exit code of a draining scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.app.status_report import JobView
from gpu_scheduler.core.model.wait_reason import WaitKind, WaitReason
from gpu_scheduler.reporting.drain_report import exit_code
from tests.records import job_record


def job(wait: WaitKind | None = None, **values: Any) -> JobView:
    return JobView(job_record(**values), wait=None if wait is None else WaitReason(wait))


def finished(outcome: str, **values: Any) -> JobView:
    return job(state="finished", outcome=outcome, **values)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (finished("completed", exit_code=0), 0),
        (finished("failed", exit_code=7), 7),
        (finished("failed", signal=9), 137),
        (finished("timed_out", signal=15), 124),
        (finished("cancelled"), 1),
        (finished("failed"), 1),
        (job(state="held"), 3),
        (job(state="queued"), 3),
        (job(WaitKind.LINE_MALFORMED, state="queued"), 1),
        (job(WaitKind.LINE_MALFORMED, state="held"), 3),
    ],
)
def test_the_exit_code_reflects_job_ends_and_malformed_lines(ended: JobView, code: int) -> None:
    good = finished("completed", exit_code=0)
    assert exit_code([good, ended], has_malformed_line=False) == code
    assert exit_code([good, ended], has_malformed_line=True) == max(code, 1)
