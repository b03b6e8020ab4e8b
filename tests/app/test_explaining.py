"""Use cases that return, as values, the details of a job and the facts that explain its state."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.model.event import EventKind
from gpu_scheduler.core.model.job_spec import Dependency, DependencyKind, JobSpec
from gpu_scheduler.core.model.states import Outcome
from gpu_scheduler.errors import SchedulerError
from gpu_scheduler.show.job_detail import job_detail
from gpu_scheduler.show.location import Location
from gpu_scheduler.show.round_facts import NeedSource
from gpu_scheduler.show.why import diagnose
from tests import changes
from tests.cli.desk import Desk


@pytest.mark.parametrize(
    ("values", "source"),
    [
        ({"share": 500}, NeedSource.ATTRIBUTES),
        ({"torchrun": 2}, NeedSource.TORCHRUN),
        ({"kind": "csv", "script": "/t.py", "arguments": ("--llm", "qwen")}, NeedSource.MODEL),
        ({}, NeedSource.COMMAND),
    ],
)
def test_the_details_of_a_job_name_the_source_of_its_need(
    desk: Desk, location: Location, values: dict[str, Any], source: NeedSource
) -> None:
    current = job_detail(location, desk.job(**values)).need
    assert current.source is source


def test_the_details_of_a_job_contain_its_attempts_and_history(desk: Desk, location: Location) -> None:
    job = desk.job("echo a b", name="one")
    attempt = desk.attempt(job)
    detail = job_detail(location, "one")
    record = detail.job.record
    assert (record.id, record.spec.kind, record.spec.cwd) == (job, "command", str(desk.path))
    [one] = detail.attempts
    assert (one.attempt.number, one.gpus, one.attempt.outcome) == (1, (0,), None)
    assert detail.attempts[0].folder == str(desk.folder(attempt))
    assert [event.kind for event in detail.history] == [EventKind.QUEUED, EventKind.STARTING]


def test_the_explanation_of_a_waiting_job_has_its_need_the_gpus_and_its_queue_position(
    desk: Desk, location: Location
) -> None:
    first, second = desk.job("echo a", share=500), desk.job("echo b", allowed=(1,))
    diagnosis = diagnose(location, second)
    assert diagnosis.scheduler_pid is None
    assert not diagnosis.has_failed
    waiting = diagnosis.waiting
    assert waiting is not None
    assert waiting.ahead == (1, [first])
    assert [gpu.index for gpu in waiting.placement.gpus] == [0, 1]
    assert (waiting.line.location, waiting.line.malformed) == (None, 0)


def test_the_explanation_of_a_failed_job_contains_the_end_of_its_log(desk: Desk, location: Location) -> None:
    job = desk.job()
    desk.record(changes.finish(job, Outcome.FAILED))
    diagnosis = diagnose(location, job)
    assert (diagnosis.has_failed, diagnosis.waiting, diagnosis.log_end) == (True, None, ())
    assert [event.kind for event in diagnosis.events] == [EventKind.QUEUED, EventKind.FINISHED]


def test_a_job_that_waits_for_another_job_is_not_ahead_in_the_queue(desk: Desk, location: Location) -> None:
    first = desk.job("echo a")
    parent = [Dependency(first, DependencyKind.COMPLETED, str(first))]
    desk.store.insert_job(JobSpec("command", "b", "/", command="b"), "test", dependencies=parent)
    last = desk.job("echo c")
    waiting = diagnose(location, last).waiting
    assert waiting is not None
    assert waiting.ahead == (1, [first])


def test_explaining_an_unknown_job_raises_an_error(desk: Desk, location: Location) -> None:
    for explain in (job_detail, diagnose):
        with pytest.raises(SchedulerError, match="there is no job 9"):
            explain(location, 9)
