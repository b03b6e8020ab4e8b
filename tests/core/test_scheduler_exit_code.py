"""Tests the exit code of `start`."""

from __future__ import annotations

import signal

import pytest

from gpu_scheduler.core.model.reasons import WaitKind, WaitReason
from gpu_scheduler.core.model.states import JobState, Outcome
from gpu_scheduler.core.scheduling.pending_queue import drained_exit_code, job_exit_code, stopped_exit_code


def unfinished(state: JobState, wait: WaitKind | None = None) -> int:
    return job_exit_code(state, None, None, None, None if wait is None else WaitReason(wait))


def finished(outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> int:
    return job_exit_code(JobState.FINISHED, outcome, exit_code, signal, None)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (finished(Outcome.COMPLETED, exit_code=0), 0),
        (finished(Outcome.FAILED, exit_code=7), 7),
        (finished(Outcome.FAILED, signal=9), 137),
        (finished(Outcome.TIMED_OUT, signal=15), 124),
        (finished(Outcome.CANCELLED), 1),
        (finished(Outcome.FAILED), 1),
        (finished(Outcome.SKIPPED), 1),
        (unfinished(JobState.QUEUED, WaitKind.PARENTS), 3),
        (unfinished(JobState.HELD), 3),
        (unfinished(JobState.QUEUED), 3),
        (unfinished(JobState.QUEUED, WaitKind.LINE_MALFORMED), 1),
        (unfinished(JobState.HELD, WaitKind.LINE_MALFORMED), 3),
    ],
)
def test_the_exit_code_of_a_drain_reflects_failed_jobs_and_malformed_lines(found: int, code: int) -> None:
    assert found == code
    assert drained_exit_code([0, found], has_malformed_line=False) == code
    assert drained_exit_code([0, found], has_malformed_line=True) == max(code, 1)


def test_a_drain_without_jobs_exits_with_code_0() -> None:
    assert drained_exit_code([], has_malformed_line=False) == 0


def test_a_stopped_drain_exits_with_the_code_of_the_signal_or_with_1() -> None:
    assert stopped_exit_code(drain=True, signal=signal.SIGTERM) == 143
    assert stopped_exit_code(drain=True, signal=None) == 1
    assert stopped_exit_code(drain=False, signal=signal.SIGTERM) == 0
