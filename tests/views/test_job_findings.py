"""Findings about a job that are derived from its values alone, without the store."""

from __future__ import annotations

import pytest

from gpu_scheduler.views import job_findings


@pytest.mark.parametrize(
    ("by", "remedy"),
    [
        ("user", "`release 7` queues it"),
        ("line", "`release 7` queues it"),
        ("interrupted", "`retry 7` queues it"),
        ("preempted", "`retry 7` queues it"),
    ],
)
def test_the_finding_about_a_held_job_names_the_command_that_queues_it(by: str, remedy: str) -> None:
    assert (job_findings.held(7, by, None).grade, job_findings.held(7, by, None).remedy) == ("bad", remedy)
