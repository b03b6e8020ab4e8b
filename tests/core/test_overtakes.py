"""How often a waiting job has been overtaken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.scheduling.facts import QueuedJob
from gpu_scheduler.core.scheduling.history import LATE_S, REMEMBERED_STARTS, Overtakes, QueueStart

JOB = QueuedJob(7, 200, 50, submitted_at=10_000.0, waiting_since=10_000.0)
LATE = JOB.submitted_at + LATE_S


@pytest.mark.parametrize(
    ("start", "overtakes"),
    [
        (QueueStart(200, 51, LATE, 20_000.0), 1),
        (QueueStart(200, 51, LATE - 1.0, 20_000.0), 0),  # submitted 59 min 59 s after the job
        (QueueStart(200, 51, JOB.submitted_at, 20_000.0), 0),
        (QueueStart(200, 51, JOB.submitted_at - 5.0, 20_000.0), 0),
        (QueueStart(201, 1, LATE, 20_000.0), 1),  # a later priority, although an earlier position
        (QueueStart(199, 51, LATE, 20_000.0), 0),
        (QueueStart(200, 49, LATE, 20_000.0), 0),
        (QueueStart(200, 50, LATE, 20_000.0), 0),
    ],
)
def test_a_job_is_overtaken_by_one_that_sorts_after_it_and_came_an_hour_later(
    start: QueueStart, overtakes: int
) -> None:
    counted = Overtakes([start])
    assert counted.count(JOB.place, JOB.submitted_at, JOB.waiting_since) == overtakes
    assert counted.may_reach(JOB.place, JOB.submitted_at, 1) == bool(overtakes)


@pytest.mark.parametrize(("since", "overtakes"), [(19_999.0, 1), (20_000.0, 1), (20_000.5, 0)])
def test_only_starts_while_the_job_waits_for_gpus_count(since: float, overtakes: int) -> None:
    counted = Overtakes([QueueStart(200, 51, LATE, 20_000.0)])
    assert counted.count(JOB.place, JOB.submitted_at, since) == overtakes


def test_a_job_that_starts_twice_overtakes_twice() -> None:
    again = QueueStart(200, 51, LATE, 20_000.0), QueueStart(200, 51, LATE, 30_000.0)
    assert Overtakes(again).count(JOB.place, JOB.submitted_at, 0.0) == 2


def test_a_number_of_zero_overtakes_is_always_reached() -> None:
    assert Overtakes().may_reach(JOB.place, 0.0, 0)
    assert not Overtakes().may_reach(JOB.place, 0.0, 1)


def test_only_the_newest_starts_are_remembered() -> None:
    old = [QueueStart(200, 51, LATE, 20_000.0)] * 3
    new = [QueueStart(100, 1, LATE, 30_000.0 + n) for n in range(REMEMBERED_STARTS - 1)]
    assert Overtakes(old).with_starts(new).count(JOB.place, JOB.submitted_at, 0.0) == 1
    assert Overtakes([*old, *new]).starts == Overtakes(old).with_starts(new).starts


TIMES = st.integers(0, 12).map(lambda n: n * 1200.0)
STARTS = st.lists(st.builds(QueueStart, st.integers(0, 3), st.integers(0, 3), TIMES, TIMES), max_size=12)
JOBS = st.builds(QueuedJob, st.just(1), st.integers(0, 3), st.integers(0, 3), TIMES, TIMES)


@given(STARTS, JOBS, st.integers(0, 5))
def test_the_count_is_that_of_the_definition(starts: list[QueueStart], job: QueuedJob, number: int) -> None:
    expected = sum(
        (one.priority, one.position) > (job.priority, job.position)
        and one.submitted_at - job.submitted_at >= 3600
        and one.started_at >= job.waiting_since
        for one in starts
    )
    counted = Overtakes(starts)
    assert counted.count(job.place, job.submitted_at, job.waiting_since) == expected
    may_reach = counted.may_reach(job.place, job.submitted_at, number)
    assert may_reach or expected < number
    assert may_reach == (counted.count(job.place, job.submitted_at, -1.0) >= number)
    parts = Overtakes(starts[:4]).with_starts(starts[4:9]).with_starts(starts[9:])
    assert parts.count(job.place, job.submitted_at, job.waiting_since) == expected
