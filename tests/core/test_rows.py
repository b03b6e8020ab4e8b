"""The changes of the rows of jobs and attempts: exactly these columns change, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from gpu_scheduler.core.model.job import (
    AdoptedProcess,
    AttemptResult,
    Checkpoint,
    FailureContext,
    Job,
    StopRequest,
)
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.core.model.reasons import ReasonKind, StateReason
from gpu_scheduler.core.model.states import AttemptState, JobState, Outcome
from gpu_scheduler.core.model.values import Now
from gpu_scheduler.core.scheduling.attempt_end import GpuInventory, end_with_result
from gpu_scheduler.core.scheduling.settings import Settings
from tests.attempts import make_attempt, replace

NOW = Now(2000.0, 50.0, "boot")
REASON = StateReason(ReasonKind.HELD_BY_USER)
OLD, SAVED = Checkpoint("/old"), Checkpoint("/saved")
#: A job whose columns all have values that a change may have to reset.
JOB = Job(
    7, source="file:jobs.txt", spec_json=JobSpec("command", "a", "/w", command="a").to_json(), text="a",
    exit_code=3, signal=9, held_by="failed", reason=REASON, stop=StopRequest("cancelled", 5.0),
    launch_failures=2, not_before_boot=60.0, boot_id="boot", min_vram_mib=900, oom_retries_used=1,
    fail_retries_used=2, recoveries=1, cleared_at=1500.0, checkpoint=SAVED, resume_from=OLD,
    adopted=AdoptedProcess(5, 6, "boot", 1.0), queued_at=1000.0, submitted_at=1000.0, created_at=1000.0,
    finished_at=1400.0, has_attempt=True,
)  # fmt: skip
HELD = replace(JOB, state=JobState.HELD)
DONE = replace(JOB, state=JobState.FINISHED, outcome=Outcome.FAILED)
#: The columns that every job has once it is queued again, as far as they differ from JOB.
QUEUED: dict[str, Any] = {
    "state": JobState.QUEUED, "exit_code": None, "signal": None, "held_by": None, "reason": None,
    "stop": None, "launch_failures": 0, "not_before_boot": None, "cleared_at": None, "adopted": None,
    "queued_at": NOW.wall, "finished_at": None,
}  # fmt: skip
RETRIES = {"oom_retries_used": 0, "fail_retries_used": 0}


def changed(old: Struct, new: Struct) -> dict[str, Any]:
    """Returns the fields in which two rows differ, with the new values."""
    assert type(old) is type(new)
    names = old.__struct_fields__
    return {name: getattr(new, name) for name in names if getattr(new, name) != getattr(old, name)}


@pytest.mark.parametrize(
    ("job", "values", "expected"),
    [
        (HELD, {}, {**QUEUED, **RETRIES, "recoveries": 0, "resume_from": None}),
        (HELD, {"checkpoint": SAVED}, {**QUEUED, **RETRIES, "recoveries": 0, "resume_from": SAVED}),
        (HELD, {"recoveries": 2}, {**QUEUED, "recoveries": 2, "resume_from": None}),
        (replace(HELD, held_by="user"), {"keeps": True}, {**QUEUED, "recoveries": 0}),
        (replace(HELD, held_by="line"), {"keeps": True}, {**QUEUED, "recoveries": 0}),
        (
            DONE,
            {},
            {
                **QUEUED, **RETRIES, "outcome": None, "recoveries": 0, "resume_from": None,
                "submitted_at": NOW.wall,
            },
        ),
        (
            replace(DONE, outcome=Outcome.SKIPPED),
            {"keeps": True},
            {**QUEUED, "outcome": None, "recoveries": 0},
        ),
    ],
    ids=["held", "resumed", "recovered", "released", "released by its line", "retried", "not skipped"],
)  # fmt: skip
def test_a_job_that_is_queued_again(job: Job, values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changed(job, job.queued_again(NOW, **values)) == expected


def test_a_job_that_is_held_or_finishes_without_an_attempt() -> None:
    queued = replace(JOB, state=JobState.QUEUED, reason=None, held_by=None, finished_at=None)
    no_process = {"stop": None, "adopted": None}
    assert changed(queued, queued.held("user", REASON)) == {
        "state": JobState.HELD, "held_by": "user", "reason": REASON, **no_process,
    }  # fmt: skip
    assert changed(queued, queued.finished(Outcome.CANCELLED, REASON, NOW)) == {
        "state": JobState.FINISHED, "outcome": Outcome.CANCELLED, "reason": REASON, "finished_at": NOW.wall,
        **no_process,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("priority", 5, {"priority": 5}),
        ("name", "x", {"name": "x"}),
        ("vram", 800, {"min_vram_mib": None}),
        ("command", "b", {"text": "b"}),
    ],
)
def test_a_changed_attribute(name: str, value: Any, expected: dict[str, Any]) -> None:
    job = JOB.with_attribute("priority", 0)
    found = changed(job, job.with_attribute(name, value))
    assert JobSpec.from_json(found.pop("spec_json")).attributes.get(name, value) == value
    assert ("identity" in found) is (name == "command")
    found.pop("identity", None)
    assert found == expected


ATTEMPT = make_attempt(
    1, 7, "t", "boot", AttemptState.STARTING, started_at=None, stopping_boot=40.0, runner_died_boot=None
)


def test_the_states_of_an_attempt_and_its_job() -> None:
    first = replace(ATTEMPT, job=replace(ATTEMPT.job, reason=REASON))
    running = first.running(NOW)
    assert changed(first, running) == {
        "state": AttemptState.RUNNING, "stopping_boot": None, "started_at": NOW.wall, "job": running.job,
    }  # fmt: skip
    assert changed(first.job, running.job) == {"state": JobState.RUNNING, "reason": None}
    later = Now(3000.0, 1050.0, "boot")
    stopping = running.stopping(later)
    assert changed(running, stopping) == {
        "state": AttemptState.STOPPING, "stopping_boot": later.boot, "job": stopping.job,
    }  # fmt: skip
    assert changed(running.job, stopping.job) == {"state": JobState.STOPPING}
    again = stopping.running(later)
    assert changed(running, again) == {}  # it started only once
    orphaned = stopping.orphaned(later)
    assert changed(stopping, orphaned) == {"state": AttemptState.ORPHANED, "runner_died_boot": later.boot}
    released = orphaned.released(later)
    assert changed(orphaned, released) == {"state": AttemptState.RELEASED, "released_boot": later.boot}
    assert changed(released, released.closed()) == {"state": AttemptState.CLOSED}


@pytest.mark.parametrize(
    ("result", "stop", "since"),
    [
        (
            AttemptResult(None, 1, None, False, None, (), None, 2.0),
            None,
            900.0,
        ),  # it has waited all the while
        (AttemptResult(None, 1, None, True, None, (), 1.0, 2.0), None, NOW.wall),
        (
            AttemptResult("preempted", 0, None, True, None, (), 1.0, 2.0),
            StopRequest("preempted", 5.0, next_state=JobState.QUEUED, preemptor=9),
            NOW.wall,
        ),
    ],
    ids=["not started", "failed", "preempted"],
)
def test_since_when_a_job_waits_that_is_queued_again(
    result: AttemptResult, stop: StopRequest | None, since: float
) -> None:
    job = replace(ATTEMPT.job, state=JobState.RUNNING, queued_at=900.0, stop=stop, cleared_at=None)
    context = FailureContext(fail_retries=1)
    running = replace(ATTEMPT, state=AttemptState.RUNNING, job=job, failure_context=context)
    end = end_with_result(running, result, NOW, Settings(fail_retries=1), GpuInventory())
    assert (end.job.state, end.job.queued_at, end.job.finished_at) == (JobState.QUEUED, since, None)
    assert (end.state, end.ended_at, end.job.stop, end.job.held_by) == (AttemptState.ENDED, 2.0, None, None)
