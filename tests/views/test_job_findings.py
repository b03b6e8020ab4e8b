"""Findings about a job that are derived from its values alone, without the store."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model.checkpoint import Checkpoint
from gpu_scheduler.views import job_findings
from tests.records import job_record

SAVED = Checkpoint("/w/out/checkpoint-150", 150.0)


@pytest.mark.parametrize(
    ("by", "checkpoint", "remedy"),
    [
        ("user", None, "`release 7` queues it"),
        ("user", SAVED, "`release 7` queues it"),
        ("line", None, "`release 7` queues it"),
        ("interrupted", None, "`retry 7` queues it"),
        ("preempted", None, "`retry 7` queues it"),
        ("interrupted", SAVED, "`resume --job 7` queues it"),
        ("preempted", SAVED, "`resume --job 7` queues it"),
    ],
)
def test_the_finding_about_a_held_job_names_the_command_that_queues_it(
    by: str, checkpoint: Checkpoint | None, remedy: str
) -> None:
    finding = job_findings.held(job_record(id=7, held_by=by, checkpoint=checkpoint), None)
    assert (finding.grade, finding.remedy) == ("bad", remedy)
