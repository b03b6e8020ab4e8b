"""The checks of one job that only values decide."""

from __future__ import annotations

import pytest

from gpu_scheduler.doctor import job


@pytest.mark.parametrize(
    ("by", "remedy"),
    [
        ("user", "`release 7` queues it"),
        ("line", "`release 7` queues it"),
        ("interrupted", "`retry 7` queues it"),
        ("preempted", "`retry 7` queues it"),
    ],
)
def test_the_way_out_of_being_held(by: str, remedy: str) -> None:
    assert (job.held(7, by, None).grade, job.held(7, by, None).remedy) == ("bad", remedy)
