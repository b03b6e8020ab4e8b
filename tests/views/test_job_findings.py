"""Findings about a job that are derived from its values alone, without the store."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.attempt_status import Checkpoint
from gpu_scheduler.core.model.job_spec import JobSpec
from gpu_scheduler.views import job_findings
from tests.records import job_record

SAVED = Checkpoint("/w/out/checkpoint-150", 150.0)


@pytest.mark.parametrize(
    ("by", "checkpoint", "remedy", "command"),
    [
        ("user", None, "`release 7` queues it", "python t.py"),
        ("user", SAVED, "`release 7` queues it", "python t.py"),
        ("line", None, "`release 7` queues it", "python t.py"),
        ("interrupted", None, "`retry 7` queues it", "python t.py"),
        ("preempted", None, "`retry 7` queues it", "python t.py"),
        ("interrupted", SAVED, "`resume --job 7` queues it", "python t.py"),
        ("preempted", SAVED, "`resume --job 7` queues it", "python t.py"),
        ("preempted", SAVED, "`retry 7` queues it", "./train"),
        ("preempted", SAVED, "`retry 7 --set command='…'` queues it", None),
    ],
)
def test_the_finding_about_a_held_job_names_the_command_that_queues_it(
    by: str, checkpoint: Checkpoint | None, remedy: str, command: str | None
) -> None:
    spec = JobSpec("command", "text", "/w", command=command).to_json()
    finding = job_findings.held(job_record(id=7, held_by=by, checkpoint=checkpoint, spec_json=spec), None)
    assert (finding.grade, finding.remedy) == ("bad", remedy)
