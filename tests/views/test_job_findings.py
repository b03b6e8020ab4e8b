"""Findings about a job that are derived from its values alone, without the store."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.job import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.show.job_findings import queueing_command
from tests.records import job_record

SAVED = Checkpoint("/w/out/checkpoint-150", 150.0)


@pytest.mark.parametrize(
    ("by", "checkpoint", "command", "program"),
    [
        ("user", None, "release 7", "python t.py"),
        ("user", SAVED, "release 7", "python t.py"),
        ("line", None, "release 7", "python t.py"),
        ("interrupted", None, "retry 7", "python t.py"),
        ("preempted", None, "retry 7", "python t.py"),
        ("interrupted", SAVED, "resume --job 7", "python t.py"),
        ("preempted", SAVED, "resume --job 7", "python t.py"),
        ("preempted", SAVED, "retry 7", "./train"),
        ("preempted", SAVED, "retry 7 --set command='…'", None),
    ],
)
def test_the_command_that_queues_a_held_job_continues_from_its_checkpoint_if_it_can(
    by: str, checkpoint: Checkpoint | None, command: str, program: str | None
) -> None:
    spec = JobSpec("command", "text", "/w", command=program).to_json()
    assert queueing_command(job_record(id=7, held_by=by, checkpoint=checkpoint, spec_json=spec)) == command
